// Caches inside captures: as fast as a cache, and the memory is the graph's.
#include <set>

#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

class pool_capture_cache : public pool_test {
 protected:
  void begin(stream_handle s, capture_mode mode = capture_mode::global) {
    ok(gpu->capture_begin(s, mode));
  }
  graph_exec_handle finish(stream_handle s) {
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    graph_exec_handle exec = nullptr;
    ok(gpu->graph_instantiate(&exec, graph));
    ok(gpu->graph_destroy(graph));
    return exec;
  }
  pool::capture_cache_handle cache_on(stream_handle s) {
    const simulated_gpu::library_scope library;
    const handle_watch::serving call(s);
    return p->capture_cache(s);
  }
  void* take_by(pool::capture_cache_handle& cache, std::uint64_t bytes) {
    const simulated_gpu::library_scope library;
    const handle_watch::serving call(cache.stream());
    void* const at = cache.allocate(bytes);
    gpu->note_allocate(reinterpret_cast<device_address>(at), bytes, cache.stream(), "by the cache");
    return at;
  }
  void give_by(pool::capture_cache_handle& cache, void* at, std::uint64_t bytes) {
    gpu->note_free(reinterpret_cast<device_address>(at), bytes, cache.stream(), "by the cache");
    const simulated_gpu::library_scope library;
    const handle_watch::serving call(cache.stream());
    cache.deallocate(at, bytes);
  }
};

TEST_F(pool_capture_cache, warm_it_asks_the_driver_nothing_and_the_blocks_are_the_graphs) {
  start();
  const stream_handle a = stream(), b = stream();
  give(take(512, b), b);
  begin(a);
  std::set<void*> inside;
  {
    auto cache = cache_on(a);
    const auto round = [&] {
      std::vector<std::pair<void*, std::uint64_t>> all;
      for (const std::uint64_t bytes :
           {std::uint64_t{100}, 4 * KiB, 64 * KiB, 200 * KiB, 1 * MiB, 2 * MiB}) {
        all.emplace_back(take_by(cache, bytes), bytes);
        inside.insert(all.back().first);
        work(all.back().first, a, 1 * microsecond, bytes);
      }
      for (const auto& [at, bytes] : all) give_by(cache, at, bytes);
    };
    round();
    const std::size_t distinct = inside.size();
    const auto asked = [&] {
      return gpu->calls("cuStreamGetCaptureInfo") + gpu->calls("cuStreamGetId") +
             gpu->calls("cuMemCreate") + gpu->calls("cuMemMap");
    };
    const std::uint64_t calls = asked();
    const pool_statistics before = now();
    for (int i = 0; i < 20; ++i) round();
#if !defined(MILLPOND_AUDIT)
    EXPECT_EQ(asked(), calls);
#else
    static_cast<void>(calls);
#endif
    EXPECT_EQ(now().thread_cache_hits - before.thread_cache_hits, 120u);
    EXPECT_EQ(inside.size(), distinct) << "the same blocks again";
  }
  const graph_exec_handle exec = finish(a);
  EXPECT_EQ(now().live_blocks, 0u);
  for (int i = 0; i < 30; ++i) {
    void* const x = take(1 * MiB, i % 2 == 0 ? a : b);
    EXPECT_FALSE(inside.contains(x));
    ok(gpu->graph_launch(exec, b));
    give(x, i % 2 == 0 ? a : b);
  }
  ok(gpu->graph_exec_destroy(exec));
  expect_all_back();
}

TEST_F(pool_capture_cache, blocks_go_between_the_cache_and_the_plain_calls) {
  start();
  const stream_handle a = stream();
  void* const own = take(700 * KiB, a);  // the program's, not the capture's
  begin(a);
  auto cache = cache_on(a);
  void* const by_cache = take_by(cache, 700 * KiB);
  give(by_cache, a);
  EXPECT_EQ(take(700 * KiB, a), by_cache);
  give_by(cache, by_cache, 700 * KiB);
  EXPECT_EQ(take_by(cache, 700 * KiB), by_cache);
  give_by(cache, by_cache, 700 * KiB);
  void* const small = take(300 * KiB, a);
  give_by(cache, small, 300 * KiB);
  EXPECT_EQ(take(300 * KiB, a), small);
  give_by(cache, small, 300 * KiB);
  give_by(cache, own, 700 * KiB);
  EXPECT_EQ(take_by(cache, 700 * KiB), by_cache) << "the program's memory is no graph's";
  void* const other = take_by(cache, 700 * KiB);
  EXPECT_NE(other, own);
  EXPECT_EQ(now().live_blocks, 2u);
  give_by(cache, by_cache, 700 * KiB);
  give_by(cache, other, 700 * KiB);
  const graph_exec_handle exec = finish(a);
  {
    const auto gone = std::move(cache);
  }
  ok(gpu->graph_exec_destroy(exec));
  expect_all_back();
}

