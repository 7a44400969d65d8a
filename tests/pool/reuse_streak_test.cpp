// Streams that run the same large sizes round and round take their own blocks back: counted, on
// sixteen threads that all miss their caches; and what they keep is there for whoever needs it.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "driver/null/null_driver.hpp"
#include "pool/cache/reuse_streak.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

constexpr std::array<std::uint64_t, 4> no_cache_keeps{5 * MiB, 9 * MiB, 17 * MiB, 33 * MiB};
constexpr std::uint64_t working_set = 64 * MiB;

// Once warm, sixteen threads whose every call misses its cache find no lock taken, record and ask
// no event, and touch no heap.
TEST(own_reuse, sixteen_threads_that_miss_at_once_meet_no_lock_no_event_and_no_heap) {
  constexpr int threads = 16;
#if defined(MILLPOND_AUDIT) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int rounds = 50;
#else
  constexpr int rounds = 1'000;
#endif
  auto gpu = std::make_shared<null_driver>();
  auto shared = *pool::create(gpu);
  std::atomic<int> arrived{0};
  std::atomic<bool> is_warm{false};
  const auto meet = [&](int times) {
    arrived.fetch_add(1);
    while (arrived.load() < times * threads) std::this_thread::yield();
  };
  pool_statistics before, after;
  std::uint64_t calls = 0;
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      stream_handle s = nullptr;
      ASSERT_TRUE(gpu->stream_create(&s).ok());
      auto cache = shared->cache(s);
      const auto round = [&](bool together) {
        std::array<void*, 4> live{};
        for (std::size_t k = 0; k < 4; ++k) live[k] = cache.allocate(no_cache_keeps[k]);
        if (together) meet(1);
        for (std::size_t k = 0; k < 4; ++k) cache.deallocate(live[k], no_cache_keeps[k]);
      };
      round(true);  // all of it is live once, so that nobody needs more later
      // Who comes late to its reuse streak may take away what others keep; it is warm when all have
      // theirs.
      int met = 1;
      for (bool warm = false; !warm && met < 100;) {
        meet(++met);
        if (t == 0) before = shared->statistics();
        meet(++met);
        for (int i = 0; i < 20; ++i) round(false);
        meet(++met);
        if (t == 0) is_warm = shared->statistics().heap_hits == before.heap_hits;
        meet(++met);
        warm = is_warm.load();
      }
      if (t == 0) {
        before = shared->statistics();
        gpu->reset_counters();
      }
      meet(++met);
      for (int i = 0; i < rounds; ++i) round(false);
      meet(++met);
      if (t == 0) {
        after = shared->statistics();
        calls = gpu->total_calls();
      }
      meet(++met);
    });
  }
  for (std::thread& t : all) t.join();
  EXPECT_EQ(after.thread_cache_hits, before.thread_cache_hits);  // each of them missed
  EXPECT_EQ(after.stream_cache_hits - before.stream_cache_hits,
            std::uint64_t{threads} * rounds * 4);
  EXPECT_EQ(after.heap_hits, before.heap_hits);
  EXPECT_EQ(after.lock_waits, before.lock_waits);
  EXPECT_EQ(after.seals, before.seals);
  EXPECT_EQ(after.fence_queries, before.fence_queries);
#if !defined(MILLPOND_AUDIT)  // which asks at each call by a handle whether its stream captures
  EXPECT_EQ(calls, 0u);
#endif
}

