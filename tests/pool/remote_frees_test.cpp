// Blocks that one cache hands out and another frees: back to the first where both are of one
// stream, never where not, and lost nowhere when either goes.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "support/cache_fixture.hpp"

namespace millpond {
namespace {

class pool_remote_frees : public cache_test {
 protected:
  // As many blocks as make a way between the two.
  void make_way(pool::cache_handle& from, pool::cache_handle& to) {
    hand_over(from, to, 3 * MiB, 40);
  }
};

TEST_F(pool_remote_frees,
       what_another_cache_of_the_stream_frees_comes_back_to_the_one_that_handed_it_out) {
  start();
  const stream_handle s = stream();
  auto producer = p->cache(s);
  auto consumer = p->cache(s);
  make_way(producer, consumer);
  constexpr std::array<std::uint64_t, 4> sizes{4 * KiB, 64 * KiB, 1 * MiB, 3 * MiB};
  std::array<void*, 4> first{};
  gpu->advance(millisecond);
  trim(1 * GiB);  // nothing of those is left in the caches
  for (std::size_t k = 0; k < 4; ++k) first[k] = take_from(producer, sizes[k]);
  std::array<void*, 2> more{take_from(producer, 4 * MiB), take_from(producer, 4 * MiB)};
  for (std::size_t k = 0; k < 4; ++k) give_to(consumer, first[k], sizes[k]);
  for (void* x : more) give_to(consumer, x, 4 * MiB);  // what makes it worth sending
  EXPECT_GE(now().cached_bytes, 4 * MiB + 68 * KiB);
  const std::uint64_t heap_hits = now().heap_hits;
  // The consumer has none of them, the producer all (of the smallest it has others, which come
  // first).
  void* const other = take_from(consumer, sizes[3]);
  EXPECT_NE(other, first[3]);
  give_to(consumer, other, sizes[3]);
  for (std::size_t k = 0; k < 4; ++k) {
    void* const again = take_from(producer, sizes[k]);
    if (k > 0) {
      EXPECT_EQ(again, first[k]);
    }
    first[k] = again;
  }
  EXPECT_LE(now().heap_hits, heap_hits + 1) << "the consumer's own at most";
  for (std::size_t k = 0; k < 4; ++k) give_to(producer, first[k], sizes[k]);
}

// Whoever counts opens the remote frees of a cache that takes nothing.
TEST_F(pool_remote_frees, counting_again_and_again_loses_nothing_of_a_cache_that_only_receives) {
  start();
  const stream_handle s = stream();
  auto producer = p->cache(s);
  auto consumer = p->cache(s);
  make_way(producer, consumer);
  std::vector<void*> blocks(700);
  for (void*& b : blocks) b = take_from(producer, 4 * KiB);
  const std::set<void*> first(blocks.begin(), blocks.end());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    give_to(consumer, blocks[i], 4 * KiB);
    if (i % 50 == 49) static_cast<void>(now());
  }
  EXPECT_EQ(now().live_blocks, 0u);
  for (void*& b : blocks) b = take_from(producer, 4 * KiB);
  EXPECT_EQ(std::set<void*>(blocks.begin(), blocks.end()).size(), blocks.size())
      << "one block was handed out twice";
  for (void* b : blocks) give_to(producer, b, 4 * KiB);
  EXPECT_EQ(now().live_blocks, 0u);
}

TEST_F(pool_remote_frees, caches_of_two_streams_have_no_way) {
  start();
  const stream_handle a = stream(), b = stream();
  auto producer = p->cache(a);
  auto consumer = p->cache(b);
  for (int i = 0; i < 60; ++i) {
    void* const x = take_from(producer, 1 * MiB);
    work(x, b, 10 * millisecond);
    give_to(consumer, x, 1 * MiB);
    // Had it come back to a, the checker would see a reuse before b is done.
    void* const y = take_from(producer, 1 * MiB);
    work(y, a, microsecond);
    give_to(producer, y, 1 * MiB);
  }
  EXPECT_EQ(now().live_blocks, 0u);
}

TEST_F(pool_remote_frees, either_cache_may_go_with_blocks_on_their_way) {
  start();
  const stream_handle s = stream();
  for (const bool the_sender_goes : {true, false}) {
    std::optional<pool::cache_handle> producer(p->cache(s));
    std::optional<pool::cache_handle> consumer(p->cache(s));
    make_way(*producer, *consumer);
    std::vector<void*> sent, kept;
    for (int i = 0; i < 10; ++i) kept.push_back(take_from(*producer, 64 * KiB));
    for (int i = 0; i < 10; ++i) sent.push_back(take_from(*producer, 1 * MiB));
    for (void* x : sent) give_to(*consumer, x, 1 * MiB);
    if (the_sender_goes) {
      consumer.reset();
      for (void* x : kept) give_to(*producer, x, 64 * KiB);
    } else {
      producer.reset();
      for (void* x : kept) give_to(*consumer, x, 64 * KiB);
    }
    p->check();
    EXPECT_EQ(now().live_blocks, 0u);
  }
  EXPECT_EQ(now().thread_caches, 0u);
  gpu->advance(millisecond);
  trim();
  EXPECT_EQ(now().cached_bytes, 0u);
  EXPECT_EQ(now().reserved_bytes, 0u);
}

TEST_F(pool_remote_frees, trim_empties_the_queues_of_caches_that_stay) {
  start();
  const stream_handle s = stream();
  auto producer = p->cache(s);
  auto consumer = p->cache(s);
  make_way(producer, consumer);
  EXPECT_GT(now().cached_bytes, 0u);
  gpu->advance(millisecond);
  trim();
  EXPECT_EQ(now().cached_bytes, 0u);
  EXPECT_EQ(now().reserved_bytes, 0u);
  make_way(producer, consumer);
}

TEST_F(pool_remote_frees, a_queue_keeps_no_more_than_sixteen_times_what_a_cache_may) {
  start();
  const stream_handle s = stream();
  auto producer = p->cache(s);
  auto consumer = p->cache(s);
  make_way(producer, consumer);
  std::vector<void*> all;
  for (int i = 0; i < 200; ++i) all.push_back(take_from(producer, 2 * MiB));
  for (void* x : all) give_to(consumer, x, 2 * MiB);
  // The queue, the stream cache and two caches.
  EXPECT_LE(now().cached_bytes, (64 + 16 + 2 * 5) * MiB);
}

// The remote frees of a stream that was destroyed with work pending belong to its frees, not to
// the stream that got its handle.
TEST_F(pool_remote_frees, remote_frees_of_a_dead_stream_wait_for_its_work) {
  start();
  const stream_handle other = stream();
  give(take(512, other), other);
  stream_handle s = nullptr;
  ok(gpu->stream_create(&s));
  {
    auto consumer = p->cache(s);
    std::vector<void*> all;
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 24; ++i) all.push_back(take(1 * MiB, s));
      for (void* x : all) {
        work(x, s, 5 * millisecond);
        gpu->note_free(reinterpret_cast<device_address>(x), 1 * MiB, s, "cache");
        const simulated_gpu::library_scope library;
        const handle_watch::serving call(s);
        consumer.deallocate(x, 1 * MiB);
      }
      all.clear();
    }
    ok(gpu->stream_destroy(s));
    ok(gpu->stream_create(&s));
    for (int i = 0; i < 24; ++i) all.push_back(take(1 * MiB, s));
    for (void* x : all) {
      work(x, s, microsecond);
      give(x, s);
    }
  }
  gpu->advance(500 * millisecond);
  ok(gpu->stream_destroy(s));
}

}  // namespace
}  // namespace millpond
