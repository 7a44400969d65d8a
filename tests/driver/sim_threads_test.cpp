// The simulator under real threads, and how fast it is.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/random.hpp"
#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

class sim_threads : public sim_test {};

TEST_F(sim_threads, threads_may_call_at_once) {
  make();
  std::vector<std::thread> threads;
  std::atomic<int> callbacks{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      random numbers(static_cast<std::uint64_t>(t));
      stream_handle s = nullptr;
      event_handle e = nullptr;
      ASSERT_TRUE(gpu->stream_create(&s).ok());
      ASSERT_TRUE(gpu->event_create(&e).ok());
      for (int i = 0; i < 300; ++i) {
        device_address d = 0;
        ASSERT_TRUE(gpu->memory_allocate(&d, 1 + numbers.below(4 * MiB)).ok());
        const identity_block block{d, 1, static_cast<std::uint64_t>(t)};
        identity_report report;
        ASSERT_TRUE(gpu->identity_write({&block, 1}, s).ok());
        ASSERT_TRUE(gpu->identity_check({&block, 1}, &report, s).ok());
        ASSERT_TRUE(
            gpu->host_function(
                   s, [](void* p) { static_cast<std::atomic<int>*>(p)->fetch_add(1); }, &callbacks)
                .ok());
        ASSERT_TRUE(gpu->event_record(e, s).ok());
        ASSERT_TRUE(gpu->event_synchronize(e).ok());
        ASSERT_EQ(report.mismatches, 0u);
        ASSERT_TRUE(gpu->memory_free(d).ok());
      }
      ASSERT_TRUE(gpu->event_destroy(e).ok());
      ASSERT_TRUE(gpu->stream_destroy(s).ok());
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(callbacks.load(), 1200);
}

// A function that is retired with a graph takes a lock of the library's, which other threads hold
// over driver calls: the simulator runs it with no lock of its own held, so nobody waits in a
// circle.
TEST_F(sim_threads, what_a_graph_retained_may_take_a_lock_that_is_held_over_calls) {
  make();
  std::mutex lock;
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) {
      const std::lock_guard hold(lock);
      std::uint64_t id = 0;
      ASSERT_TRUE(gpu->stream_id(nullptr, &id).ok());
    }
  });
  const stream_handle s = stream();
  for (int i = 0; i < 200; ++i) {
    ok(gpu->capture_begin(s, capture_mode::relaxed));
    capture_info info;
    ok(gpu->stream_capture(s, &info));
    ok(gpu->graph_retain(
        info.graph, [](void* p) { const std::lock_guard hold(*static_cast<std::mutex*>(p)); },
        &lock));
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    ok(gpu->graph_destroy(graph));
  }
  stop.store(true);
  other.join();
}

// A replay of 100,000 events with contents written and checked takes a second or two at most. The
// bound is slack for slow machines and sanitizers; the time is printed.
TEST_F(sim_threads, a_long_replay_is_quick) {
  make();
  const stream_handle s = stream();
  physical_handle h = 0;
  device_address at = 0;
  ok(gpu->address_reserve(&at, 1 * GiB, 0));
  std::vector<physical_handle> handles;
  for (std::uint64_t i = 0; i < 32; ++i) {
    ok(gpu->physical_create(&h, 32 * MiB, memory_location::device, driver::shareable::no));
    ok(gpu->map(at + i * 32 * MiB, 32 * MiB, h));
    handles.push_back(h);
  }
  ok(gpu->set_access(at, 1 * GiB, memory_location::device));
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int events = 5'000;
#else
  constexpr int events = 100'000;
#endif
  constexpr std::uint64_t slots = 256, slot_bytes = 4 * MiB;
  std::vector<std::uint64_t> sizes(slots);
  random numbers(3);
  identity_report report;
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t calls_before = gpu->total_calls();
  for (int i = 0; i < events; ++i) {
    const std::uint64_t slot = numbers.below(slots);
    const device_address where = at + slot * slot_bytes;
    if (sizes[slot] == 0) {
      sizes[slot] = numbers.log_uniform(256, slot_bytes);
      gpu->note_allocate(where, sizes[slot], s, "allocate");
      const identity_block block{where, sizes[slot], slot};
      ok(gpu->identity_write({&block, 1}, s));
    } else {
      const identity_block block{where, sizes[slot], slot};
      ok(gpu->identity_check({&block, 1}, &report, s));
      gpu->note_free(where, sizes[slot], s, "free");
      sizes[slot] = 0;
    }
  }
  ok(gpu->stream_synchronize(s));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto calls = static_cast<double>(gpu->total_calls() - calls_before);
  std::printf("%d events in %.3f s, %.2f us of real time a call with its note\n", events, seconds,
              seconds * 1e6 / calls);
  RecordProperty("us_a_call", std::to_string(seconds * 1e6 / calls));
  EXPECT_LT(seconds, 30);
  EXPECT_EQ(report.mismatches, 0u);
  for (std::uint64_t slot = 0; slot < slots; ++slot) {
    if (sizes[slot] != 0) gpu->note_free(at + slot * slot_bytes, sizes[slot], s, "end");
  }
  ok(gpu->unmap(at, 1 * GiB));
  for (const physical_handle each : handles) ok(gpu->physical_release(each));
  ok(gpu->address_free(at, 1 * GiB));
}

}  // namespace
}  // namespace millpond
