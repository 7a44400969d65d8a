// The guard's quarantine in front of a pool: what was freed before a capture goes back to the pool
// and not to the graph.
#include <gmock/gmock.h>

#include "millpond/memory/adaptors.hpp"
#include "support/dead_streams.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

using ::testing::IsEmpty;

TEST_F(pool_test, a_quarantined_block_that_was_freed_before_a_capture_serves_others_again) {
  start();
  const stream_handle s = stream(), t = stream();
  {
    guard_resource guarded(*p, nullptr, {.name = {}, .quarantine_bytes = 300 * MiB});
    void* const a = guarded.allocate(256 * MiB, s);
    void* const b = guarded.allocate(64 * MiB, t);
    guarded.deallocate(a, 256 * MiB, s);
    ok(gpu->capture_begin(s, capture_mode::relaxed));
    guarded.deallocate(b, 64 * MiB, t);  // pushes a out
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    ok(gpu->context_synchronize());
    EXPECT_EQ(p->statistics().capture_bytes, 0u);
    void* const again = p->allocate(256 * MiB, t);
    EXPECT_EQ(again, a);
    p->deallocate(again, 256 * MiB, t);
    ok(gpu->graph_destroy(graph));
  }
  p.reset();
}

TEST_F(pool_test, quarantined_blocks_of_a_destroyed_stream_are_given_on_without_naming_it) {
  std::shared_ptr<dead_streams> watched;
  start({}, steady(), [&](std::shared_ptr<simulated_gpu> on) {
    watched = std::make_shared<dead_streams>(on);
    return watched;
  });
  stream_handle s = nullptr;
  ok(watched->stream_create(&s));
  {
    guard_resource guarded(*p, nullptr, {.name = {}, .quarantine_bytes = 256 * MiB});
    void* const block = guarded.allocate(64 * MiB, s);
    work(block, s, 5 * millisecond);
    guarded.deallocate(block, 64 * MiB, s);
    ok(watched->stream_destroy(s));
    guarded.flush();
    EXPECT_EQ(guarded.quarantined_bytes(), 0u);
  }
  EXPECT_EQ(p->statistics().live_bytes, 0u);
  EXPECT_THAT(watched->named(), IsEmpty());
  p.reset();
}

}  // namespace
}  // namespace millpond
