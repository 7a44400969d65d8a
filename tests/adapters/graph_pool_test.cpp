#include "adapters/torch/graph_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "millpond/units.hpp"

namespace millpond::torch {
namespace {

const stream_handle first = reinterpret_cast<stream_handle>(std::uintptr_t{0x100});
const stream_handle second = reinterpret_cast<stream_handle>(std::uintptr_t{0x200});
constexpr std::uint64_t base = std::uint64_t{1} << 40;

TEST(graph_pool, asks_for_a_chunk_and_carves_it) {
  graph_pool pool;
  EXPECT_EQ(pool.allocate(1000, first), nullptr);
  EXPECT_EQ(graph_pool::chunk_bytes_for(1000), MiB);
  EXPECT_EQ(graph_pool::chunk_bytes_for(5 * MiB + 1), 5 * MiB + 64 * KiB);
  pool.add_chunk({base, 2 * MiB}, first);
  void* const a = pool.allocate(1000, first);
  void* const b = pool.allocate(1000, first);
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(a), base);
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(b), base + 1024);
  EXPECT_EQ(pool.live_blocks(), 2u);
  EXPECT_EQ(pool.find(static_cast<char*>(b) + 1000).start, base + 1024);
  EXPECT_EQ(pool.find(reinterpret_cast<void*>(base + MiB)).bytes, 0u);
}

TEST(graph_pool, joins_what_is_freed_but_never_two_chunks) {
  graph_pool pool;
  pool.add_chunk({base, 2 * MiB}, first);
  pool.add_chunk({base + 2 * MiB, 2 * MiB}, first);
  void* const a = pool.allocate(2 * MiB, first);
  void* const b = pool.allocate(2 * MiB, first);
  EXPECT_EQ(pool.deallocate(a), 2 * MiB);
  EXPECT_EQ(pool.deallocate(b), 2 * MiB);
  EXPECT_EQ(pool.deallocate(b), 0u);
  EXPECT_EQ(pool.allocate(4 * MiB, first), nullptr);
  EXPECT_NE(pool.allocate(2 * MiB, first), nullptr);
}

TEST(graph_pool, serves_a_stream_from_its_own_chunks_alone) {
  graph_pool pool;
  pool.add_chunk({base, 2 * MiB}, first);
  EXPECT_EQ(pool.allocate(512, second), nullptr);
}

TEST(graph_pool, keeps_a_block_with_other_uses_back_until_the_capture_has_ended) {
  graph_pool pool;
  pool.captures = 1;
  pool.add_chunk({base, 2 * MiB}, first);
  void* const a = pool.allocate(2 * MiB, first);
  EXPECT_TRUE(pool.note_other_use(a));
  EXPECT_EQ(pool.deallocate(a), 2 * MiB);
  EXPECT_EQ(pool.live_blocks(), 0u);
  EXPECT_EQ(pool.allocate(2 * MiB, first), nullptr);
  pool.captures = 0;
  pool.capture_ended();
  EXPECT_EQ(pool.allocate(2 * MiB, first), a);
}

TEST(graph_pool, gives_back_the_chunks_in_which_nothing_lives) {
  graph_pool pool;
  for (std::uint64_t n = 0; n < 3; ++n) pool.add_chunk({base + n * 4 * MiB, 4 * MiB}, first);
  void* const a = pool.allocate(3 * MiB, first);
  void* const b = pool.allocate(3 * MiB, first);
  EXPECT_EQ(pool.deallocate(a), 3 * MiB);
  EXPECT_EQ(pool.peak_live_bytes(), 6 * MiB);
  std::uint64_t given = 0;
  for (const auto& each : pool.take_idle_chunks()) given += each.bytes;
  EXPECT_EQ(given, 8 * MiB);
  EXPECT_EQ(pool.chunk_bytes(), 4 * MiB);
  EXPECT_EQ(pool.forget_peak(), 3 * MiB);
  EXPECT_EQ(pool.allocate(2 * MiB, first), nullptr);
  EXPECT_NE(pool.allocate(MiB, first), nullptr);  // beside what lives
  EXPECT_TRUE(pool.take_idle_chunks().empty());
  EXPECT_EQ(pool.deallocate(b), 3 * MiB);
}

// Against a plain list of live ranges: no two overlap, and all comes back whole.
TEST(graph_pool, agrees_with_a_simple_model) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    graph_pool pool;
    std::map<std::uint64_t, std::uint64_t> live;
    std::vector<std::pair<graph_pool::chunk, stream_handle>> chunks;
    std::uint64_t next_chunk = base;
    for (int step = 0; step < 3000; ++step) {
      if (live.empty() || random() % 5 < 3) {
        const std::uint64_t bytes = 1 + random() % (random() % 10 == 0 ? 3 * MiB : 64 * KiB);
        const stream_handle stream = random() % 4 == 0 ? second : first;
        void* ptr = pool.allocate(bytes, stream);
        if (ptr == nullptr) {
          const std::uint64_t lent = pool.chunk_bytes_for(bytes);
          pool.add_chunk({next_chunk, lent}, stream);
          chunks.push_back({{next_chunk, lent}, stream});
          next_chunk += lent + (random() % 2) * 2 * MiB;
          ptr = pool.allocate(bytes, stream);
        }
        ASSERT_NE(ptr, nullptr);
        const auto at = reinterpret_cast<std::uint64_t>(ptr);
        const auto after = live.lower_bound(at);
        ASSERT_TRUE(after == live.end() || at + bytes <= after->first);
        ASSERT_TRUE(after == live.begin() || std::prev(after)->first + std::prev(after)->second <= at);
        live[at] = bytes;
      } else {
        auto gone = live.begin();
        std::advance(gone, random() % live.size());
        ASSERT_EQ(pool.deallocate(reinterpret_cast<void*>(gone->first)), gone->second);
        live.erase(gone);
      }
      ASSERT_EQ(pool.live_blocks(), live.size());
    }
    for (const auto& [at, bytes] : live) ASSERT_EQ(pool.deallocate(reinterpret_cast<void*>(at)), bytes);
    if (seed % 2 == 0) {
      const std::uint64_t lent = pool.chunk_bytes();
      std::uint64_t given = 0;
      for (const auto& each : pool.take_idle_chunks()) given += each.bytes;
      ASSERT_EQ(given, lent);
      ASSERT_TRUE(pool.chunks().empty());
      ASSERT_EQ(pool.allocate(1, first), nullptr);
      continue;
    }
    std::sort(chunks.begin(), chunks.end(), [](const auto& a, const auto& b) { return a.first.bytes > b.first.bytes; });
    for (const auto& [chunk, stream] : chunks) {  // the largest first: a smaller one would be carved from it
      ASSERT_NE(pool.allocate(chunk.bytes, stream), nullptr) << "chunks did not come back whole";
    }
  }
}

}  // namespace
}  // namespace millpond::torch
