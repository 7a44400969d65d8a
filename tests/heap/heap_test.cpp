#include "heap/heap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/bits.hpp"
#include "base/random.hpp"
#include "heap/heap_fixture.hpp"
#include "millpond/base/units.hpp"

namespace millpond::heap {
namespace {

TEST(heap, an_empty_heap_has_nothing_to_give) {
  one_view h(0);
  EXPECT_EQ(h.of.allocate(512, 512, anyone), nullptr);
}

TEST(heap, a_freed_block_is_whole_again) {
  one_view h(2 * MiB);
  extent* const a = h.of.allocate(4096, 512, anyone);
  extent* const b = h.of.allocate(8192, 512, anyone);
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(h.of.find(a->start()), a);
  EXPECT_EQ(h.of.covering(b->start() + 100), b);
  h.of.release(a, anyone, 0, absorb_idle::no);
  h.of.release(b, anyone, 0, absorb_idle::no);
  h.of.check();
  extent* const all = h.of.allocate(2 * MiB, 512, anyone);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(all->start(), base);
}

TEST(heap, the_tightest_hole_is_taken) {
  one_view h(2 * MiB);
  std::vector<extent*> blocks;
  for (const std::uint64_t kib : {64, 4, 16, 4, 8, 4})
    blocks.push_back(h.of.allocate(kib * KiB, 512, anyone));
  for (const std::size_t i : {0u, 2u, 4u}) h.of.release(blocks[i], anyone, 0, absorb_idle::no);
  EXPECT_EQ(h.of.allocate(7 * KiB, 512, anyone)->start(), blocks[3]->end());  // the hole of 8 KiB
}

TEST(heap, small_blocks_lie_in_stretches_that_hold_nothing_else_and_end_with_them) {
  one_view h(16 * MiB);
  const auto small = [&](std::uint64_t bytes) {
    return h.of.allocate(bytes, 512, anyone, reach::own_and_idle, zone::small);
  };
  std::vector<extent*> blocks;
  std::vector<extent*> large;
  for (int i = 0; i < 5; ++i) {
    blocks.push_back(small(512 * KiB));
    large.push_back(h.of.allocate(256 * KiB, 512, anyone));
  }
  for (int i = 0; i < 4; ++i)
    EXPECT_LT(blocks[static_cast<std::size_t>(i)]->start() - base, small_stretch);
  for (const extent* l : large)
    EXPECT_GE(l->start() - base, small_stretch) << "not between small ones";
  h.of.check();
  // Two stretches side by side give their parts back in any order: what is left of either is
  // general memory again.
  for (extent* l : large) h.of.release(l, anyone, 0, absorb_idle::no);
  for (const std::size_t i : {3u, 4u, 1u, 0u, 2u}) {
    h.of.release(blocks[i], anyone, 0, absorb_idle::no);
    h.of.check();
  }
  EXPECT_EQ(h.of.largest_free(anyone), 16 * MiB);
  EXPECT_NE(h.of.allocate_at(base, 16 * MiB), nullptr);
}

TEST(heap, of_large_holes_that_are_not_tight_the_lowest_is_taken) {
  one_view h(64 * MiB);
  std::vector<extent*> blocks;
  for (const std::uint64_t mib : {12, 1, 10, 1, 40})
    blocks.push_back(h.of.allocate(mib * MiB, 512, anyone));
  for (const std::size_t i : {0u, 2u}) h.of.release(blocks[i], anyone, 0, absorb_idle::no);
  EXPECT_EQ(h.of.allocate(6 * MiB, 512, anyone)->start(),
            base);  // the one of 10 is tighter, and no tight one
  EXPECT_EQ(h.of.allocate(9 * MiB + 512 * KiB, 512, anyone)->start(), blocks[1]->end());  // tight
}

TEST(heap, alignment_is_honoured_up_to_two_mebibytes) {
  one_view h(16 * MiB);
  for (std::uint64_t alignment = 512; alignment <= 2 * MiB; alignment *= 2) {
    extent* const s = h.of.allocate(1536, alignment, anyone);
    ASSERT_NE(s, nullptr);
    EXPECT_TRUE(is_aligned(s->start(), alignment));
  }
  h.of.check();
}

TEST(heap, a_pending_extent_serves_its_owner_alone_until_its_batch_is_retired) {
  one_view h(1 * MiB);
  extent* const a = h.of.allocate(1 * MiB, 512, 1);
  h.of.release(a, 1, 7, absorb_idle::no);
  EXPECT_EQ(h.of.allocate(512, 512, 2), nullptr);
  EXPECT_EQ(h.of.allocate(512, 512, anyone), nullptr);
  extent* const own = h.of.allocate(512, 512, 1);
  ASSERT_NE(own, nullptr);
  h.of.release(own, 1, 8, absorb_idle::no);
  h.of.retire(1, 7);
  EXPECT_EQ(h.of.allocate(1 * MiB, 512, 2), nullptr);  // batch 8 has not passed
  EXPECT_NE(h.of.allocate(512 * KiB, 512, 2), nullptr);
  h.of.retire(1, 8);
  h.of.check();
}

// An arena takes what is its own before it takes from everyone.
TEST(heap, within_its_own_reach_an_owner_gets_nothing_that_anyone_may_have) {
  one_view h(1 * MiB);
  extent* const a = h.of.allocate(64 * KiB, 512, 1);
  extent* const b = h.of.allocate(80 * KiB, 512, 1);
  extent* const c = h.of.allocate(32 * KiB, 512, 1);
  extent* const wall = h.of.allocate(512, 512, 1);
  h.of.release(a, 1, 7, absorb_idle::no);
  h.of.release(b, 1, 8, absorb_idle::no);
  h.of.release(c, anyone, 0, absorb_idle::no);
  EXPECT_EQ(h.of.allocate(32 * KiB, 512, 1, reach::own)->start(), base)
      << "not the tighter one, which is anyone's";
  EXPECT_EQ(h.of.allocate(96 * KiB, 512, 1, reach::own), nullptr) << "two batches";
  extent* const run = h.of.allocate_run(96 * KiB, 512, 1, reach::own);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->end(), base + 128 * KiB) << "what is left of both, up to what is anyone's";
  EXPECT_EQ(h.of.allocate_run(32 * KiB, 512, 1, reach::own), nullptr);
  EXPECT_NE(h.of.allocate(32 * KiB, 512, 1), nullptr);
  EXPECT_EQ(wall->state, extent_state::used);
  h.of.check();
}

TEST(heap, a_run_over_batches_serves_the_owner) {
  one_view h(1 * MiB);
  extent* const a = h.of.allocate(512 * KiB, 512, 1);
  extent* const b = h.of.allocate(256 * KiB, 512, 1);
  h.of.release(a, 1, 1, absorb_idle::no);
  h.of.release(b, 1, 2, absorb_idle::no);
  EXPECT_EQ(h.of.allocate(900 * KiB, 512, 1), nullptr);
  EXPECT_EQ(h.of.allocate_run(900 * KiB, 512, 2), nullptr);
  EXPECT_NE(h.of.allocate_run(900 * KiB, 512, 1), nullptr);
  h.of.check();
}

struct three_handles : one_view {
  std::vector<handle_id> ids;
  view_id stitched = 0;
  static constexpr std::uint64_t there = base + 32 * GiB;
  three_handles() : one_view(0) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      ids.push_back(of.add_handle(8 * MiB, 2 * MiB, i));
      EXPECT_TRUE(of.map_handle(primary, base + i * 8 * MiB, ids.back()));
    }
    stitched = of.add_view(there, 1 * GiB, view_kind::stitched);
  }
};

