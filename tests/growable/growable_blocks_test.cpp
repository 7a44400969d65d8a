// growable_blocks: freed blocks are kept and serve again, and none is lost or miscounted where one
// cannot.
#include "millpond/growable/growable_blocks.hpp"

#include <gmock/gmock.h>

#include <limits>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

using ::testing::HasSubstr;

class growable_blocks_test : public sim_test {
 protected:
  void begin(growable_blocks_options options = {}, std::uint64_t memory_bytes = 0) {
    simulated_gpu_options of_gpu;
    of_gpu.memory_bytes = memory_bytes;
    make(of_gpu);
    auto made = growable_blocks::create(gpu, options);
    ASSERT_TRUE(made) << made.error().message;
    blocks = *made;
  }
  void* take(std::uint64_t bytes) {
    auto got = blocks->allocate(bytes);
    EXPECT_TRUE(got) << got.error().message;
    return got ? *got : nullptr;
  }
  void TearDown() override {
    blocks.reset();
    sim_test::TearDown();
  }
  std::shared_ptr<growable_blocks> blocks;
};

TEST_F(growable_blocks_test, a_kept_block_without_the_addresses_stays_kept_and_a_new_one_serves) {
  begin({.reserve_bytes = 64 * MiB});
  void* const small = take(32 * MiB);
  ASSERT_TRUE(blocks->deallocate(small));
  void* const large = take(128 * MiB);
  EXPECT_NE(large, small);
  EXPECT_EQ(blocks->reserved_bytes(), 160 * MiB);
  gpu->reset_counters();
  EXPECT_EQ(take(20 * MiB), small);
  EXPECT_EQ(gpu->calls("cuMemCreate"), 0u);
  // Of two kept ones the one that has the addresses grows.
  ASSERT_TRUE(blocks->deallocate(large));
  ASSERT_TRUE(blocks->deallocate(small));
  ASSERT_TRUE(blocks->allocate(100 * MiB));
  EXPECT_EQ(take(60 * MiB), small);
}

TEST_F(growable_blocks_test, a_kept_block_that_cannot_grow_now_stays_kept) {
  begin({.reserve_bytes = 4 * GiB}, 256 * MiB);
  void* const block = take(32 * MiB);
  ASSERT_TRUE(blocks->deallocate(block));
  const auto refused = blocks->allocate(GiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::out_of_memory);
  EXPECT_EQ(blocks->reserved_bytes(), 32 * MiB);
  gpu->reset_counters();
  EXPECT_EQ(take(32 * MiB), block);
  EXPECT_EQ(gpu->calls("cuMemCreate"), 0u);
}

TEST_F(growable_blocks_test, what_the_driver_refuses_to_take_back_is_counted_on) {
  begin();
  leak_check = false;
  ASSERT_TRUE(blocks->deallocate(take(64 * MiB)));
  ASSERT_TRUE(blocks->deallocate(take(64 * MiB)));
  fault_plan plan;
  plan.faults.push_back({.call = "cuMemUnmap", .count = 100, .status = driver_status::unknown});
  gpu->set_faults(plan);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(blocks->trim(), 0u);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("leaves 64.0 MiB to the driver, in use until its context ends"));
  gpu->set_faults({});
  EXPECT_EQ(blocks->reserved_bytes(), 64 * MiB);
  EXPECT_EQ(gpu->physical_bytes(), 64 * MiB);
  ASSERT_TRUE(blocks->deallocate(take(32 * MiB)));
  EXPECT_EQ(blocks->trim(), 32 * MiB);
}

TEST_F(growable_blocks_test, options_at_the_ends_are_served_or_refused_clearly) {
  begin({.reserve_bytes = 64 * MiB, .step = 1e300});
  void* const block = take(2 * MiB);
  ASSERT_TRUE(blocks->grow(block, 3 * MiB));
  EXPECT_EQ(blocks->capacity(block), 64 * MiB) << "all of its addresses";
  for (const double step : {-0.5, std::numeric_limits<double>::quiet_NaN()}) {
    const auto refused = growable_blocks::create(gpu, {.step = step});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, error_code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("step is"));
  }
  const auto refused = growable_blocks::create(gpu, {.reserve_bytes = UINT64_MAX});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("reserve_bytes is 18446744073709551615"));
  EXPECT_EQ(blocks->allocate(UINT64_MAX).error().code, error_code::out_of_memory);
  EXPECT_EQ(blocks->grow(block, UINT64_MAX).error().code, error_code::out_of_memory);
}

}  // namespace
}  // namespace millpond
