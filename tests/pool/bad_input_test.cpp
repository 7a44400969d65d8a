// What a program may get wrong, one by one: the message says what was wrong, and nothing is lost:
// every live block stays as it was, the books are right, and the pool serves on.
#include <gmock/gmock.h>

#include "support/forwarding_driver.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Says of some streams that they are another device's.
class two_devices final : public forwarding_driver {
 public:
  using forwarding_driver::forwarding_driver;
  call_result stream_device(stream_handle s, int* ordinal) noexcept override {
    const call_result answer = forwarding_driver::stream_device(s, ordinal);
    if (answer.ok() && s == foreign) *ordinal = 1;
    return answer;
  }
  stream_handle foreign = nullptr;
};

class pool_bad_input : public pool_test {
 protected:
  void SetUp() override {
    start({}, steady(), [this](std::shared_ptr<simulated_gpu> g) {
      return devices = std::make_shared<two_devices>(std::move(g));
    });
    good = stream();
    witness = take(3 * MiB, good);
    before = now();
  }
  // Whatever was refused: the block that lived lives, and nothing else does.
  void TearDown() override {
    EXPECT_EQ(now().live_blocks, 1u);
    EXPECT_EQ(now().live_bytes, 3 * MiB);
    EXPECT_EQ(p->find(witness).value().start, witness);
    for (const std::uint64_t bytes : {4 * KiB, 1 * MiB, 40 * MiB}) {
      void* const x = take(bytes, good);
      EXPECT_NE(x, nullptr) << refusal.message;
      give(x, good);
    }
    give(witness, good);
    EXPECT_EQ(now().live_blocks, 0u);
    trim();
    trim();
    EXPECT_EQ(now().reserved_bytes, 0u);
    devices.reset();
    pool_test::TearDown();
  }
  std::string refused(std::uint64_t bytes, stream_handle s, error_code code,
                      std::uint64_t alignment = default_alignment) {
    EXPECT_EQ(take(bytes, s, alignment), nullptr);
    EXPECT_EQ(refusal.code, code) << refusal.message;
    return refusal.message;
  }

  std::shared_ptr<two_devices> devices;
  stream_handle good = nullptr;
  void* witness = nullptr;
  pool_statistics before;
};

TEST_F(pool_bad_input, an_allocation_larger_than_the_device) {
  const std::uint64_t total = gpu->info().total_bytes;
  EXPECT_THAT(refused(total + 1, good, error_code::out_of_memory), HasSubstr("the device has"));
  EXPECT_THAT(refused(10 * total, good, error_code::out_of_memory), HasSubstr("reserved"));
  EXPECT_THAT(refused(~std::uint64_t{0}, good, error_code::out_of_memory),
              HasSubstr("is more than any device has"));
  EXPECT_THROW(static_cast<void>(p->allocate(10 * total, good)), std::bad_alloc);
  EXPECT_EQ(now().reserved_bytes, before.reserved_bytes);
}

TEST_F(pool_bad_input, an_alignment_that_is_no_power_of_two_or_too_large) {
  for (const std::uint64_t alignment : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{768},
                                        max_alignment + 512, 2 * max_alignment}) {
    EXPECT_THAT(refused(4 * KiB, good, error_code::invalid_argument, alignment),
                AllOf(HasSubstr("alignment " + std::to_string(alignment)),
                      HasSubstr("power of two up to " + std::to_string(max_alignment))));
  }
  EXPECT_EQ(now().allocations, before.allocations);
}

TEST_F(pool_bad_input, a_destroyed_stream) {
  stream_handle gone = nullptr;
  ok(gpu->stream_create(&gone));
  ok(gpu->stream_destroy(gone));
  EXPECT_THAT(refused(4 * KiB, gone, error_code::invalid_argument),
              AllOf(HasSubstr("destroyed"), HasSubstr("cuStreamGetId")));
  const auto reported = p->record_use(witness, gone);
  ASSERT_FALSE(reported.has_value());
  EXPECT_THAT(reported.error().message, HasSubstr("destroyed"));
  try {
    static_cast<void>(p->cache(gone));
    ADD_FAILURE() << "served";
  } catch (const memory_error& e) {
    EXPECT_THAT(e.what(), HasSubstr("destroyed"));
  }
}

TEST_F(pool_bad_input, a_stream_of_another_device) {
  devices->foreign = stream();
  const auto words = AllOf(HasSubstr("the stream is of device 1"), HasSubstr("pool of device 0"));
  EXPECT_THAT(refused(4 * KiB, devices->foreign, error_code::invalid_argument), words);
  EXPECT_THAT(refused(4 * KiB, devices->foreign, error_code::invalid_argument), words)
      << "and again";
  p->deallocate(witness, 3 * MiB, devices->foreign);
  EXPECT_THAT(only_error().message, words);
  const auto reported = p->record_use(witness, devices->foreign);
  ASSERT_FALSE(reported.has_value());
  EXPECT_THAT(reported.error().message, words);
  try {
    static_cast<void>(p->cache(devices->foreign));
    ADD_FAILURE() << "served";
  } catch (const memory_error& e) {
    EXPECT_THAT(e.what(), words);
  }
  EXPECT_EQ(now().streams, before.streams);
}

TEST_F(pool_bad_input, a_foreign_pointer) {
  int local = 0;
  p->deallocate(&local, sizeof local, good);
  const error e = only_error();
  EXPECT_EQ(e.code, error_code::foreign_pointer);
  EXPECT_THAT(e.message, HasSubstr("not of this pool"));
  device_address other = 0;
  ok(gpu->memory_allocate(&other, 4096));
  p->deallocate(reinterpret_cast<void*>(other), 4096, good);
  EXPECT_THAT(only_error().message, AllOf(HasSubstr("device memory of another owner"),
                                          HasSubstr("free it through what allocated it")));
  ok(gpu->memory_free(other));
}

TEST_F(pool_bad_input, a_wrong_size_on_free) {
  auto cache = p->cache(good);
  for (const std::uint64_t wrong : {3 * MiB + 1, 3 * MiB - 1, std::uint64_t{1}}) {
    p->deallocate(witness, wrong, good);
    const error e = only_error();
    EXPECT_EQ(e.code, error_code::invalid_argument);
    EXPECT_THAT(e.message, AllOf(HasSubstr("freed with " + std::to_string(wrong) + " bytes"),
                                 HasSubstr("allocated with " + std::to_string(3 * MiB)),
                                 HasSubstr("stays allocated")));
    cache.deallocate(witness, wrong);
    EXPECT_THAT(only_error().message, HasSubstr("stays allocated"));
  }
}

// Without the audit build nothing is asked on a cache's fast path: its owner has promised.
#if defined(MILLPOND_AUDIT)
TEST_F(pool_bad_input, a_cache_used_in_a_capture_stops_the_audit_build) {
  auto cache = p->cache(good);
  void* const x = cache.allocate(4 * KiB);
  ok(gpu->capture_begin(good, capture_mode::relaxed));
  EXPECT_DEATH(static_cast<void>(cache.allocate(4 * KiB)), "a cache handle was used in a capture");
  EXPECT_DEATH(cache.deallocate(x, 4 * KiB), "a cache handle was used in a capture");
  graph_handle graph = nullptr;
  ok(gpu->capture_end(good, &graph));
  ok(gpu->graph_destroy(graph));
  cache.deallocate(x, 4 * KiB);
}
#endif

}  // namespace
}  // namespace millpond