TEST(heap, a_stitched_range_puts_free_ends_side_by_side_and_gives_the_pages_back) {
  three_handles h;
  extent* const low = h.of.allocate(6 * MiB, 512, anyone);
  extent* const gap =
      h.of.allocate(4 * MiB, 512, anyone);  // crosses from the first handle into the second
  extent* const high = h.of.allocate(10 * MiB, 512, anyone);  // up to 20 MiB; 4 MiB are left
  h.of.release(gap, anyone, 0, absorb_idle::no);
  // 4 MiB are free at 6 and 4 at 20: 6 in a row only where the end of the third handle meets the
  // start of the second.
  EXPECT_EQ(h.of.allocate(6 * MiB, 512, anyone), nullptr);
  EXPECT_TRUE(h.of.map_handle(h.stitched, h.there, h.ids[2]));
  EXPECT_TRUE(h.of.map_handle(h.stitched, h.there + 8 * MiB, h.ids[1]));
  h.of.check();
  // The last two spans of the third handle, the first of the second.
  EXPECT_EQ(h.of.allocate_stitched(h.stitched, h.there + 2 * MiB, 6 * MiB, anyone), nullptr)
      << "high uses a span of it";
  extent* const moved = h.of.allocate_stitched(h.stitched, h.there + 4 * MiB, 6 * MiB, anyone);
  ASSERT_NE(moved, nullptr);
  EXPECT_EQ(moved->start(), h.there + 4 * MiB);
  EXPECT_EQ(moved->bytes, 6 * MiB);
  h.of.check();
  EXPECT_EQ(h.of.find(moved->start()), moved);
  // Its pages serve nobody else meanwhile: 2 MiB of the first handle are left.
  EXPECT_EQ(h.of.free_bytes(anyone), 2 * MiB);
  EXPECT_EQ(h.of.allocate_stitched(h.stitched, h.there + 6 * MiB, 4 * MiB, anyone), nullptr);
  h.of.release(moved, anyone, 0, absorb_idle::no);
  h.of.check();
  EXPECT_EQ(h.of.free_bytes(anyone), 8 * MiB);
  EXPECT_NE(h.of.allocate(4 * MiB, 512, anyone), nullptr);
  h.of.release(low, anyone, 0, absorb_idle::no);
  h.of.release(high, anyone, 0, absorb_idle::no);
}