class pool_own_reuse : public pool_test {
 public:
  void round(stream_handle s, std::uint64_t busy_for = 0) {
    std::array<void*, 4> live{};
    for (std::size_t k = 0; k < 4; ++k) live[k] = take(no_cache_keeps[k], s);
    for (void* each : live) {
      if (busy_for != 0) work(each, s, busy_for);
    }
    for (void* each : live) give(each, s);
  }
  // Two streams, one of which has taken its own blocks back often enough to keep them.
  void a_keeps_its_own() {
    start();
    a = stream(), b = stream();
    others = take(80 * MiB, b);  // a stream keeps three quarters of all at most
    for (int i = 0; i < 20; ++i) round(a);
    const auto warm = p->statistics();
    for (int i = 0; i < 4; ++i) round(a);
    const auto then = p->statistics();
    EXPECT_EQ(then.seals, warm.seals);
    EXPECT_EQ(then.heap_hits, warm.heap_hits);
    EXPECT_GE(then.cached_bytes, working_set);
  }
  stream_handle a = nullptr, b = nullptr;
  void* others = nullptr;
};

// The other stream must not have the blocks while the first still works on them, which the checker
// watches.
TEST_F(pool_own_reuse, another_streams_need_takes_back_what_a_stream_keeps) {
  a_keeps_its_own();
  round(a, 500 * millisecond);
  void* const large = take(80 * MiB, b);  // more than is idle
  work(large, b, 1 * millisecond);
  EXPECT_LT(p->statistics().cached_bytes, 4 * MiB);
  give(take(512, a), a);  // it seals what it no longer keeps
  ok(gpu->stream_synchronize(a));
  const std::uint64_t reserved = p->statistics().peak_reserved_bytes;
  std::vector<void*> more;
  for (const std::uint64_t bytes : no_cache_keeps) more.push_back(take(bytes, b));
  EXPECT_LE(p->statistics().peak_reserved_bytes,
            reserved + working_set / 8);  // a's block of 512 bytes lies among it
  for (void* each : more) give(each, b);
  give(large, b);
  give(others, b);
  end_pool();
}

// It makes no call any more, in which it could seal what it no longer keeps.
TEST_F(pool_own_reuse, what_a_silent_stream_keeps_serves_another_once_its_work_is_done) {
  a_keeps_its_own();
  round(a, 5 * millisecond);
  ok(gpu->stream_synchronize(a));
  const std::uint64_t reserved = p->statistics().reserved_bytes;
  std::vector<void*> more;
  for (const std::uint64_t bytes : no_cache_keeps) {
    more.push_back(take(bytes, b));
    work(more.back(), b, millisecond);
    ok(gpu->stream_synchronize(b));  // the fence is behind all work
  }
  EXPECT_LE(p->statistics().reserved_bytes, reserved + working_set / 8);
  for (void* each : more) give(each, b);
  give(others, b);
  end_pool();
}

TEST_F(pool_own_reuse,
       without_fences_over_the_context_a_silent_stream_leaves_its_memory_to_others) {
  pool_options options;
  options.fences = context_fences::never;
  options.limit_bytes = 176 * MiB;
  start(std::move(options));
  a = stream(), b = stream();
  others = take(80 * MiB, b);
  for (int i = 0; i < 24; ++i) round(a);
  ok(gpu->stream_synchronize(a));
  void* const large = take(48 * MiB, b);
  EXPECT_NE(large, nullptr) << refusal.message;
  if (large != nullptr) give(large, b);
  give(others, b);
  end_pool();
}

// Not while that works on it, and not for a fence that could break a capture.
TEST_F(pool_own_reuse, what_a_silent_stream_keeps_is_not_fenced_while_a_capture_runs) {
  a_keeps_its_own();
  round(a, 5 * millisecond);
  const stream_handle c = stream();
  ok(gpu->capture_begin(c, capture_mode::relaxed));
  void* const captured = take(512, c);
  std::vector<void*> more;
  for (const std::uint64_t bytes : no_cache_keeps) {
    more.push_back(take(bytes, b));
    work(more.back(), b, millisecond);
  }
  give(captured, c);
  graph_handle graph = nullptr;
  ok(gpu->capture_end(c, &graph));
  ok(gpu->graph_destroy(graph));
  for (void* each : more) give(each, b);
  give(others, b);
  end_pool();
}