TEST_F(pool_capture_cache, a_cache_that_outlives_its_graph_is_empty_and_refuses) {
  start();
  const stream_handle a = stream();
  begin(a);
  auto cache = cache_on(a);
  void* const never_freed = take_by(cache, 64 * KiB);
  give_by(cache, take_by(cache, 1 * MiB), 1 * MiB);
  const graph_exec_handle exec = finish(a);
  ok(gpu->graph_exec_destroy(exec));
  gpu->note_free(reinterpret_cast<device_address>(never_freed), 64 * KiB, a, "went with the graph");
  expect_all_back();
#if !defined(MILLPOND_AUDIT)
  EXPECT_THROW(static_cast<void>(cache.allocate(64 * KiB)), memory_error);
  EXPECT_THROW(static_cast<void>(cache.allocate(1 * MiB)), memory_error);
  cache.deallocate(never_freed, 64 * KiB);
  EXPECT_EQ(errors.size(), 1u);
  errors.clear();
#endif
  expect_all_back();
}

TEST_F(pool_capture_cache, two_streams_of_a_capture_have_a_cache_each_and_share_nothing_unordered) {
  start();
  const stream_handle a = stream(), b = stream();
  const event_handle fork = event(), join = event();
  begin(a);
  ok(gpu->event_record(fork, a));
  ok(gpu->stream_wait_event(b, fork));
  {
    auto on_a = cache_on(a), on_b = cache_on(b);
    for (int i = 0; i < 50; ++i) {
      for (const std::uint64_t bytes : {8 * KiB, 128 * KiB, 3 * MiB}) {
        void* const x = take_by(on_a, bytes);
        void* const y = take_by(on_b, bytes);
        EXPECT_NE(x, y);
        work(x, a, 1 * microsecond, bytes);
        work(y, b, 1 * microsecond, bytes);
        give_by(on_a, x, bytes);
        give_by(on_b, y, bytes);
      }
    }
  }
  ok(gpu->event_record(join, b));
  ok(gpu->stream_wait_event(a, join));
  const graph_exec_handle exec = finish(a);
  ok(gpu->graph_launch(exec, a));
  ok(gpu->graph_exec_destroy(exec));
  expect_all_back();
}

TEST_F(pool_capture_cache, in_an_arena_it_serves_the_arenas_memory) {
  start();
  const stream_handle a = stream();
  graph_arena arena = p->make_graph_arena();
  std::vector<graph_exec_handle> graphs;
  std::vector<std::uint64_t> known;
  std::uint64_t first = 0;
  for (int i = 0; i < 4; ++i) {
    begin(a);
    ASSERT_TRUE(p->capture_into(arena, a).has_value());
    capture_info info;
    ok(gpu->stream_capture(a, &info));
    gpu->note_shared_captures(info.id, info.id);
    for (const std::uint64_t before : known) gpu->note_shared_captures(before, info.id);
    known.push_back(info.id);
    {
      auto cache = cache_on(a);
      for (const std::uint64_t bytes : {4 * KiB, 500 * KiB, 16 * MiB}) {
        void* const x = take_by(cache, bytes);
        work(x, a, 1 * microsecond, bytes);
        give_by(cache, x, bytes);
      }
    }
    graphs.push_back(finish(a));
    if (i == 0) first = now().capture_bytes;
  }
  EXPECT_EQ(now().capture_bytes, first);
  for (const graph_exec_handle g : graphs) ok(gpu->graph_launch(g, a));
  for (const graph_exec_handle g : graphs) ok(gpu->graph_exec_destroy(g));
  arena = {};
  expect_all_back();
}

TEST_F(pool_capture_cache, a_block_of_another_graph_is_not_kept) {
  start();
  const stream_handle a = stream(), b = stream();
  begin(a, capture_mode::relaxed);
  void* theirs = nullptr;
  {
    auto cache = cache_on(a);
    theirs = take_by(cache, 64 * KiB);
  }
  const graph_exec_handle first = finish(a);
  begin(b, capture_mode::relaxed);
  {
    auto cache = cache_on(b);
    give_by(cache, theirs, 64 * KiB);
    for (int i = 0; i < 3; ++i) {
      void* const x = take_by(cache, 64 * KiB);
      EXPECT_NE(x, theirs) << "its graph writes there at each launch";
      give_by(cache, x, 64 * KiB);
    }
  }
  const graph_exec_handle second = finish(b);
  for (const graph_exec_handle g : {first, second}) ok(gpu->graph_exec_destroy(g));
  expect_all_back();
}

