// The pool's books: statistics, the limit, trim, the kinds, and memory that does not grow with
// churn.
#include <array>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

class pool_books : public pool_test {};

TEST_F(pool_books, statistics_are_exact_when_quiet) {
  start();
  const stream_handle a = stream(), b = stream();
  std::uint64_t live = 0, blocks = 0, allocations = 0, frees = 0;
  std::vector<std::pair<void*, std::uint64_t>> all;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const std::uint64_t bytes = 1 + (i * 7919) % (700 * KiB);
    all.emplace_back(take(bytes, i % 3 == 0 ? a : b), bytes);
    live += bytes;
    ++blocks, ++allocations;
    if (i % 3 == 2) {
      const std::size_t which = (i * 31) % all.size();
      give(all[which].first, i % 2 == 0 ? a : b);
      live -= all[which].second;
      --blocks, ++frees;
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(which));
    }
    const pool_statistics s = now();
    ASSERT_EQ(s.live_bytes, live);
    ASSERT_EQ(s.live_blocks, blocks);
    ASSERT_EQ(s.allocations, allocations);
    ASSERT_EQ(s.deallocations, frees);
    ASSERT_EQ(s.reserved_bytes, gpu->physical_bytes());
    ASSERT_LE(s.thread_cache_hits + s.stream_cache_hits + s.heap_hits, allocations + 1);
    // Every byte reserved is in one place: live (rounded up), kept by a cache, pending or idle.
    ASSERT_LE(s.live_bytes + s.cached_bytes + s.pending_bytes + s.idle_bytes, s.mapped_bytes);
  }
  for (const auto& [ptr, bytes] : all) give(ptr, a);
  const pool_statistics s = now();
  EXPECT_EQ(s.live_bytes, 0u);
  EXPECT_EQ(s.live_blocks, 0u);
  EXPECT_EQ(s.cached_bytes + s.pending_bytes + s.idle_bytes, s.reserved_bytes)
      << s.cached_bytes << " " << s.pending_bytes << " " << s.idle_bytes << " mapped "
      << s.mapped_bytes;
  EXPECT_EQ(s.streams, 2u);
}

// Streams that fall silent leave frees behind that no fence covers, where a fence over the context
// may not be made.
TEST_F(pool_books, after_a_wait_for_the_device_all_that_was_freed_goes_back) {
  pool_options options;
  options.fences = context_fences::never;
  start(options);
  const stream_handle a = stream(), b = stream();
  void* const x = take(50 * MiB, a);
  void* const y = take(70 * MiB, b);
  work(x, a, 10 * millisecond);
  work(y, b, 10 * millisecond);
  give(x, a);
  give(y, b);
  p->trim(0);
  EXPECT_GE(now().reserved_bytes, 120 * MiB) << "nothing tells that the streams have passed";
  const auto waited = p->synchronize();
  ASSERT_TRUE(waited.has_value()) << waited.error().message;
  EXPECT_GE(now().idle_bytes, 120 * MiB);
  p->trim(0);
  EXPECT_EQ(now().reserved_bytes, 0u);
}

// Slack and caches are shares of the peak: a program that has given everything back must not be
// allowed the slack of before.
TEST_F(pool_books, after_a_trim_to_nothing_the_pool_is_as_tight_as_a_new_one) {
  start();
  const stream_handle a = stream();
  const auto reserved_by_some_work = [&] {
    std::mt19937 random(7);
    std::vector<void*> live;
    p->reset_peak_reserved();
    for (int step = 0; step < 600; ++step) {
      if (live.size() < 8 || (live.size() < 16 && random() % 2 == 0)) {
        live.push_back(take(1 + random() % (12 * MiB), a));
      } else {
        std::swap(live[random() % live.size()], live.back());
        give(live.back(), a);
        live.pop_back();
      }
    }
    for (void* const each : live) give(each, a);
    return now().peak_reserved_bytes;
  };
  const std::uint64_t in_a_new_pool = reserved_by_some_work();
  give(take(700 * MiB, a), a);
  const std::uint64_t peak = now().peak_out_bytes;
  trim();
  ASSERT_EQ(now().reserved_bytes, 0u);
  EXPECT_EQ(reserved_by_some_work(), in_a_new_pool);
  EXPECT_EQ(now().peak_out_bytes, peak) << "what the program ever had out stays reported";
}

