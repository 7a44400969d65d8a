#include "replay/strategies/arena_book.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/random.hpp"

namespace millpond::replay {
namespace {

TEST(arena_book, blocks_never_overlap_and_a_second_pass_needs_the_same_end) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::uint64_t end = 0;
    for (const bool second : {false, true}) {
      random dice(seed);
      arena_book book(second ? end : std::uint64_t{1} << 50);
      std::map<std::uint64_t, std::uint64_t> live;
      std::vector<arena_book::mark> after;
      for (int i = 0; i < 2000; ++i) {
        if (live.empty() || dice.chance(0.55)) {
          const std::uint64_t bytes = dice.log_uniform(1, 1 << 20);
          const std::uint64_t at = book.allocate(bytes, after);
          ASSERT_NE(at, arena_book::none) << "seed " << seed;
          const auto above = live.lower_bound(at);
          if (above != live.end()) {
            ASSERT_LE(at + bytes, above->first) << "seed " << seed;
          }
          if (above != live.begin()) {
            const auto below = std::prev(above);
            ASSERT_LE(below->first + below->second, at) << "seed " << seed;
          }
          live[at] = bytes;
        } else {
          auto one = std::next(live.begin(), static_cast<std::ptrdiff_t>(dice.below(live.size())));
          book.free(one->first, one->second, {0, static_cast<std::uint64_t>(i)});
          live.erase(one);
        }
      }
      if (second) {
        EXPECT_EQ(book.high_water(), end);
      }
      end = book.high_water();
    }
  }
}

TEST(arena_book, a_block_knows_the_frees_that_its_bytes_come_from) {
  arena_book book(1 << 20);
  std::vector<arena_book::mark> after;
  const std::uint64_t a = book.allocate(512, after);
  const std::uint64_t b = book.allocate(512, after);
  EXPECT_TRUE(after.empty());
  book.free(a, 512, {1, 10});
  book.free(b, 512, {2, 20});
  EXPECT_EQ(book.allocate(1024, after), a);
  ASSERT_EQ(after.size(), 2u);
  EXPECT_EQ(after[0].serial + after[1].serial, 30u);
}

TEST(arena_book, one_hole_of_twenty_thousand_streams_is_made_at_once) {
  // Each free joins the hole before it, with the frees of all streams so far: a list of them that
  // is searched at each was cubic, and took hours.
  constexpr std::uint16_t streams = 20'000;
  arena_book book(std::uint64_t{1} << 30);
  std::vector<arena_book::mark> after;
  for (std::uint16_t n = 0; n <= streams; ++n) static_cast<void>(book.allocate(512, after));
  for (std::uint16_t n = 0; n < streams; ++n) book.free(n * std::uint64_t{512}, 512, {n, n + 1u});
  EXPECT_EQ(book.holes(), 1u);
  EXPECT_EQ(book.allocate(512, after), 0u);
  EXPECT_EQ(after.size(), streams);
}

TEST(arena_book, a_full_arena_says_no_and_stays_usable) {
  arena_book book(1024);
  std::vector<arena_book::mark> after;
  const std::uint64_t a = book.allocate(1024, after);
  EXPECT_EQ(book.allocate(1, after), arena_book::none);
  book.free(a, 1024, {0, 1});
  EXPECT_EQ(book.allocate(1024, after), a);
}

}  // namespace
}  // namespace millpond::replay