TEST(heap, pages_that_a_stitched_range_gives_back_are_free_in_the_order_of_who_gave_them) {
  three_handles h;
  EXPECT_TRUE(h.of.map_handle(h.stitched, h.there, h.ids[1]));
  extent* const moved = h.of.allocate_stitched(h.stitched, h.there, 8 * MiB, 3);
  ASSERT_NE(moved, nullptr);
  h.of.release(moved, 3, 7, absorb_idle::no);
  h.of.check();
  EXPECT_EQ(h.of.free_bytes(3), 8 * MiB);
  EXPECT_EQ(h.of.allocate_stitched(h.stitched, h.there, 8 * MiB, 4),
            nullptr);  // not in another's order
  ASSERT_NE(h.of.allocate_stitched(h.stitched, h.there, 8 * MiB, 3), nullptr);
  h.of.check();
}

TEST(heap, a_hole_left_by_a_handle_is_filled_again) {
  three_handles h;
  extent* const end = h.of.allocate(24 * MiB, 512, anyone);
  h.of.release(end, anyone, 0, absorb_idle::no);
  EXPECT_TRUE(h.of.map_handle(h.stitched, h.there, h.ids[1]));
  EXPECT_TRUE(h.of.remove_handle(h.ids[1]));
  h.of.check();
  EXPECT_EQ(h.of.allocate(12 * MiB, 512, anyone), nullptr);
  EXPECT_TRUE(h.of.map_handle(h.primary, base + 8 * MiB, h.of.add_handle(8 * MiB, 4 * MiB, 9)));
  h.of.check();
  EXPECT_NE(h.of.allocate(24 * MiB, 512, anyone), nullptr);
}

TEST(heap, a_view_gets_shorter_where_its_last_handle_goes) {
  three_handles h;
  EXPECT_TRUE(h.of.map_handle(h.stitched, h.there, h.ids[2]));
  EXPECT_TRUE(h.of.remove_handle(h.ids[2]));
  h.of.check();
  EXPECT_EQ(h.of.views()[h.primary].end, base + 16 * MiB);
  EXPECT_EQ(h.of.views()[h.stitched].end, h.there);
  EXPECT_EQ(h.of.mappings(), 2u);
}