TEST_F(pool_books, trim_gives_back_everything_idle) {
  start();
  const stream_handle a = stream(), b = stream();
  std::vector<void*> all;
  for (int i = 0; i < 200; ++i)
    all.push_back(
        take((1 + static_cast<std::uint64_t>(i) * 37 % 300) * 64 * KiB, i % 2 == 0 ? a : b));
  EXPECT_GT(now().reserved_bytes, 0u);
  for (std::size_t i = 0; i < all.size(); ++i) give(all[i], i % 2 == 0 ? a : b);
  const std::uint64_t reserved = now().reserved_bytes;
  EXPECT_EQ(trim(), reserved);
  EXPECT_EQ(now().reserved_bytes, 0u);
  EXPECT_EQ(gpu->physical_bytes(), 0u);
  void* const again = take(1 * MiB, a);
  EXPECT_NE(again, nullptr);
  give(again, a);
}

TEST_F(pool_books, trim_keeps_as_much_as_it_is_reported) {
  start();
  const stream_handle a = stream();
  std::vector<void*> all;
  for (int i = 0; i < 20; ++i) all.push_back(take(40 * MiB, a));
  for (void* x : all) give(x, a);
  const std::uint64_t before = now().reserved_bytes;
  const std::uint64_t given = trim(300 * MiB);
  EXPECT_EQ(now().reserved_bytes, before - given);
  EXPECT_GE(now().reserved_bytes, 300 * MiB);
  EXPECT_LE(now().reserved_bytes, 350 * MiB);
  EXPECT_EQ(trim(~std::uint64_t{0}), 0u);
}

TEST_F(pool_books, trim_never_waits_and_leaves_what_is_pending) {
  start();
  const stream_handle a = stream(), b = stream();
  void* const busy = take(100 * MiB, a);
  void* const idle = take(100 * MiB, b);
  work(busy, a, 1000 * millisecond);
  give(busy, a);
  give(idle, b);
  const std::uint64_t before = gpu->now_ns();
  const std::uint64_t waits = gpu->device_waits();
  trim();
  EXPECT_LT(gpu->now_ns() - before, 50 * millisecond);
  EXPECT_EQ(gpu->device_waits(), waits);
  EXPECT_GE(now().reserved_bytes, 100 * MiB);
  gpu->advance(2000 * millisecond);
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
}

// What was idle is joined with what is freed beside it while one stream is known, so that more lies
// unfenced than was freed since the last fence.
TEST_F(pool_books, a_second_stream_finds_what_the_first_left_with_all_that_was_joined_to_it) {
  start();
  const stream_handle first = stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(take(100 * MiB, first));
  for (void* const block : blocks) give(block, first);
  ASSERT_TRUE(p->synchronize());
  give(take(6 * MiB, first), first);
  const std::uint64_t before = now().reserved_bytes;
  const stream_handle second = stream();
  void* const block = take(500 * MiB, second);
  EXPECT_NE(block, nullptr);
  EXPECT_EQ(now().reserved_bytes, before);
  give(block, second);
}

// A stream that makes no call any more cannot be asked: what it freed last must serve a newcomer
// all the same.
TEST_F(pool_books, what_a_silent_stream_left_serves_the_next_one) {
  start();
  std::uint64_t first = 0;
  for (int round = 0; round < 4; ++round) {
    const stream_handle s = stream();
    std::thread([&] {  // its cache goes with it, and the stream is never seen again
      std::vector<void*> all;
      for (int n = 0; n < 20; ++n) all.push_back(take(20 * MiB, s));
      for (void* const each : all) give(each, s);
    })
        .join();
    gpu->advance(1 * millisecond);
    if (round == 0) first = now().reserved_bytes;
  }
  EXPECT_LE(now().reserved_bytes, first + first / 8);
}