TEST_F(pool_capture_cache, what_a_cache_keeps_is_bounded) {
  start();
  const stream_handle a = stream();
  begin(a);
  auto cache = cache_on(a);
  std::vector<void*> small, large;
  for (int i = 0; i < 200; ++i) small.push_back(take_by(cache, 32 * KiB));
  for (int i = 0; i < 30; ++i) large.push_back(take_by(cache, 1 * MiB));
  for (void* x : small) give_by(cache, x, 32 * KiB);
  for (void* x : large) give_by(cache, x, 1 * MiB);
  // What it does not keep is the capture's at once: one block of most of it.
  void* const whole = take(24 * MiB, a);
  EXPECT_NE(whole, nullptr);
  EXPECT_LE(now().reserved_bytes, 48 * MiB);
  give(whole, a);
  const graph_exec_handle exec = finish(a);
  {
    const auto gone = std::move(cache);
  }
  ok(gpu->graph_exec_destroy(exec));
  expect_all_back();
}

TEST_F(pool_capture_cache, a_use_on_another_stream_keeps_a_block_from_the_cache) {
  start();
  const stream_handle a = stream(), b = stream();
  const event_handle fork = event(), join = event();
  begin(a);
  {
    auto cache = cache_on(a);
    void* const x = take_by(cache, 64 * KiB);
    ok(gpu->event_record(fork, a));
    ok(gpu->stream_wait_event(b, fork));
    use(x, b);
    work(x, b, 1 * millisecond);
    give_by(cache, x, 64 * KiB);
    std::vector<void*> all;
    for (int i = 0; i < 40; ++i) all.push_back(take_by(cache, 64 * KiB));
    for (void* y : all) {
      EXPECT_NE(y, x);
      give_by(cache, y, 64 * KiB);
    }
  }
  ok(gpu->event_record(join, b));
  ok(gpu->stream_wait_event(a, join));
  ok(gpu->graph_exec_destroy(finish(a)));
  expect_all_back();
}

TEST_F(pool_capture_cache, bad_calls_are_reported_and_nothing_is_lost) {
  start();
  const stream_handle a = stream();
  const auto refused = [&](stream_handle s, error_code code) {
    try {
      static_cast<void>(cache_on(s));
      ADD_FAILURE() << "served";
    } catch (const memory_error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
    }
  };
  refused(a, error_code::not_permitted);
  stream_handle gone = nullptr;
  ok(gpu->stream_create(&gone));
  ok(gpu->stream_destroy(gone));
  refused(gone, error_code::invalid_argument);
  begin(a);
  {
    auto cache = cache_on(a);
    EXPECT_EQ(cache.allocate(0), nullptr);
    cache.deallocate(nullptr, 0);
    EXPECT_THROW(static_cast<void>(cache.allocate(2 * gpu->info().total_bytes)), out_of_memory);
    EXPECT_THROW(static_cast<void>(cache.allocate(~std::uint64_t{0})), out_of_memory);
    void* const x = take_by(cache, 4 * KiB);
    cache.deallocate(x, 5 * KiB);
    EXPECT_EQ(only_error().code, error_code::invalid_argument);
    cache.deallocate(static_cast<char*>(x) + 8, 0);
    EXPECT_EQ(only_error().code, error_code::interior_pointer);
    int local = 0;
    cache.deallocate(&local, 4);
    EXPECT_EQ(only_error().code, error_code::foreign_pointer);
    give_by(cache, x, 4 * KiB);
    cache.deallocate(x, 4 * KiB);
    EXPECT_EQ(only_error().code, error_code::double_free);
  }
  ok(gpu->graph_exec_destroy(finish(a)));
  expect_all_back();
}

TEST_F(pool_capture_cache, a_cache_may_outlive_the_pool) {
  start();
  const stream_handle a = stream();
  begin(a);
  auto cache = cache_on(a);
  give_by(cache, take_by(cache, 4 * KiB), 4 * KiB);
  const graph_exec_handle exec = finish(a);
  {
    const simulated_gpu::library_scope library;
    p.reset();
  }
  ok(gpu->graph_exec_destroy(exec));
}

#if defined(MILLPOND_AUDIT)
using pool_capture_cache_death = pool_capture_cache;
TEST_F(pool_capture_cache_death, the_audit_build_stops_each_cache_that_is_used_in_the_wrong_place) {
  start();
  const stream_handle a = stream();
  auto plain = p->cache(a);
  void* const x = plain.allocate(4 * KiB);
  begin(a);
  auto inside = cache_on(a);
  EXPECT_DEATH(static_cast<void>(plain.allocate(4 * KiB)), "a cache handle was used in a capture");
  EXPECT_DEATH(plain.deallocate(x, 4 * KiB), "a cache handle was used in a capture");
  void* const y = take_by(inside, 4 * KiB);
  give_by(inside, y, 4 * KiB);
  const graph_exec_handle exec = finish(a);
  EXPECT_DEATH(static_cast<void>(inside.allocate(4 * KiB)),
               "a capture cache was used outside its capture");
  plain.deallocate(x, 4 * KiB);
  {
    const auto gone = std::move(inside);
  }
  ok(gpu->graph_exec_destroy(exec));
}
#endif

}  // namespace
}  // namespace millpond
