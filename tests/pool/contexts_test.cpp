// Default streams, other contexts and other threads' captures: whose stream a handle names is asked
// where asking breaks nothing, and whatever means the current context is called in the pool's own.
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

#include "support/others_capture.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

// What the driver does on a thread that has another device's context current, or none: as measured
// on an H200 (driver 580.159, 2026-12-01).
struct other_current : forwarding_driver {
  using forwarding_driver::forwarding_driver;
  enum class current : std::uint8_t { own, other, none };
  static inline thread_local current here = current::own;
  static inline thread_local stream_handle null_names = nullptr;  // what the handle 0 names here
  std::mutex mutex;
  std::set<event_handle> foreign;  // events of the other context

  static stream_handle of(stream_handle s) { return s == nullptr ? null_names : s; }
  [[nodiscard]] bool is_foreign(event_handle e) {
    const std::lock_guard lock(mutex);
    return foreign.contains(e);
  }
  bool in_own_context() noexcept override { return here == current::own; }
  call_result enter_context(void** before) noexcept override {
    *before = here == current::other ? this : nullptr;
    here = current::own;
    return {};
  }
  call_result leave_context(void* before) noexcept override {
    if (before != nullptr) here = current::other;
    return {};
  }
  driver_status refuse(sim::call which) noexcept override {
    return here == current::none && which != sim::call::exchange_capture_mode
               ? driver_status::invalid_context
               : driver_status::success;
  }
  call_result context_synchronize() noexcept override {
    if (here == current::other) return {driver_status::success, "cuCtxSynchronize"};
    return forwarding_driver::context_synchronize();
  }
  call_result event_create(event_handle* out) noexcept override {
    const call_result made = forwarding_driver::event_create(out);
    if (made.ok() && here == current::other) {
      const std::lock_guard lock(mutex);
      foreign.insert(*out);
    }
    return made;
  }
  call_result event_record(event_handle e, stream_handle s) noexcept override {
    if (is_foreign(e)) return {driver_status::invalid_handle, "cuEventRecord"};
    return forwarding_driver::event_record(e, of(s));
  }
  call_result context_record_event(event_handle e) noexcept override {
    if (is_foreign(e)) return {driver_status::invalid_handle, "cuCtxRecordEvent"};
    return forwarding_driver::context_record_event(e);
  }
  call_result stream_id(stream_handle s, std::uint64_t* id) noexcept override {
    return forwarding_driver::stream_id(of(s), id);
  }
  call_result stream_device(stream_handle s, int* ordinal) noexcept override {
    return forwarding_driver::stream_device(of(s), ordinal);
  }
  call_result stream_capture(stream_handle s, capture_info* out) noexcept override {
    return forwarding_driver::stream_capture(of(s), out);
  }
};

struct pool_contexts : pool_test {
  void start_elsewhere(pool_options options = {}) {
    start(std::move(options), steady(), [this](std::shared_ptr<simulated_gpu> g) {
      return elsewhere = std::make_shared<other_current>(std::move(g));
    });
    watch = nullptr;
  }
  void TearDown() override {
    other_current::here = other_current::current::own;
    other_current::null_names = nullptr;
    pool_test::TearDown();
  }
  // What `step` does on a thread that has the other context current.
  template <class Step>
  void in_other_context(Step&& step) {
    other_current::here = other_current::current::other;
    step();
    EXPECT_EQ(other_current::here, other_current::current::other) << "it was not put back";
    other_current::here = other_current::current::own;
  }
  std::shared_ptr<other_current> elsewhere;
};

TEST_F(pool_contexts, synchronize_waits_for_the_pools_own_context) {
  pool_options options;
  options.fences = context_fences::never;
  options.limit_bytes = 8 * MiB;
  options.max_wait_ns = 0;
  start_elsewhere(options);
  const stream_handle a = stream(), b = stream();
  void* const block = take(3 * MiB, a);
  work(block, a, 1000 * millisecond);
  give(block, a);
  in_other_context([&] { EXPECT_TRUE(p->synchronize().has_value()); });
  void* const all = take(8 * MiB, b);
  ASSERT_NE(all, nullptr);
  work(all, b, microsecond);
  give(all, b);
}

