// Real threads over a driver without a lock, so that nothing but the pool orders them.
// ThreadSanitizer looks for races in the pool's books; the blocks are real host memory where the
// kind allows, and hold their owner's mark.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/random.hpp"
#include "driver/null/null_driver.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pool/pool.hpp"
#include "support/forwarding_driver.hpp"

namespace millpond {
namespace {

#if defined(MILLPOND_AUDIT)
constexpr int operations = 400;  // each walks through the whole heap
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int operations = 1'600;
#else
constexpr int operations = 20'000;
#endif
constexpr int threads = 8;
constexpr int stream_count = 16;

struct block {
  void* at = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t mark = 0;
};

// Host memory comes in chunks that are really there, rather than as addresses.
class chunked_driver final : public forwarding_driver {
 public:
  explicit chunked_driver(std::shared_ptr<driver> to) : forwarding_driver(to), info_(to->info()) {
    info_.host_granularity = 0;
  }
  const device_info& info() const noexcept override { return info_; }

 private:
  device_info info_;
};

// Blocks on their way to another thread that will free them.
class shared_blocks {
 public:
  void put(block b) {
    const std::lock_guard lock(mutex_);
    blocks_.push_back(b);
  }
  std::vector<block> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(blocks_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<block> blocks_;
};

class churn {
 public:
  churn(pool_options options, std::uint32_t queries_until_done)
      : host_(options.kind != memory_kind::device),
        gpu_(std::make_shared<null_driver>(null_driver::settings{64 * GiB, queries_until_done})) {
    auto made = pool::create(std::make_shared<chunked_driver>(gpu_), std::move(options));
    EXPECT_TRUE(made.has_value()) << made.error().message;
    pool_ = *made;
    pool_->set_error_sink([this](const error& e) {
      errors_.fetch_add(1);
      ADD_FAILURE() << e.message;
    });
    for (stream_handle& s : streams_) EXPECT_TRUE(gpu_->stream_create(&s).ok());
  }

