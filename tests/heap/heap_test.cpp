#include "heap/heap.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/bits.hpp"
#include "base/random.hpp"
#include "millpond/units.hpp"

namespace millpond::heap {
namespace {

constexpr std::uint64_t base = std::uint64_t{1} << 40;

struct one_view {
  heap of;
  view_id home = 0;
  explicit one_view(std::uint64_t bytes) {
    of.add_region(base, 64 * GiB);
    home = of.add_view(base, 32 * GiB);
    if (bytes > 0) of.map_span(home, base, of.add_span(bytes));
  }
};

TEST(heap, an_empty_heap_has_nothing_to_give) {
  one_view h(0);
  EXPECT_EQ(h.of.allocate(512, 512, anyone), nullptr);
}

TEST(heap, a_freed_block_is_whole_again) {
  one_view h(2 * MiB);
  segment* const a = h.of.allocate(4096, 512, anyone);
  segment* const b = h.of.allocate(8192, 512, anyone);
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(h.of.find(a->start()), a);
  EXPECT_EQ(h.of.covering(b->start() + 100), b);
  h.of.release(a, anyone, 0, absorb_idle::no);
  h.of.release(b, anyone, 0, absorb_idle::no);
  h.of.check();
  segment* const all = h.of.allocate(2 * MiB, 512, anyone);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(all->start(), base);
}

TEST(heap, the_tightest_hole_is_taken) {
  one_view h(2 * MiB);
  std::vector<segment*> blocks;
  for (const std::uint64_t kib : {64, 4, 16, 4, 8, 4}) blocks.push_back(h.of.allocate(kib * KiB, 512, anyone));
  for (const std::size_t i : {0u, 2u, 4u}) h.of.release(blocks[i], anyone, 0, absorb_idle::no);
  EXPECT_EQ(h.of.allocate(7 * KiB, 512, anyone)->start(), blocks[3]->end());  // the hole of 8 KiB
}

TEST(heap, alignment_is_honoured_up_to_two_mebibytes) {
  one_view h(16 * MiB);
  for (std::uint64_t alignment = 512; alignment <= 2 * MiB; alignment *= 2) {
    segment* const s = h.of.allocate(1536, alignment, anyone);
    ASSERT_NE(s, nullptr);
    EXPECT_TRUE(is_aligned(s->start(), alignment));
  }
  h.of.check();
}

TEST(heap, a_pending_segment_serves_its_owner_alone_until_its_batch_is_retired) {
  one_view h(1 * MiB);
  segment* const a = h.of.allocate(1 * MiB, 512, 1);
  h.of.release(a, 1, 7, absorb_idle::no);
  EXPECT_EQ(h.of.allocate(512, 512, 2), nullptr);
  EXPECT_EQ(h.of.allocate(512, 512, anyone), nullptr);
  segment* const own = h.of.allocate(512, 512, 1);
  ASSERT_NE(own, nullptr);
  h.of.release(own, 1, 8, absorb_idle::no);
  h.of.retire(1, 7);
  EXPECT_EQ(h.of.allocate(1 * MiB, 512, 2), nullptr);  // batch 8 has not passed
  EXPECT_NE(h.of.allocate(512 * KiB, 512, 2), nullptr);
  h.of.retire(1, 8);
  h.of.check();
}

TEST(heap, a_run_over_batches_serves_the_owner) {
  one_view h(1 * MiB);
  segment* const a = h.of.allocate(512 * KiB, 512, 1);
  segment* const b = h.of.allocate(256 * KiB, 512, 1);
  h.of.release(a, 1, 1, absorb_idle::no);
  h.of.release(b, 1, 2, absorb_idle::no);
  EXPECT_EQ(h.of.allocate(900 * KiB, 512, 1), nullptr);
  EXPECT_EQ(h.of.allocate_run(900 * KiB, 512, 2), nullptr);
  EXPECT_NE(h.of.allocate_run(900 * KiB, 512, 1), nullptr);
  h.of.check();
}

TEST(heap, a_span_mapped_twice_serves_through_one_mapping_at_a_time) {
  one_view h(0);
  const span_id a = h.of.add_span(2 * MiB), b = h.of.add_span(2 * MiB), c = h.of.add_span(2 * MiB);
  std::uint64_t at = base;
  for (const span_id s : {a, b, c}) {
    h.of.map_span(h.home, at, s);
    at += 2 * MiB;
  }
  segment* const first = h.of.allocate(2 * MiB, 512, anyone);
  segment* const hold = h.of.allocate(2 * MiB, 512, anyone);
  h.of.release(first, anyone, 0, absorb_idle::no);
  // a and c are free with b between them: a window c + a gives 4 MiB in a row.
  EXPECT_EQ(h.of.allocate(4 * MiB, 512, anyone), nullptr);
  const std::uint64_t there = base + 32 * GiB;
  const view_id window = h.of.add_view(there, 1 * GiB);
  EXPECT_TRUE(h.of.map_span(window, there, c));
  EXPECT_TRUE(h.of.map_span(window, there + 2 * MiB, a));
  EXPECT_FALSE(h.of.map_span(window, there + 4 * MiB, b));  // in use: the mapping is dormant
  h.of.check();
  segment* const moved = h.of.allocate(4 * MiB, 512, anyone);
  ASSERT_NE(moved, nullptr);
  EXPECT_EQ(moved->start(), there);
  EXPECT_EQ(h.of.allocate(512, 512, anyone), nullptr);
  EXPECT_FALSE(h.of.activate(h.home, base, anyone));  // a is in use through the window
  h.of.release(moved, anyone, 0, absorb_idle::no);
  EXPECT_TRUE(h.of.activate(h.home, base, anyone));
  h.of.check();
  h.of.release(hold, anyone, 0, absorb_idle::no);
  EXPECT_TRUE(h.of.activate(h.home, base + 4 * MiB, anyone));
  h.of.check();
  for (const std::uint64_t mib : {4, 2, 0}) h.of.unmap_span(window, there + mib * MiB);
  h.of.check();
  EXPECT_NE(h.of.allocate(6 * MiB, 512, anyone), nullptr);
}

TEST(heap, a_hole_left_by_an_unmapped_span_is_filled_again) {
  one_view h(0);
  for (std::uint64_t i = 0; i < 3; ++i) h.of.map_span(h.home, base + i * 2 * MiB, h.of.add_span(2 * MiB));
  segment* const last = h.of.allocate(2 * MiB, 2 * MiB, anyone);
  segment* const rest = h.of.allocate(2 * MiB, 2 * MiB, anyone);
  segment* const end = h.of.allocate(2 * MiB, 2 * MiB, anyone);
  (void)last;
  h.of.release(rest, anyone, 0, absorb_idle::no);
  h.of.unmap_span(h.home, base + 2 * MiB);
  h.of.remove_span(1);
  h.of.check();
  EXPECT_EQ(h.of.allocate(512, 512, anyone), nullptr);
  h.of.map_span(h.home, base + 2 * MiB, h.of.add_span(2 * MiB));
  h.of.check();
  EXPECT_NE(h.of.allocate(2 * MiB, 512, anyone), nullptr);
  h.of.release(end, anyone, 0, absorb_idle::no);
  h.of.unmap_span(h.home, base + 4 * MiB);
  h.of.check();
  EXPECT_EQ(h.of.views()[h.home].end, base + 4 * MiB);
}

TEST(heap, random_operations_keep_every_invariant) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    random pick(seed);
    one_view h(0);
    std::vector<segment*> live;
    std::vector<std::uint64_t> batches(4, 1);
    std::uint64_t view_base = base + 32 * GiB;
    for (int i = 0; i < 6; ++i) h.of.map_span(h.home, h.of.views()[h.home].end, h.of.add_span(4 * MiB));
    for (int step = 0; step < 600; ++step) {
      const auto owner = static_cast<owner_id>(pick.between(1, 3));
      const std::uint64_t what = pick.below(100);
      if (what < 50) {
        const std::uint64_t bytes = align_up(pick.log_uniform(512, 12 * MiB), granule);
        segment* s = h.of.allocate(bytes, granule << pick.below(5), owner);
        if (s == nullptr) s = h.of.allocate_run(bytes, granule, owner);
        if (s != nullptr) {
          ASSERT_GE(s->bytes, bytes);
          live.push_back(s);
        }
      } else if (what < 85 && !live.empty()) {
        const std::size_t i = pick.below(live.size());
        h.of.release(live[i], owner, batches[owner], pick.chance(0.3) ? absorb_idle::yes : absorb_idle::no);
        live[i] = live.back();
        live.pop_back();
      } else if (what < 92) {
        h.of.retire(owner, batches[owner]++);
      } else if (what < 95) {
        const view_id window = h.of.add_view(view_base, 64 * MiB);
        for (int i = 0; i < 3; ++i) h.of.map_span(window, h.of.views()[window].end, static_cast<span_id>(pick.below(6)), owner);
        view_base += 64 * MiB;
      } else if (what < 98) {
        const auto view = static_cast<view_id>(pick.below(h.of.views().size()));
        const auto& slots = h.of.views()[view].slots;
        if (!slots.empty()) {
          const auto& s = slots[pick.below(slots.size())];
          if (s.span != no_span && !s.active) h.of.activate(view, s.at, owner);
        }
      } else {
        const auto view = static_cast<view_id>(pick.below(h.of.views().size()));
        const auto& slots = h.of.views()[view].slots;
        if (!slots.empty()) {
          const auto& s = slots[pick.below(slots.size())];
          if (s.span != no_span && !s.active) h.of.unmap_span(view, s.at);
        }
      }
      if (step % 10 == 0) h.of.check();
    }
    for (segment* s : live) h.of.release(s, anyone, 0, absorb_idle::no);
    for (owner_id o = 1; o <= 3; ++o) h.of.retire(o, ~std::uint64_t{0});
    h.of.check();
    for (span_id s = 0; s < 6; ++s) EXPECT_TRUE(h.of.wholly_free(s, anyone));
  }
}

}  // namespace
}  // namespace millpond::heap