TEST_F(pool_contexts, the_end_waits_for_the_pools_own_context) {
  start_elsewhere();
  const stream_handle a = stream();
  void* const block = take(64 * MiB, a);
  work(block, a, 1000 * millisecond);
  give(block, a);
  in_other_context([&] {
    const simulated_gpu::library_scope library;
    p.reset();
  });
}

TEST_F(pool_contexts, a_sleep_waits_for_the_pools_own_context) {
  start_elsewhere();
  const stream_handle a = stream();
  void* const block = p->allocate(64 * MiB, a);
  work(block, a, 1000 * millisecond, 64 * MiB);
  in_other_context([&] {
    const simulated_gpu::library_scope library;
    EXPECT_TRUE(p->sleep({}).has_value());
    EXPECT_TRUE(p->wake().has_value());
  });
  p->deallocate(block, 64 * MiB, a);
}

TEST_F(pool_contexts, frees_with_another_context_current_leave_no_event_of_it_behind) {
  start_elsewhere();
  const stream_handle a = stream(), b = stream();
  give(take(MiB, b), b);
  void* const block = take(64 * MiB, a);
  in_other_context([&] { give(block, a); });
  EXPECT_TRUE(elsewhere->foreign.empty());
  for (int i = 0; i < 50; ++i) {
    const stream_handle s = i % 2 != 0 ? a : b;
    void* const each = take((40 + static_cast<std::uint64_t>(i % 7)) * MiB, s);
    work(each, s, microsecond);
    give(each, s);
    gpu->advance(millisecond);
  }
  EXPECT_LE(now().reserved_bytes, 128 * MiB);
}

TEST_F(pool_contexts, a_thread_without_a_context_gives_everything_back_at_the_end) {
  start_elsewhere();
  const stream_handle s = stream();
  give(take(64 * MiB, s), s);
  std::thread([&] {
    other_current::here = other_current::current::none;
    p.reset();
  }).join();
  EXPECT_EQ(gpu->physical_bytes(), 0u);
}

TEST_F(pool_contexts, the_null_stream_of_another_context_is_another_stream_for_a_free_too) {
  start_elsewhere();
  const stream_handle first = stream(), second = stream();
  other_current::null_names = first;
  void* const warm = take(3 * MiB, nullptr);
  give(warm, nullptr);
  void* const block = take(3 * MiB, nullptr);
  other_current::null_names = second;
  other_current::here = other_current::current::other;
  work(block, second, 10 * millisecond);
  gpu->note_free(reinterpret_cast<device_address>(block), 3 * MiB, second, "second context");
  {
    const simulated_gpu::library_scope library;
    p->deallocate(block, 3 * MiB, nullptr);
  }
  other_current::null_names = first;
  other_current::here = other_current::current::own;
  const auto next = p->try_allocate(3 * MiB, default_alignment, nullptr);
  ASSERT_TRUE(next.has_value());
  EXPECT_NE(*next, block) << "the second context's null stream still works on it";
  p->deallocate(*next, 3 * MiB, nullptr);
}

// A stream of a context that cuCtxCreate made takes no event of the pool's.
TEST_F(pool_contexts, a_stream_whose_work_no_fence_covers_is_refused_with_the_reason) {
  struct no_events : forwarding_driver {
    using forwarding_driver::forwarding_driver;
    stream_handle foreign = nullptr;
    call_result event_record(event_handle e, stream_handle s) noexcept override {
      if (s == foreign && s != nullptr) return {driver_status::invalid_handle, "cuEventRecord"};
      return to().event_record(e, s);
    }
  };
  make(steady());
  const auto used = std::make_shared<no_events>(gpu);
  add_pool({}, used);
  const stream_handle own = stream();
  used->foreign = stream();
  const auto got = p->try_allocate(MiB, default_alignment, used->foreign);
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code, error_code::invalid_argument);
  EXPECT_NE(got.error().message.find("another context"), std::string::npos) << got.error().message;
  void* const block = take(MiB, own);
  const auto use = p->record_use(block, used->foreign);
  ASSERT_FALSE(use.has_value());
  EXPECT_NE(use.error().message.find("another context"), std::string::npos) << use.error().message;
  const auto freed = p->try_deallocate(block, MiB, used->foreign);
  ASSERT_FALSE(freed.has_value()) << "its work could not be waited for";
  give(block, own);  // it stayed allocated
  expect_all_back();
}

