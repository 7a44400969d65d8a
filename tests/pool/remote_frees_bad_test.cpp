// Frees that travel through a remote free queue without a look at the block's record: the pool
// still learns what it must know of a block, a wrong free is refused, and what was put and not sent
// yet is lost nowhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "support/cache_fixture.hpp"

namespace millpond {
namespace {

class pool_remote_frees_unseen : public cache_test {
 protected:
  // A way between the two, over which blocks of these bytes have come back: the next frees
  // of them look at no record.
  void make_way(pool::cache_handle& from, pool::cache_handle& to, std::uint64_t bytes = 3 * MiB) {
    hand_over(from, to, bytes, 60);
  }
};

TEST_F(pool_remote_frees_unseen, a_use_that_was_reported_is_waited_for) {
  start();
  const stream_handle a = stream(), b = stream();
  give(take(512, b), b);
  auto producer = p->cache(a);
  auto consumer = p->cache(a);
  make_way(producer, consumer);
  for (int i = 0; i < 20; ++i) {
    void* const x = take_from(producer, 3 * MiB);
    work(x, b, 10 * millisecond);
    use(x, b);
    give_to(consumer, x, 3 * MiB);
    void* const y = take_from(producer, 3 * MiB);
    work(y, a, microsecond);  // the checker sees a reuse before b is done
    give_to(consumer, y, 3 * MiB);
  }
  trim();
  EXPECT_EQ(now().live_blocks, 0u);
  EXPECT_EQ(now().live_bytes, 0u);
}

TEST_F(pool_remote_frees_unseen, a_tag_ends_with_the_block) {
  start();
  const stream_handle a = stream();
  auto producer = p->cache(a);
  auto consumer = p->cache(a);
  make_way(producer, consumer);
  void* const x = take_from(producer, 3 * MiB);
  ASSERT_TRUE(p->set_tag(x, "weights").has_value());
  give_to(consumer, x, 3 * MiB);
  trim();
  EXPECT_EQ(now().live_blocks, 0u);
  const simulated_gpu::library_scope library;
  EXPECT_FALSE(p->set_tag(x, "weights").has_value());
}

TEST_F(pool_remote_frees_unseen,
       memory_that_went_through_a_queue_and_then_to_a_graph_is_the_graphs) {
  start();
  const stream_handle a = stream(), c = stream();
  auto producer = p->cache(a);
  auto consumer = p->cache(a);
  make_way(producer, consumer);
  gpu->advance(millisecond);
  trim(1 * GiB);  // the caches are empty, the memory stays
  ok(gpu->capture_begin(c, capture_mode::relaxed));
  std::vector<void*> inside;
  for (int i = 0; i < 8; ++i) inside.push_back(take(3 * MiB, c));
  graph_handle graph = nullptr;
  ok(gpu->capture_end(c, &graph));
  for (void* x : inside) give_to(consumer, x, 3 * MiB);
  trim(1 * GiB);
  EXPECT_EQ(now().live_blocks, 0u);
  EXPECT_GE(now().capture_bytes, 24 * MiB) << "until the graph is gone";
  ok(gpu->graph_destroy(graph));
  expect_all_back();
}

TEST_F(pool_remote_frees_unseen, a_free_with_wrong_bytes_is_refused_and_the_block_stays) {
  start();
  const stream_handle a = stream();
  auto producer = p->cache(a);
  auto consumer = p->cache(a);
  make_way(producer, consumer);
  void* const x = take_from(producer, 3 * MiB);
  free_by(consumer, x, 3 * MiB - 8);
  trim();
  const error refused = only_error();
  EXPECT_EQ(refused.code, error_code::invalid_argument);
  EXPECT_NE(refused.message.find("freed with 3145720 bytes, allocated with 3145728"),
            std::string::npos)
      << refused.message;
  EXPECT_EQ(now().live_blocks, 1u);
  EXPECT_EQ(now().live_bytes, 3 * MiB);
  EXPECT_EQ(p->deallocation_errors(), 1u);
  work(x, a, microsecond);
  give_to(consumer, x, 3 * MiB);
  EXPECT_EQ(now().live_blocks, 0u);
}

TEST_F(pool_remote_frees_unseen, a_second_free_is_refused_by_whichever_cache) {
  start();
  const stream_handle a = stream();
  auto producer = p->cache(a);
  auto consumer = p->cache(a);
  make_way(producer, consumer);
  for (pool::cache_handle* const second : {&consumer, &producer}) {
    void* const x = take_from(producer, 3 * MiB);
    give_to(consumer, x, 3 * MiB);
    free_by(*second, x, 3 * MiB);
    trim(1 * GiB);
    EXPECT_EQ(only_error().code, error_code::double_free);
    EXPECT_EQ(now().live_blocks, 0u);
    EXPECT_EQ(now().live_bytes, 0u);
    make_way(producer, consumer);
  }
}

TEST_F(pool_remote_frees_unseen, a_refusal_is_reported_by_the_next_call_that_is_not_quick) {
  start();
  const stream_handle a = stream();
  auto producer = p->cache(a);
  auto consumer = p->cache(a);
  make_way(producer, consumer);
  std::vector<void*> all;
  for (int i = 0; i < 40; ++i) all.push_back(take_from(producer, 3 * MiB));
  for (void* x : all) free_by(consumer, x, 3 * MiB - 8);
  for (int i = 0; i < 40; ++i) all.push_back(take_from(producer, 3 * MiB));
  EXPECT_FALSE(errors.empty());
  static_cast<void>(now());
  for (void* x : all) give_to(consumer, x, 3 * MiB);
  trim();
  for (const error& e : errors) EXPECT_NE(e.code, error_code::foreign_pointer) << e.message;
  errors.clear();
  EXPECT_EQ(now().live_blocks, 0u);
}

TEST_F(pool_remote_frees_unseen, what_was_put_and_not_sent_counts_as_kept_and_is_given_back) {
  start();
  const stream_handle a = stream();
  auto producer = p->cache(a);
  auto consumer = p->cache(a);
  make_way(producer, consumer, 64 * KiB);
  gpu->advance(millisecond);
  trim(1 * GiB);
  EXPECT_EQ(now().cached_bytes, 0u);
  std::array<void*, 3> few{};
  for (void*& x : few) x = take_from(producer, 64 * KiB);
  const std::uint64_t kept = now().cached_bytes;
  for (void* x : few) give_to(consumer, x, 64 * KiB);
  EXPECT_EQ(now().cached_bytes, kept + 3 * 64 * KiB);
  EXPECT_EQ(now().live_blocks, 0u);
  gpu->advance(millisecond);
  trim();
  EXPECT_EQ(now().cached_bytes, 0u);
  EXPECT_EQ(now().reserved_bytes, 0u);
}

TEST_F(pool_remote_frees_unseen, either_cache_may_go_with_blocks_that_were_put_and_not_sent) {
  start();
  const stream_handle a = stream();
  for (const bool the_sender_goes : {true, false}) {
    std::optional<pool::cache_handle> producer(p->cache(a));
    std::optional<pool::cache_handle> consumer(p->cache(a));
    make_way(*producer, *consumer, 64 * KiB);
    std::array<void*, 3> few{};
    for (void*& x : few) x = take_from(*producer, 64 * KiB);
    for (void* x : few) give_to(*consumer, x, 64 * KiB);
    (the_sender_goes ? consumer : producer).reset();
    EXPECT_EQ(now().live_blocks, 0u);
    (the_sender_goes ? producer : consumer).reset();
    EXPECT_EQ(now().cached_bytes, 0u);
  }
  gpu->advance(millisecond);
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
}

// Both ends of a way, each to the other, and blocks of both in both directions.
TEST_F(pool_remote_frees_unseen, two_caches_that_free_each_others_blocks) {
  start();
  const stream_handle a = stream();
  auto one = p->cache(a);
  auto two = p->cache(a);
  constexpr std::array<std::uint64_t, 4> sizes{512, 64 * KiB, 1 * MiB, 3 * MiB};
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<void*, std::uint64_t>> of_one, of_two;
    for (const std::uint64_t bytes : sizes) {
      of_one.emplace_back(take_from(one, bytes), bytes);
      of_two.emplace_back(take_from(two, bytes), bytes);
    }
    for (const auto& [x, bytes] : of_one) work(x, a, microsecond, bytes);
    for (const auto& [x, bytes] : of_two) work(x, a, microsecond, bytes);
    for (const auto& [x, bytes] : of_one) give_to(round % 3 == 0 ? one : two, x, bytes);
    for (const auto& [x, bytes] : of_two) give_to(round % 3 == 1 ? two : one, x, bytes);
    gpu->advance(millisecond);
  }
  EXPECT_EQ(now().live_blocks, 0u);
  EXPECT_LE(now().heap_hits, 60u) << "they go round";
}

TEST_F(pool_remote_frees_unseen, a_cache_that_found_no_room_for_its_frees_asks_again) {
  start();
  const stream_handle a = stream();
  auto producer = p->cache(a);
  std::array<std::optional<pool::cache_handle>, 5> consumers;
  for (auto& c : consumers) {
    c.emplace(p->cache(a));
    make_way(producer, *c, 1 * MiB);
  }
  pool::cache_handle& fifth = *consumers[4];
  // The fifth had no way, and keeps what it frees; once there is room for it, it asks again.
  const auto goes_back = [&] {
    gpu->advance(millisecond);
    trim(1 * GiB);
    void* const x = take_from(producer, 3 * MiB);
    give_to(fifth, x, 3 * MiB);
    void* const y = take_from(fifth, 3 * MiB);
    give_to(fifth, y, 3 * MiB);
    return x != y;
  };
  EXPECT_FALSE(goes_back());
  consumers[0].reset();
  for (int i = 0; i < 1100; ++i) give_to(fifth, take_from(producer, 1 * MiB), 1 * MiB);
  EXPECT_TRUE(goes_back());
}

}  // namespace
}  // namespace millpond