TEST_F(pool_books, the_limit_is_never_passed_and_is_reached) {
  pool_options options;
  options.limit_bytes = 256 * MiB;
  options.max_wait_ns = 0;
  start(options);
  const stream_handle a = stream();
  std::vector<void*> all;
  while (void* const x = take(10 * MiB, a)) all.push_back(x);
  EXPECT_EQ(refusal.code, error_code::out_of_memory);
  EXPECT_NE(refusal.message.find("limit"), std::string::npos) << refusal.message;
  EXPECT_LE(now().reserved_bytes, 256 * MiB);
  EXPECT_GE(all.size(), 25u);
  for (void* x : all) give(x, a);
  void* const big = take(256 * MiB, a);
  EXPECT_NE(big, nullptr) << refusal.message;
  give(big, a);
  EXPECT_EQ(take(257 * MiB, a), nullptr);
}

TEST_F(pool_books, initial_bytes_are_there_from_the_start) {
  pool_options options;
  options.initial_bytes = 500 * MiB;
  start(options);
  EXPECT_GE(now().reserved_bytes, 500 * MiB);
  const stream_handle a = stream();
  const std::uint64_t made = gpu->calls("cuMemCreate");
  void* const x = take(400 * MiB, a);
  EXPECT_EQ(gpu->calls("cuMemCreate"), made);
  give(x, a);
}

TEST_F(pool_books, initial_bytes_beyond_the_limit_or_the_device_are_refused_and_nothing_is_left) {
  make(steady());
  pool_options options;
  options.initial_bytes = 2 * GiB;
  options.limit_bytes = 1 * GiB;
  auto made = pool::create(gpu, options);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, error_code::out_of_memory) << made.error().message;
  options.limit_bytes = 0;
  options.initial_bytes = 2 * gpu->info().total_bytes;
  made = pool::create(gpu, options);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, error_code::out_of_memory) << made.error().message;
}

TEST_F(pool_books, options_that_make_no_sense_are_refused) {
  make(steady());
  pool_options options;
  options.kind = memory_kind::pageable;
  EXPECT_FALSE(pool::create(gpu, options).has_value());
  options.kind = memory_kind::driver_pool;
  EXPECT_FALSE(pool::create(gpu, options).has_value());
  options = {};
  options.slack = -1;
  EXPECT_FALSE(pool::create(gpu, options).has_value());
  options.slack = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(pool::create(gpu, options).has_value());
  EXPECT_FALSE(pool::create(nullptr, {}).has_value());
}

TEST_F(pool_books, pinned_and_managed_pools_give_memory_of_their_kind) {
  for (const memory_kind kind : {memory_kind::pinned, memory_kind::managed}) {
    pool_options options;
    options.kind = kind;
    start(options);
    EXPECT_EQ(p->kind(), kind);
    EXPECT_TRUE(p->host_accessible());
    const stream_handle a = stream();
    std::vector<void*> all;
    for (int i = 0; i < 50; ++i) {
      const std::uint64_t bytes = (1 + static_cast<std::uint64_t>(i)) * 100 * KiB;
      void* const x = take(bytes, a);
      ASSERT_NE(x, nullptr) << refusal.message;
      if (kind == memory_kind::pinned) std::memset(x, i, bytes);
      all.push_back(x);
    }
    for (std::size_t i = 0; i < all.size() && kind == memory_kind::pinned; ++i) {
      EXPECT_EQ(static_cast<unsigned char*>(all[i])[100 * KiB * i], i);
    }
    for (void* x : all) give(x, a);
    EXPECT_EQ(now().live_bytes, 0u);
    end_pool();
  }
}

