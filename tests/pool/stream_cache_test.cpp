// The stream cache alone: what is put there is taken once, whole or cut, by one thread or by many.
#include "pool/cache/stream_cache.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/random.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

constexpr unsigned page_class = class_of(4 * KiB);
constexpr std::uint64_t any_bytes = ~std::uint64_t{0};

// Records as the heap would hand them out.
class records {
 public:
  explicit records(std::size_t count, std::uint64_t bytes = class_bytes(page_class)) : all_(count) {
    for (std::size_t i = 0; i < count; ++i) {
      all_[i] = std::make_unique<heap::extent>();
      all_[i]->id = static_cast<std::uint32_t>(i + 1);
      all_[i]->bytes = bytes;
    }
  }
  heap::extent& operator[](std::size_t i) { return *all_[i]; }
  // Linked, from one to another, both included.
  stream_cache::chain chain(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) all_[i]->link = all_[i + 1].get();
    all_[last]->link = nullptr;
    return {all_[first].get(), all_[last].get(), static_cast<std::uint32_t>(last - first + 1)};
  }

 private:
  std::vector<std::unique_ptr<heap::extent>> all_;
};

std::vector<std::uint32_t> ids(const stream_cache::chain& of) {
  std::vector<std::uint32_t> out;
  for (const heap::extent* s = of.head; s != nullptr; s = s->link) out.push_back(s->id);
  return out;
}