// While another thread captures a blocking stream, the legacy stream cannot be asked anything: even
// its identity breaks that capture.
using pool_beside_a_capture = pool_test;

TEST_F(pool_beside_a_capture, the_legacy_stream_is_served_and_freed_in_every_mode) {
  for (const capture_mode mode :
       {capture_mode::global, capture_mode::thread_local_, capture_mode::relaxed}) {
    for (const stream_handle s : {stream_handle{nullptr}, legacy_stream}) {
      for (const bool warm : {true, false}) {
        start();
        const stream_handle other = stream();
        give(take(MiB, other), other);  // two streams: the pool fences frees
        if (warm) give(take(MiB, s), s);
        others_capture capture(*gpu, mode, per_thread_stream);
        void* const small = take(MiB, s);
        void* const large = take(64 * MiB, s);
        EXPECT_NE(small, nullptr) << refusal.message;
        EXPECT_NE(large, nullptr) << refusal.message;
        give(small, s);
        give(large, s);
        ok(capture.end());
        expect_all_back();
        end_pool();
      }
    }
  }
}

TEST_F(pool_beside_a_capture, a_use_on_the_legacy_stream_is_taken_and_waited_for) {
  start();
  const stream_handle s = stream();
  void* const block = take(3 * MiB, s);
  work(block, legacy_stream, 5 * millisecond);
  others_capture capture(*gpu, capture_mode::thread_local_, per_thread_stream);
  use(block, legacy_stream);
  give(block, s);
  void* const next = take(3 * MiB, s);
  EXPECT_NE(next, block);
  ok(capture.end());
  give(next, s);
  expect_all_back();
}

TEST_F(pool_beside_a_capture, a_tag_ends_with_its_block_in_a_capture_cache_too) {
  start();
  const stream_handle s = stream();
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  graph_handle graph = nullptr;
  void* next = nullptr;
  {
    pool::capture_cache_handle cache = p->capture_cache(s);
    void* const tagged = cache.allocate(3 * MiB);
    ASSERT_TRUE(p->set_tag(tagged, "scratch").has_value());
    cache.deallocate(tagged, 3 * MiB);
    next = cache.allocate(3 * MiB);
  }
  ok(gpu->capture_end(s, &graph));
  p->look_for_capture_end(s);
  work(next, s, microsecond, 3 * MiB);
  sleep_options drop;
  drop.drop = {"scratch"};
  const auto slept = p->sleep(drop);
  ASSERT_TRUE(slept.has_value()) << slept.error().message;
  EXPECT_EQ(slept->kept_bytes, 3 * MiB) << "the block that was never tagged";
  EXPECT_EQ(slept->dropped_bytes, 0u);
  ASSERT_TRUE(p->wake().has_value());
  p->deallocate(next, 3 * MiB, s);
  ok(gpu->graph_destroy(graph));
  expect_all_back();
}

TEST_F(pool_beside_a_capture, a_tag_ends_with_the_graph_of_its_block) {
  start();
  const stream_handle s = stream();
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  void* const tagged = p->allocate(3 * MiB, s);
  ASSERT_TRUE(p->set_tag(tagged, "scratch").has_value());
  graph_handle graph = nullptr;
  ok(gpu->capture_end(s, &graph));
  ok(gpu->graph_destroy(graph));  // the block goes with it
  gpu->advance(100 * millisecond);
  trim(std::uint64_t{1} << 30);
  void* const next = p->allocate(3 * MiB, s);
  work(next, s, microsecond, 3 * MiB);
  sleep_options drop;
  drop.drop = {"scratch"};
  const auto slept = p->sleep(drop);
  ASSERT_TRUE(slept.has_value()) << slept.error().message;
  EXPECT_EQ(slept->dropped_bytes, 0u);
  ASSERT_TRUE(p->wake().has_value());
  p->deallocate(next, 3 * MiB, s);
  expect_all_back();
}

}  // namespace
}  // namespace millpond
