// Blocks that grow in place, beside captures and with another context current.
#include "millpond/growable/growable_blocks.hpp"

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"
#include "support/others_capture.hpp"

namespace millpond {
namespace {

class growable_beside_a_capture : public sim_test {};

TEST_F(growable_beside_a_capture, blocks_are_made_grow_and_end_with_some_still_out) {
  make();
  const stream_handle s = stream();
  for (const capture_mode mode :
       {capture_mode::global, capture_mode::thread_local_, capture_mode::relaxed}) {
    others_capture capture(*gpu, mode);
    {
      const auto blocks = growable_blocks::create(gpu, {.reserve_bytes = GiB}).value();
      void* const block = blocks->allocate(4 * MiB).value();
      EXPECT_TRUE(blocks->grow(block, 8 * MiB));
      void* const freed = blocks->allocate(4 * MiB).value();
      EXPECT_TRUE(blocks->deallocate(freed));
      blocks->trim();
      const auto at = reinterpret_cast<device_address>(block);
      ok(gpu->launch({"busy", 5'000'000, {{at, MiB, access_kind::write}}}, s));
    }  // the block is out still, and work runs on it
    EXPECT_TRUE(capture.end().ok()) << static_cast<int>(mode);
    EXPECT_EQ(gpu->physical_bytes(), 0u);
  }
}

using growable_in_another_context = sim_test;

TEST_F(growable_in_another_context, the_programs_context_stays_current) {
  make();
  const stream_handle s = stream();
  std::shared_ptr<growable_blocks> blocks;
  {
    const another_context other(*gpu);
    blocks = growable_blocks::create(gpu, {.reserve_bytes = GiB}).value();
  }
  void* const block = blocks->allocate(4 * MiB).value();
  ok(gpu->launch(
      {"busy", 5'000'000, {{reinterpret_cast<device_address>(block), MiB, access_kind::write}}},
      s));
  {
    const another_context other(*gpu);
    EXPECT_TRUE(blocks->grow(block, 8 * MiB));
    blocks.reset();  // waits for the work on the live block
  }
  EXPECT_EQ(gpu->physical_bytes(), 0u);
}

}  // namespace
}  // namespace millpond