TEST_F(pool_books, churn_on_one_stream_makes_no_driver_call_but_the_two_questions) {
  start();
  const stream_handle a = stream();
  for (int warm = 0; warm < 3; ++warm) {
    std::vector<void*> all;
    for (std::uint64_t i = 1; i <= 40; ++i) all.push_back(take(i * 30 * KiB, a));
    for (void* x : all) give(x, a);
  }
  gpu->reset_counters();
  for (int round = 0; round < 20; ++round) {
    std::vector<void*> all;
    for (std::uint64_t i = 1; i <= 40; ++i) all.push_back(take(i * 30 * KiB, a));
    for (void* x : all) give(x, a);
  }
  EXPECT_EQ(gpu->calls("cuStreamGetId"), 800u);
  EXPECT_EQ(gpu->calls("cuStreamGetCaptureInfo"), 800u);
  EXPECT_EQ(gpu->calls("cuMemCreate") + gpu->calls("cuMemMap") + gpu->calls("cuMemUnmap"), 0u);
  EXPECT_EQ(gpu->calls("cuEventRecord") + gpu->calls("cuEventQuery"), 0u)
      << "one stream has nobody to tell";
}

TEST_F(pool_books, thousands_of_streams_come_and_go_in_bounded_state) {
  pool_options options;
  start(options);
  const stream_handle steady_stream = stream();
  give(take(1 * MiB, steady_stream), steady_stream);
  std::uint64_t most_streams = 0, most_metadata = 0;
  std::vector<stream_handle> alive;
  for (int i = 0; i < 3000; ++i) {
    stream_handle s = nullptr;
    ok(gpu->stream_create(&s));
    alive.push_back(s);
    void* const x = take((1 + static_cast<std::uint64_t>(i) % 50) * 20 * KiB, s);
    ASSERT_NE(x, nullptr);
    work(x, s, 50 * microsecond);
    give(x, s);
    if (alive.size() > 8) {
      ok(gpu->stream_destroy(alive.front()));
      alive.erase(alive.begin());
    }
    gpu->advance(20 * microsecond);
    if (i % 100 == 99) {
      most_streams = std::max(most_streams, now().streams);
      if (i < 1000) most_metadata = std::max(most_metadata, now().metadata_bytes);
    }
  }
  EXPECT_LE(most_streams, 200u);
  EXPECT_LE(now().thread_caches, 200u);
  EXPECT_LE(now().metadata_bytes, most_metadata * 2);
  EXPECT_LE(now().reserved_bytes, 200 * MiB);
  for (stream_handle s : alive) ok(gpu->stream_destroy(s));
  gpu->advance(10 * millisecond);
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
}

// Handles that do not come back: the pool must notice dead streams without them.
TEST_F(pool_books, streams_destroyed_for_good_are_forgotten) {
  start();
  std::vector<stream_handle> all;
  for (int i = 0; i < 500; ++i) {
    stream_handle s = nullptr;
    ok(gpu->stream_create(&s));
    all.push_back(s);
    give(take(64 * KiB, s), s);
  }
  for (stream_handle s : all) ok(gpu->stream_destroy(s));
  gpu->advance(10 * millisecond);
  const stream_handle a = stream();
  give(take(64 * KiB, a), a);
  trim();
  give(take(64 * KiB, a), a);
  const stream_handle b = stream();
  give(take(64 * KiB, b), b);
  trim();
  EXPECT_LE(now().streams, 150u);
  EXPECT_EQ(now().reserved_bytes, 0u);
}

TEST_F(pool_books, per_thread_streams_of_ended_threads_are_forgotten) {
  start();
  const stream_handle a = stream();
  give(take(512, a), a);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([this] {
        void* const x = p->allocate(100 * KiB, per_thread_stream);
        p->deallocate(x, 100 * KiB, per_thread_stream);
      });
    }
    for (std::thread& t : threads) t.join();
  }
  gpu->advance(10 * millisecond);
  give(take(512, a), a);
  EXPECT_LE(now().streams, 150u);
  EXPECT_LE(now().thread_caches, 3u);
  trim();
  EXPECT_LE(now().streams, 3u);
  EXPECT_EQ(now().reserved_bytes, 0u);
}

}  // namespace
}  // namespace millpond