  void run(std::uint64_t largest) {
    std::atomic<bool> stop{false};
    std::thread watcher([&] {
      std::uint64_t seen = 0;
      while (!stop.load()) {
        const pool_statistics s = pool_->statistics();
        EXPECT_GE(s.allocations, seen) << "a count never falls";
        seen = s.allocations;
        if (seen % 3 == 0) pool_->trim(seen % 2 == 0 ? 0 : 64 * MiB);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([this, t, largest] {
        // Threads that come and go: each is four threads, one after another.
        for (int life = 0; life < 4; ++life) {
          std::thread([&] { work(static_cast<std::uint64_t>(t * 4 + life), largest); }).join();
        }
      });
    }
    for (std::thread& t : all) t.join();
    stop = true;
    watcher.join();
    for (shared_blocks& box : boxes_) {
      for (const block& b : box.take()) free(b, streams_[0]);
    }
    pool_->check();
    const pool_statistics end = pool_->statistics();
    EXPECT_EQ(end.live_blocks, 0u);
    EXPECT_EQ(end.live_bytes, 0u);
    EXPECT_EQ(end.allocations, allocated_.load());
    EXPECT_EQ(end.deallocations, allocated_.load());
    EXPECT_LE(end.thread_caches, static_cast<std::uint64_t>(stream_count));
    EXPECT_EQ(overlaps_.load(), 0u);
    EXPECT_EQ(errors_.load(), 0u);
    // What seals and polls are still to come come with trims.
    for (int i = 0; i < 20'000 && pool_->statistics().reserved_bytes != 0 && !host_; ++i)
      pool_->trim();
    if (!host_) {
      EXPECT_EQ(pool_->statistics().reserved_bytes, 0u);
    }
    pool_.reset();
    EXPECT_EQ(gpu_->calls("cuEventCreate"), gpu_->calls("cuEventDestroy"));
    EXPECT_EQ(gpu_->calls("cuMemCreate"), gpu_->calls("cuMemRelease"));
    EXPECT_EQ(gpu_->calls("cuMemMap"), gpu_->calls("cuMemUnmap"));
  }

 private:
  void mark(const block& b) {
    if (!host_) return;
    std::memcpy(b.at, &b.mark, 8);
    if (b.bytes >= 16) std::memcpy(static_cast<char*>(b.at) + b.bytes - 8, &b.mark, 8);
  }
  void check(const block& b) {
    if (!host_) return;
    std::uint64_t first = 0, last = b.mark;
    std::memcpy(&first, b.at, 8);
    if (b.bytes >= 16) std::memcpy(&last, static_cast<char*>(b.at) + b.bytes - 8, 8);
    if (first != b.mark || last != b.mark) overlaps_.fetch_add(1);
  }
  void free(const block& b, stream_handle s) {
    check(b);
    pool_->deallocate(b.at, b.bytes, s);
  }

  void work(std::uint64_t seed, std::uint64_t largest) {
    random numbers(seed + 1);
    std::vector<block> mine;
    auto cache = pool_->cache(streams_[seed % stream_count]);
    for (int i = 0; i < operations / 4; ++i) {
      const stream_handle s =
          numbers.below(16) == 0 ? per_thread_stream : streams_[numbers.below(stream_count)];
      const std::uint64_t what = numbers.below(100);
      if (what < 50 || mine.empty()) {
        const std::uint64_t bytes =
            8 + numbers.below(std::uint64_t{1} << (4 + numbers.below(largest)));
        block b{nullptr, bytes, (seed << 32) | static_cast<std::uint64_t>(i)};
        if (what < 15) {
          try {
            b.at = cache.allocate(bytes);
          } catch (const out_of_memory&) {
          }
        } else if (auto got = pool_->try_allocate(bytes, 512, s)) {
          b.at = *got;
        }
        if (b.at == nullptr) continue;
        allocated_.fetch_add(1, std::memory_order_relaxed);
        mark(b);
        mine.push_back(b);
        if (mine.size() > 24) {
          free(mine.front(), s);
          mine.erase(mine.begin());
        }
        continue;
      }
      const std::size_t at = numbers.below(mine.size());
      const block b = mine[at];
      if (what < 55) {
        EXPECT_TRUE(pool_->record_use(b.at, s).has_value());
        continue;
      }
      if (what < 57) {
        EXPECT_TRUE(pool_->find(static_cast<char*>(b.at) + b.bytes - 1).has_value());
        continue;
      }
      mine[at] = mine.back();
      mine.pop_back();
      if (what < 70) {
        boxes_[numbers.below(threads)].put(b);
        for (const block& other : boxes_[seed % threads].take()) free(other, s);
      } else if (what < 80) {
        check(b);
        cache.deallocate(b.at, b.bytes);
      } else {
        free(b, s);
      }
    }
    for (const block& b : mine) free(b, streams_[0]);
  }

  const bool host_;
  std::shared_ptr<null_driver> gpu_;
  std::shared_ptr<pool> pool_;
  std::array<stream_handle, stream_count> streams_{};
  std::array<shared_blocks, threads> boxes_;
  std::atomic<std::uint64_t> allocated_{0}, overlaps_{0}, errors_{0};
};

TEST(pool_threads, churn_on_device_memory) {
  churn({}, 0).run(20);
}

TEST(pool_threads, churn_with_fences_that_take_a_while) {
  churn({}, 5).run(22);
}

TEST(pool_threads, churn_on_pinned_memory_keeps_every_owners_mark) {
  pool_options options;
  options.kind = memory_kind::pinned;
  churn(options, 3).run(18);
}

TEST(pool_threads, churn_under_pressure_flushes_other_threads_caches) {
  pool_options options;
  options.limit_bytes = 160 * MiB;
  churn(options, 2).run(22);
}

TEST(pool_threads, churn_with_streams_that_keep_to_themselves) {
  pool_options options;
  options.reuse = reuse_policy::same_stream;
  churn(options, 1).run(20);
}

TEST(pool_threads, churn_with_streams_that_may_wait) {
  pool_options options;
  options.reuse = reuse_policy::may_wait;
  churn(options, 1).run(22);
}

TEST(pool_threads, pools_end_while_other_threads_keep_caches_of_them) {
  auto gpu = std::make_shared<null_driver>();
  stream_handle s = nullptr;
  ASSERT_TRUE(gpu->stream_create(&s).ok());
  std::atomic<int> round{0};
  std::mutex mutex;
  std::shared_ptr<pool> current = *pool::create(gpu);
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([&] {
      while (round.load() < 20) {
        std::shared_ptr<pool> now;
        {
          const std::lock_guard lock(mutex);
          now = current;
        }
        for (int i = 0; i < 20; ++i) now->deallocate(now->allocate(4 * KiB, s), 4 * KiB, s);
      }
    });
  }
  for (; round.load() < 20; round.fetch_add(1)) {
    auto fresh = *pool::create(gpu);
    const std::lock_guard lock(mutex);
    current.swap(fresh);
  }
  for (std::thread& t : all) t.join();
}

// Once warm, pairs on many threads find no lock taken and ask the driver nothing by cache handle.
TEST(pool_threads, warm_pairs_on_many_threads_meet_no_lock_and_no_driver) {
  auto gpu = std::make_shared<null_driver>();
  auto shared = *pool::create(gpu);
  constexpr std::array<std::uint64_t, 4> sizes{4 * KiB, 64 * KiB, 1 * MiB, 3 * MiB};
  std::atomic<int> warm{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&] {
      stream_handle s = nullptr;
      ASSERT_TRUE(gpu->stream_create(&s).ok());
      auto cache = shared->cache(s);
      const auto pairs = [&](int count) {
        for (int i = 0; i < count; ++i)
          cache.deallocate(cache.allocate(sizes[static_cast<std::size_t>(i) % 4]),
                           sizes[static_cast<std::size_t>(i) % 4]);
      };
      pairs(8);
      warm.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      pairs(operations);
      warm.fetch_add(1);
      while (go.load()) std::this_thread::yield();
    });
  }
  while (warm.load() != threads) std::this_thread::yield();
  const pool_statistics before = shared->statistics();
  gpu->reset_counters();
  go.store(true);
  while (warm.load() != 2 * threads) std::this_thread::yield();
  const pool_statistics after = shared->statistics();
#if defined(MILLPOND_AUDIT)
  // The audit build asks at each call by a handle whether its stream captures, and nothing else.
  EXPECT_EQ(gpu->total_calls(), 2 * static_cast<std::uint64_t>(threads) * operations);
#else
  EXPECT_EQ(gpu->total_calls(), 0u);
#endif
  go.store(false);
  for (std::thread& t : all) t.join();
  EXPECT_EQ(after.allocations - before.allocations,
            static_cast<std::uint64_t>(threads) * operations);
  EXPECT_EQ(after.thread_cache_hits - before.thread_cache_hits,
            static_cast<std::uint64_t>(threads) * operations);
  EXPECT_EQ(after.lock_waits, before.lock_waits);
  // 4 KiB to 3 MiB of each thread's, and no more than a cache may keep.
  EXPECT_LE(after.cached_bytes, static_cast<std::uint64_t>(threads) * 5 * MiB);
}

// What one thread frees the other allocates again, through a remote_free_queue or the stream's
// stream cache: in step, the heap serves none of it.
TEST(pool_threads, blocks_freed_on_another_thread_come_back_without_the_heap) {
  auto gpu = std::make_shared<null_driver>();
  auto shared = *pool::create(gpu);
  constexpr std::array<std::uint64_t, 4> sizes{4 * KiB, 64 * KiB, 1 * MiB, 3 * MiB};
  stream_handle s = nullptr;
  ASSERT_TRUE(gpu->stream_create(&s).ok());
  constexpr int rounds = 2'000;  // half of it fills the consumer's cache with small blocks
  std::array<void*, 4> handed{};
  std::atomic<int> turn{0};  // even: the producer's
  std::uint64_t heap_hits_when_warm = 0;
  std::thread consumer([&] {
    auto cache = shared->cache(s);
    for (int i = 0; i < rounds; ++i) {
      while (turn.load() != 2 * i + 1) std::this_thread::yield();
      for (std::size_t k = 0; k < 4; ++k) cache.deallocate(handed[k], sizes[k]);
      turn.store(2 * i + 2);
    }
  });
  {
    auto cache = shared->cache(s);
    for (int i = 0; i < rounds; ++i) {
      while (turn.load() != 2 * i) std::this_thread::yield();
      if (i == rounds / 2) heap_hits_when_warm = shared->statistics().heap_hits;
      for (std::size_t k = 0; k < 4; ++k) handed[k] = cache.allocate(sizes[k]);
      turn.store(2 * i + 1);
    }
    consumer.join();
    const pool_statistics end = shared->statistics();
    EXPECT_EQ(end.heap_hits, heap_hits_when_warm);
    EXPECT_GT(end.stream_cache_hits, static_cast<std::uint64_t>(rounds) / 2);
    EXPECT_EQ(end.live_blocks, 0u);
  }
}

}  // namespace
}  // namespace millpond
