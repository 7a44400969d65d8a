// A pool's tables: addresses that were given back are used again, and what is full ends no program.
#include <algorithm>
#include <memory>
#include <vector>

#include "heap/limits.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

class pool_addresses : public pool_test {
 protected:
  static simulated_gpu_options small_gpu() {
    simulated_gpu_options options = steady();
    options.memory_bytes = 2 * GiB;
    return options;
  }
  [[nodiscard]] std::uint64_t reservations() const { return gpu->leaks().reservations; }
};

// What heaps can hold, for the length of a test.
struct heap_limits {
  explicit heap_limits(const heap::limits& most) { heap::limits_of_new_heaps() = most; }
  ~heap_limits() { heap::limits_of_new_heaps() = {}; }
  heap_limits(const heap_limits&) = delete;
  heap_limits& operator=(const heap_limits&) = delete;
};

// Loads the next model, drops the last, trims.
TEST_F(pool_addresses, a_program_that_swaps_models_uses_the_same_addresses_again) {
  start({}, small_gpu());
  const stream_handle s = stream();
  void* old = take(900 * MiB, s);
  ASSERT_NE(old, nullptr);
  const std::uint64_t first = reservations();
  std::uint64_t metadata = 0;
  for (int swaps = 0; swaps < 1200; ++swaps) {
    void* const next = take(900 * MiB, s);
    ASSERT_NE(next, nullptr) << swaps << ": " << refusal.message;
    give(old, s);
    gpu->advance(millisecond);
    trim();
    old = next;
    ASSERT_EQ(reservations(), first) << swaps;
    ASSERT_EQ(now().reserved_bytes, 900 * MiB) << swaps;
    if (swaps == 10) metadata = now().metadata_bytes;
  }
  EXPECT_EQ(now().metadata_bytes, metadata);
  give(old, s);
}

// No two alike, so that holes are cut and joined.
TEST_F(pool_addresses, models_of_all_sizes_find_holes) {
  start({}, small_gpu());
  const stream_handle s = stream();
  std::vector<void*> live;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    live.push_back(take((100 + 37 * i % 240) * MiB, s));
    ASSERT_NE(live.back(), nullptr) << i << ": " << refusal.message;
    if (live.size() > 3) {
      const std::size_t which = i * 7 % 3;
      give(live[which], s);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    gpu->advance(millisecond);
    trim();
    if (i % 50 == 0) p->check();
  }
  // The addresses of a first stitched range and, since mappings stay as long as their handles, of
  // many times the pool's bytes: settled after 1,600 models, at ten.
  EXPECT_LE(reservations(), 16u);
  for (void* const x : live) give(x, s);
}

// Blocks of a model lie between others that stay; a large one is stitched from what lies between.
TEST_F(pool_addresses, stitched_ranges_are_made_again_where_others_were) {
  start({}, small_gpu());
  const stream_handle s = stream();
  std::vector<void*> stays;
  std::uint64_t most = 0, stitches = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<void*> goes;
    for (int i = 0; i < 12; ++i) {
      stays.push_back(take(16 * MiB, s));
      goes.push_back(take(16 * MiB, s));
    }
    for (void* const x : goes) give(x, s);
    void* const large = take(160 * MiB, s);
    ASSERT_NE(large, nullptr) << round << ": " << refusal.message;
    // All but one that stays for a while yet.
    give(large, s);
    for (std::size_t i = 0; i + 1 < stays.size(); ++i) give(stays[i], s);
    stays.erase(stays.begin(), stays.end() - 1);
    gpu->advance(millisecond);
    trim();
    if (round == 20) most = reservations();
    ASSERT_TRUE(round <= 20 || reservations() == most) << round << ": " << reservations();
    stitches = now().stitches;
  }
  EXPECT_GT(stitches, 200u);
  for (void* const x : stays) give(x, s);
}

// A hole between blocks that stay is filled, and what is free beside it counts.
TEST_F(pool_addresses, a_hole_serves_a_request_that_what_is_free_beside_it_makes_whole) {
  pool_options options;
  options.slack = 0;
  start(options, small_gpu());
  const stream_handle s = stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(take(64 * MiB, s));
  give(blocks[2], s);
  give(blocks[3], s);
  gpu->advance(millisecond);
  trim();
  const std::uint64_t before = now().reserved_bytes;
  void* const again = take(128 * MiB, s);
  EXPECT_EQ(again, blocks[2]);
  EXPECT_LE(now().reserved_bytes, before + 128 * MiB);
  blocks[2] = again;
  blocks[3] = nullptr;
  for (void* const x : blocks) give(x, s);
}

TEST_F(pool_addresses, with_as_many_blocks_as_records_the_next_is_refused_with_the_reason) {
  const heap_limits lowered({.records = 4096});
  start({}, small_gpu());
  const stream_handle s = stream();
  std::vector<void*> live;
  for (void* x = take(512, s); x != nullptr; x = take(512, s)) live.push_back(x);
  EXPECT_GT(live.size(), 3000u);
  EXPECT_EQ(refusal.code, error_code::out_of_memory);
  EXPECT_NE(refusal.message.find("as many blocks as its records can hold (4,096)"),
            std::string::npos)
      << refusal.message;
  EXPECT_EQ(take(3 * MiB, s), nullptr);
  p->check();
  for (int i = 0; i < 100; ++i) {
    give(live.back(), s);
    live.pop_back();
  }
  EXPECT_NE(live.emplace_back(take(512, s)), nullptr) << refusal.message;
  for (void* const x : live) give(x, s);
  live.clear();
  gpu->advance(millisecond);
  trim();
  void* const large = take(64 * MiB, s);
  EXPECT_NE(large, nullptr) << refusal.message;
  give(large, s);
}

TEST_F(pool_addresses, without_a_range_for_stitching_the_pool_grows) {
  const heap_limits lowered({.regions = 1});
  start({}, small_gpu());
  const stream_handle s = stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 24; ++i) blocks.push_back(take(16 * MiB, s));
  for (std::size_t i = 0; i < blocks.size(); i += 2) give(blocks[i], s);
  void* const large = take(160 * MiB, s);
  EXPECT_NE(large, nullptr) << refusal.message;
  EXPECT_EQ(now().stitches, 0u);
  EXPECT_EQ(reservations(), 1u);
  give(large, s);
  for (std::size_t i = 1; i < blocks.size(); i += 2) give(blocks[i], s);
}

TEST_F(pool_addresses, with_as_many_chunks_as_the_table_holds_the_next_is_refused) {
  const heap_limits lowered({.regions = 3});
  pool_options options;
  options.kind = memory_kind::managed;
  start(options, small_gpu());
  const stream_handle s = stream();
  std::vector<void*> blocks;
  for (void* x = take(30 * MiB, s); x != nullptr; x = take(30 * MiB, s)) blocks.push_back(x);
  EXPECT_EQ(blocks.size(), 3u);
  EXPECT_NE(refusal.message.find("as many ranges of addresses as its table can hold (3)"),
            std::string::npos)
      << refusal.message;
  give(blocks.back(), s);
  gpu->advance(millisecond);
  blocks.back() = take(30 * MiB, s);
  EXPECT_NE(blocks.back(), nullptr) << refusal.message;
  for (void* const x : blocks) give(x, s);
}

}  // namespace
}  // namespace millpond