// The handle comes back for a new stream, whose work does not wait for what the old one still does.
TEST_F(pool_own_reuse, what_a_dead_stream_kept_waits_for_its_work) {
  a_keeps_its_own();
  round(a, 500 * millisecond);
  ok(gpu->stream_destroy(a));
  stream_handle next = nullptr;
  ok(gpu->stream_create(&next));
  for (int i = 0; i < 4; ++i) {
    for (const stream_handle s : {next, b}) {
      void* const x = take(no_cache_keeps[3], s);
      work(x, s, 1 * millisecond);
      give(x, s);
    }
  }
  give(others, b);
  end_pool();
}

TEST_F(pool_own_reuse, a_request_of_another_size_finds_all_that_the_stream_kept) {
  a_keeps_its_own();
  const std::uint64_t reserved = p->statistics().peak_reserved_bytes;
  void* const whole = take(60 * MiB, a);  // where the four lay
  EXPECT_EQ(p->statistics().peak_reserved_bytes, reserved);
  give(whole, a);
  give(others, b);
  end_pool();
}

TEST_F(pool_own_reuse, what_a_stream_kept_goes_back_with_its_last_cache) {
  start();
  a = stream(), b = stream();
  others = take(80 * MiB, b);
  {
    auto cache = p->cache(a);
    for (int i = 0; i < 20; ++i) {
      std::array<void*, 4> live{};
      for (std::size_t k = 0; k < 4; ++k) live[k] = cache.allocate(no_cache_keeps[k]);
      for (std::size_t k = 0; k < 4; ++k) cache.deallocate(live[k], no_cache_keeps[k]);
    }
    EXPECT_GE(p->statistics().cached_bytes, working_set);
  }
  EXPECT_LT(p->statistics().cached_bytes, 4 * MiB);
  give(others, b);
  end_pool();
}

TEST_F(pool_own_reuse, a_stream_whose_sizes_vary_keeps_nothing) {
  start();
  a = stream(), b = stream();
  give(take(512, b), b);
  for (std::uint64_t i = 0; i < 200; ++i) {
    void* const x = take(5 * MiB + i % 50 * 64 * KiB, a);
    void* const y = take(9 * MiB + i % 7 * 64 * KiB, a);
    give(x, a);
    give(y, a);
    ASSERT_LT(p->statistics().cached_bytes, 4 * MiB) << i;
  }
  end_pool();
}

TEST_F(pool_own_reuse, options_that_say_what_a_cache_keeps_leave_no_streak) {
  pool_options options;
  options.cache_large_bytes = 1 * MiB;
  start(std::move(options));
  a = stream(), b = stream();
  give(take(512, b), b);
  for (int i = 0; i < 40; ++i) {
    round(a);
    ASSERT_LT(p->statistics().cached_bytes, 4 * MiB) << i;
  }
  end_pool();
}

TEST(reuse_streak, is_given_for_a_row_of_sizes_that_came_back_and_ends_with_one_that_did_not) {
  reuse_streak streak;
  const auto back = [&](std::uint32_t times) {
    for (std::uint32_t i = 0; i < times; ++i) {
      streak.gone(MiB * (1 + i % 3));
      streak.missed(MiB * (1 + i % 3));
    }
  };
  back(reuse_streak::worth_keeping - 1);
  EXPECT_FALSE(streak.given());
  back(1);
  EXPECT_TRUE(streak.given());
  streak.missed(7 * MiB);
  EXPECT_FALSE(streak.given());
  back(reuse_streak::worth_keeping - 1);
  EXPECT_FALSE(streak.given());
  back(1);
  EXPECT_TRUE(streak.given());
}

TEST(reuse_streak, one_free_is_worth_one_request) {
  reuse_streak streak;
  for (std::uint32_t i = 0; i < 2 * reuse_streak::worth_keeping; ++i) {
    streak.gone(MiB);
    streak.missed(MiB);
    streak.missed(MiB);
  }
  EXPECT_FALSE(streak.given());
}

}  // namespace
}  // namespace millpond