TEST(stream_cache, a_chain_comes_out_as_it_went_in) {
  stream_cache s;
  records r(5);
  ASSERT_TRUE(s.put(page_class, r.chain(0, 4), any_bytes));
  EXPECT_EQ(s.bytes(), 20 * KiB);
  EXPECT_EQ(s.take(page_class + 1, 100).head, nullptr);
  const stream_cache::chain out = s.take(page_class, 100);
  EXPECT_EQ(out.count, 5u);
  EXPECT_EQ(ids(out), (std::vector<std::uint32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(s.bytes(), 0u);
  EXPECT_EQ(s.take(page_class, 100).head, nullptr);
}

TEST(stream_cache, chains_are_joined_and_cut) {
  stream_cache s;
  records r(9);
  ASSERT_TRUE(s.put(page_class, r.chain(0, 2), any_bytes));
  ASSERT_TRUE(s.put(page_class, r.chain(3, 5), any_bytes));
  ASSERT_TRUE(s.put(page_class, r.chain(6, 8), any_bytes));
  const stream_cache::chain some = s.take(page_class, 4);
  EXPECT_EQ(some.count, 4u);
  EXPECT_EQ(ids(some), (std::vector<std::uint32_t>{7, 8, 9, 4}));
  EXPECT_EQ(s.bytes(), 20 * KiB);
  const stream_cache::chain rest = s.take(page_class, any_bytes);
  EXPECT_EQ(rest.count, 5u);
  EXPECT_EQ(ids(rest), (std::vector<std::uint32_t>{5, 6, 1, 2, 3}));
}

TEST(stream_cache, small_blocks_beyond_the_limit_are_refused_and_stay_the_callers) {
  stream_cache s;
  records r(6);
  ASSERT_TRUE(s.put(page_class, r.chain(0, 2), 16 * KiB));
  EXPECT_FALSE(s.put(page_class, r.chain(3, 4), 16 * KiB));
  EXPECT_EQ(s.bytes(), 12 * KiB);
  EXPECT_TRUE(s.put(page_class, r.chain(5, 5), 16 * KiB));
}

TEST(stream_cache, large_blocks_go_by_exact_size) {
  stream_cache s;
  records three(2, 3 * MiB);
  records other(1, 3 * MiB + 512);
  ASSERT_TRUE(s.put_large(three[0], any_bytes));
  ASSERT_TRUE(s.put_large(three[1], any_bytes));
  other[0].id = 77;
  ASSERT_TRUE(s.put_large(other[0], any_bytes));
  EXPECT_EQ(s.bytes(), 9 * MiB + 512);
  EXPECT_EQ(s.take_large(3 * MiB + 1024), 0u);
  EXPECT_EQ(s.take_large(3 * MiB + 512), 77u);
  EXPECT_EQ(s.take_large(3 * MiB + 512), 0u);
  EXPECT_EQ(s.take_large(3 * MiB) + s.take_large(3 * MiB), 3u);
  EXPECT_EQ(s.take_large(3 * MiB), 0u);
  EXPECT_EQ(s.bytes(), 0u);
}

TEST(stream_cache, large_blocks_are_bounded_by_bytes_and_by_count) {
  stream_cache s;
  records r(64, 1 * MiB);
  unsigned kept = 0;
  for (std::size_t i = 0; i < 64; ++i) kept += s.put_large(r[i], 10 * MiB) ? 1 : 0;
  EXPECT_EQ(kept, 10u);
  for (std::size_t i = 10; i < 64; ++i) kept += s.put_large(r[i], any_bytes) ? 1 : 0;
  EXPECT_EQ(kept, 16u);
  // Larger than a word can say.
  records huge(1, std::uint64_t{1} << 42);
  EXPECT_FALSE(s.put_large(huge[0], any_bytes));
}

TEST(stream_cache, emptying_takes_everything) {
  stream_cache s;
  records r(4);
  records large(3, 2 * MiB);
  ASSERT_TRUE(s.put(page_class, r.chain(0, 3), any_bytes));
  for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(s.put_large(large[i], any_bytes));
  std::size_t small_ones = 0;
  std::vector<std::uint32_t> large_ones;
  s.empty([&](const stream_cache::chain& c) { small_ones += c.count; },
          [&](std::uint32_t id) { large_ones.push_back(id); });
  EXPECT_EQ(small_ones, 4u);
  EXPECT_EQ(large_ones.size(), 3u);
  EXPECT_EQ(s.bytes(), 0u);
}

// Each block is somewhere once: with one thread, or here. A mark in the record, written by whoever
// holds it, would show a block that two threads hold, and ThreadSanitizer a record that is read
// before it was published.
TEST(stream_cache, threads_put_and_take_and_no_block_is_lost_or_doubled) {
  constexpr std::size_t threads = 4;
  constexpr std::size_t each = 64;
#if defined(__SANITIZE_THREAD__)
  constexpr int rounds = 2'000;
#else
  constexpr int rounds = 20'000;
#endif
  stream_cache s;
  records small(threads * each);
  records large(threads * each, 1 * MiB);
  std::atomic<int> doubled{0};
  std::vector<std::vector<heap::extent*>> held(threads);
  std::vector<std::vector<std::uint32_t>> held_large(threads);
  const auto work = [&](std::size_t t) {
    random pick(t + 1);
    auto& mine = held[t];
    auto& mine_large = held_large[t];
    for (std::size_t i = 0; i < each; ++i) {
      mine.push_back(&small[t * each + i]);
      mine_large.push_back(static_cast<std::uint32_t>(t * each + i + 1));
    }
    for (heap::extent* const m : mine) m->requested = t + 1;
    for (const std::uint32_t id : mine_large) large[id - 1].requested = t + 1;
    for (int round = 0; round < rounds; ++round) {
      const std::size_t count = 1 + pick.below(8);
      if (pick.chance(0.5) && mine.size() >= count) {
        stream_cache::chain out{nullptr, nullptr, static_cast<std::uint32_t>(count)};
        for (std::size_t i = 0; i < count; ++i) {
          heap::extent* const m = mine.back();
          mine.pop_back();
          if (m->requested != t + 1) doubled.fetch_add(1);
          m->requested = 0;
          m->link = out.head;
          if (out.tail == nullptr) out.tail = m;
          out.head = m;
        }
        ASSERT_TRUE(s.put(page_class, out, any_bytes));
      } else {
        for (heap::extent* m = s.take(page_class, count).head; m != nullptr;) {
          heap::extent* const next = m->link;
          if (m->requested != 0) doubled.fetch_add(1);
          m->requested = t + 1;
          mine.push_back(m);
          m = next;
        }
      }
      if (pick.chance(0.5) && !mine_large.empty()) {
        heap::extent& m = large[mine_large.back() - 1];
        if (m.requested != t + 1) doubled.fetch_add(1);
        m.requested = 0;
        if (s.put_large(m, any_bytes))
          mine_large.pop_back();
        else
          m.requested = t + 1;
      } else if (const std::uint32_t id = s.take_large(1 * MiB); id != 0) {
        if (large[id - 1].requested != 0) doubled.fetch_add(1);
        large[id - 1].requested = t + 1;
        mine_large.push_back(id);
      }
    }
  };
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < threads; ++t) running.emplace_back(work, t);
  for (std::thread& t : running) t.join();
  EXPECT_EQ(doubled.load(), 0);
  std::vector<int> seen(threads * each + 1);
  std::vector<int> seen_large(threads * each + 1);
  for (std::size_t t = 0; t < threads; ++t) {
    for (const heap::extent* m : held[t]) ++seen[m->id];
    for (const std::uint32_t id : held_large[t]) ++seen_large[id];
  }
  s.empty(
      [&](const stream_cache::chain& c) {
        for (const std::uint32_t id : ids(c)) ++seen[id];
      },
      [&](std::uint32_t id) { ++seen_large[id]; });
  for (std::size_t id = 1; id <= threads * each; ++id) {
    EXPECT_EQ(seen[id], 1) << "small " << id;
    EXPECT_EQ(seen_large[id], 1) << "large " << id;
  }
}

}  // namespace
}  // namespace millpond
