// Default streams, other contexts and other threads' captures: whose stream a handle names is asked
// where asking breaks nothing, and whatever means the current context is called in the pool's own.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "support/others_capture.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

// Contexts of one device on the simulated GPU, which answers as an H200 does (driver 580.159,
// 2026-12-01).
struct pool_contexts : pool_test {
  void start_elsewhere(pool_options options = {}) {
    start(std::move(options));
    add_contexts();
  }
  void add_contexts() {
    ok(gpu->context_create(&other));
    ok(gpu->context_pop(nullptr));
    ok(gpu->green_context_create(&green));
  }
  void TearDown() override {
    pool_test::TearDown();
    ok(gpu->context_destroy(other));
    ok(gpu->context_destroy(green));
  }
  // What `step` does on a thread that has the other context current.
  template <class Step>
  void in_other_context(Step&& step) {
    in(other, std::forward<Step>(step));
  }
  template <class Step>
  void in(simulated_gpu::context which, Step&& step) {
    ok(gpu->context_push(which));
    step();
    EXPECT_EQ(gpu->current_context(), which) << "it was not put back";
    ok(gpu->context_pop(nullptr));
  }
  stream_handle stream_in(simulated_gpu::context which) {
    stream_handle made = nullptr;
    in(which, [&] { made = stream(); });
    return made;
  }
  simulated_gpu::context other = nullptr, green = nullptr;
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

// Each of these calls needs an event that the pool does not have: those that it made wait for work
// that is under way.
TEST_F(pool_contexts, calls_with_another_context_current_make_no_event_in_it) {
  start_elsewhere();
  const stream_handle a = stream(), b = stream(), late = stream();
  give(take(MiB, a), a);
  give(take(MiB, b), b);  // two streams: frees are sealed
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(take(16 * MiB, a));
    work(blocks.back(), a, 1000 * millisecond);
  }
  in_other_context([&] {
    for (void* const block : blocks) give(block, a);  // each a batch of its own
  });
  EXPECT_GE(now().seals, 8u);
  void* const used = take(16 * MiB, b);
  for (int i = 0; i < 3; ++i) {
    const stream_handle user = stream();
    work(used, user, 1000 * millisecond);
    use(used, user);
  }
  in_other_context([&] { give(used, b); });
  in_other_context([&] {
    void* const first = take(MiB, late);  // a stream that the pool meets here
    ASSERT_NE(first, nullptr) << refusal.message;
    give(first, late);
  });
  const std::uint64_t events = gpu->leaks().events;
  ok(gpu->context_destroy(other));
  EXPECT_EQ(gpu->leaks().events, events) << "the other context took some along";
  add_contexts();
  // And frees are fenced as before: nothing waits for an event that nobody can record.
  for (int i = 0; i < 50; ++i) {
    const stream_handle s = i % 2 != 0 ? a : b;
    void* const each = take((40 + static_cast<std::uint64_t>(i % 7)) * MiB, s);
    work(each, s, microsecond);
    give(each, s);
    gpu->advance(100 * millisecond);
  }
  EXPECT_LE(now().reserved_bytes, 256 * MiB);
}

TEST_F(pool_contexts, a_thread_without_a_context_gives_everything_back_at_the_end) {
  start_elsewhere();
  const stream_handle s = stream();
  give(take(64 * MiB, s), s);
  std::thread([&] {
    ok(gpu->context_pop(nullptr));
    EXPECT_EQ(gpu->current_context(), nullptr);
    p.reset();
  }).join();
  EXPECT_EQ(gpu->physical_bytes(), 0u);
}

// A green context's streams take the pool's events.
TEST_F(pool_contexts, the_null_stream_of_a_green_context_is_another_stream_for_a_free_too) {
  start_elsewhere();
  give(take(3 * MiB, nullptr), nullptr);
  void* const block = take(3 * MiB, nullptr);
  in(green, [&] {
    work(block, nullptr, 10 * millisecond);
    give(block, nullptr);
  });
  void* const next = take(3 * MiB, nullptr);
  ASSERT_NE(next, nullptr) << refusal.message;
  EXPECT_NE(next, block) << "the green context's null stream still works on it";
  give(next, nullptr);
}

TEST_F(pool_contexts, a_free_on_the_null_stream_of_another_context_is_refused_with_the_reason) {
  start_elsewhere();
  give(take(3 * MiB, nullptr), nullptr);
  void* const block = take(3 * MiB, nullptr);
  for (const stream_handle handle : {stream_handle{nullptr}, legacy_stream, per_thread_stream}) {
    in_other_context([&] {
      work(block, handle, 10 * millisecond);
      const auto freed = p->try_deallocate(block, 3 * MiB, handle);
      ASSERT_FALSE(freed.has_value()) << "its work could not be waited for";
      EXPECT_NE(freed.error().message.find("another context"), std::string::npos)
          << freed.error().message;
      ok(gpu->stream_synchronize(handle));
    });
  }
  give(block, nullptr);  // it stayed allocated
  expect_all_back();
}

// A stream of a context that cuCtxCreate made takes no event of the pool's.
TEST_F(pool_contexts, a_stream_whose_work_no_fence_covers_is_refused_with_the_reason) {
  start_elsewhere();
  const stream_handle own = stream(), foreign = stream_in(other);
  const auto got = p->try_allocate(MiB, default_alignment, foreign);
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code, error_code::invalid_argument);
  EXPECT_NE(got.error().message.find("another context"), std::string::npos) << got.error().message;
  void* const block = take(MiB, own);
  const auto use = p->record_use(block, foreign);
  ASSERT_FALSE(use.has_value());
  EXPECT_NE(use.error().message.find("another context"), std::string::npos) << use.error().message;
  const auto freed = p->try_deallocate(block, MiB, foreign);
  ASSERT_FALSE(freed.has_value()) << "its work could not be waited for";
  give(block, own);  // it stayed allocated
  expect_all_back();
}

TEST_F(pool_contexts, a_stream_of_a_green_context_is_served) {
  start_elsewhere();
  const stream_handle own = stream(), part = stream_in(green);
  void* const block = take(3 * MiB, part);
  ASSERT_NE(block, nullptr) << refusal.message;
  work(block, part, 10 * millisecond);
  give(block, part);
  void* const next = take(3 * MiB, own);
  EXPECT_NE(next, block);
  use(next, part);
  give(next, own);
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