// Every operation in random order, the walker after each tenth: stitched ranges of any stretch
// among them.
TEST(heap, random_operations_keep_every_invariant) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    random pick(seed);
    one_view h(0);
    const view_id stitched = h.of.add_view(base + 32 * GiB, 16 * GiB, view_kind::stitched);
    std::vector<extent*> live;
    std::vector<std::uint64_t> batches(4, 1);
    const auto add = [&] {
      const std::uint64_t bytes = 2 * MiB * pick.between(1, 4);
      EXPECT_TRUE(h.of.map_handle(h.primary, h.of.views()[h.primary].end,
                                  h.of.add_handle(bytes, 2 * MiB, 0)));
    };
    for (int i = 0; i < 6; ++i) add();
    for (int step = 0; step < 600; ++step) {
      const auto owner = static_cast<owner_id>(pick.between(1, 3));
      const std::uint64_t what = pick.below(100);
      if (what < 50) {
        const std::uint64_t bytes = align_up(pick.log_uniform(512, 12 * MiB), granule);
        const zone from = bytes <= 512 * KiB && pick.chance(0.5) ? zone::small : zone::general;
        extent* s =
            h.of.allocate(bytes, granule << pick.below(5), owner, reach::own_and_idle, from);
        if (s == nullptr) s = h.of.allocate_run(bytes, granule, owner);
        if (s != nullptr) {
          ASSERT_GE(s->bytes, bytes);
          live.push_back(s);
        }
      } else if (what < 80 && !live.empty()) {
        const std::size_t i = pick.below(live.size());
        h.of.release(live[i], owner, batches[owner],
                     pick.chance(0.3) ? absorb_idle::yes : absorb_idle::no);
        live[i] = live.back();
        live.pop_back();
      } else if (what < 87) {
        h.of.retire(owner, batches[owner]++);
      } else if (what < 90) {
        const auto id = static_cast<handle_id>(pick.below(h.of.handles().size()));
        if (h.of.handles()[id].present) {
          EXPECT_TRUE(h.of.map_handle(stitched, h.of.views()[stitched].end, id));
        }
      } else if (what < 97) {
        const auto& slots = h.of.views()[stitched].slots;
        if (!slots.empty()) {
          const std::size_t first = pick.below(slots.size());
          std::uint64_t bytes = 0;
          std::vector<span_id> seen;
          for (std::size_t i = first; i < slots.size() && i < first + pick.between(1, 6); ++i) {
            if (slots[i].span == no_span ||
                std::find(seen.begin(), seen.end(), slots[i].span) != seen.end())
              break;
            seen.push_back(slots[i].span);
            bytes += slots[i].bytes;
          }
          if (bytes > 0) {
            if (extent* const s = h.of.allocate_stitched(stitched, slots[first].at, bytes, owner))
              live.push_back(s);
          }
        }
      } else {
        const auto id = static_cast<handle_id>(pick.below(h.of.handles().size()));
        const auto& handle = h.of.handles()[id];
        const auto free = [&](span_id s) { return h.of.wholly_free(s, anyone); };
        if (handle.present && std::all_of(handle.spans.begin(), handle.spans.end(), free)) {
          EXPECT_TRUE(h.of.remove_handle(id));
          add();
        }
      }
      if (step % 10 == 0) h.of.check();
    }
    for (extent* s : live) h.of.release(s, anyone, 0, absorb_idle::no);
    for (owner_id o = 1; o <= 3; ++o) h.of.retire(o, ~std::uint64_t{0});
    h.of.check();
    for (span_id s = 0; s < h.of.spans().size(); ++s) {
      EXPECT_TRUE(!h.of.spans()[s].present || h.of.wholly_free(s, anyone)) << s;
    }
  }
}

}  // namespace
}  // namespace millpond::heap
