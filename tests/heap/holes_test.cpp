// Addresses that handles have left, and handles on their way out.
#include <gtest/gtest.h>

#include <vector>

#include "heap/heap_fixture.hpp"
#include "heap/stitch.hpp"

namespace millpond::heap {
namespace {

// Handles of these sizes side by side in the primary view, spans of 2 MiB; and an empty stitched
// view.
struct several : one_view {
  std::vector<handle_id> ids;
  std::vector<std::uint64_t> at;
  view_id stitched = 0;
  static constexpr std::uint64_t there = base + 32 * GiB;
  explicit several(std::initializer_list<std::uint64_t> sizes_mib) : one_view(0) {
    for (const std::uint64_t mib : sizes_mib) {
      at.push_back(of.views()[primary].end);
      ids.push_back(of.add_handle(mib * MiB, 2 * MiB, ids.size()));
      EXPECT_TRUE(of.map_handle(primary, at.back(), ids.back()));
    }
    stitched = of.add_view(there, 64 * MiB, view_kind::stitched);
  }
  void remove(std::size_t i) {
    EXPECT_TRUE(of.remove_handle(ids[i]));
    of.check();
  }
};

TEST(heap_holes, the_lowest_that_is_long_enough_is_found) {
  several h({4, 2, 8, 2, 6, 2, 8, 2});
  EXPECT_EQ(h.of.lowest_hole(view_kind::primary, 2 * MiB).view, no_view);
  for (const std::size_t i : {6u, 4u, 2u, 0u}) h.remove(i);
  const heap::place low = h.of.lowest_hole(view_kind::primary, 4 * MiB);
  EXPECT_EQ(low.at, base);
  EXPECT_EQ(low.room, 4 * MiB);
  EXPECT_EQ(h.of.lowest_hole(view_kind::primary, 5 * MiB).at, h.at[2]);
  EXPECT_EQ(h.of.lowest_hole(view_kind::primary, 9 * MiB).view, no_view);
  EXPECT_EQ(h.of.lowest_hole(view_kind::stitched, 2 * MiB).view, no_view);
  EXPECT_EQ(h.of.vacant_at(h.primary, h.at[4]), 6 * MiB);
  EXPECT_EQ(h.of.vacant_at(h.primary, h.at[4] + 2 * MiB), 0u);
  EXPECT_EQ(h.of.vacant_at(h.primary, h.at[3]), 0u);
}

TEST(heap_holes, holes_side_by_side_are_one_and_one_at_the_end_is_none) {
  several h({4, 4, 4, 2});
  for (const std::size_t i : {0u, 2u, 1u}) h.remove(i);
  EXPECT_EQ(h.of.vacant_at(h.primary, base), 12 * MiB);
  EXPECT_EQ(h.of.views()[h.primary].slots.size(), 2u);
  h.remove(3);
  EXPECT_EQ(h.of.views()[h.primary].end, base);
  EXPECT_EQ(h.of.views()[h.primary].first, nullptr);
  EXPECT_EQ(h.of.views()[h.primary].farthest_end, base + 14 * MiB);
  EXPECT_EQ(h.of.lowest_hole(view_kind::primary, 2 * MiB).view, no_view);
}

TEST(heap_holes, several_handles_fill_one_and_what_is_left_stays_a_hole) {
  several h({2, 16, 2});
  h.remove(1);
  const std::vector<handle_id> made = {h.of.add_handle(4 * MiB, 2 * MiB, 7),
                                       h.of.add_handle(6 * MiB, 2 * MiB, 8)};
  ASSERT_TRUE(h.of.map_handles(h.primary, h.at[1], made));
  h.of.check();
  EXPECT_EQ(h.of.vacant_at(h.primary, h.at[1] + 10 * MiB), 6 * MiB);
  EXPECT_EQ(h.of.largest_free(anyone), 12 * MiB);
  const handle_id last = h.of.add_handle(6 * MiB, 2 * MiB, 9);
  ASSERT_TRUE(h.of.map_handle(h.primary, h.at[1] + 10 * MiB, last));
  h.of.check();
  EXPECT_EQ(h.of.largest_free(anyone), 20 * MiB);
}

// What is free beside a hole counts, before it and, where it is filled, behind it.
TEST(heap_holes, a_request_is_given_the_hole_that_takes_the_fewest_new_bytes) {
  several h({8, 8, 8, 8, 8});
  h.remove(1);
  h.remove(3);
  // In use: the first 4 MiB, and the last handle. Free: 4 MiB before the first hole, 8 between.
  extent* const low = h.of.allocate_at(base, 4 * MiB);
  extent* const high = h.of.allocate_at(h.at[4], 8 * MiB);
  ASSERT_TRUE(low != nullptr && high != nullptr);
  const heap::place tight = h.of.hole_for(10 * MiB, anyone, 2 * MiB);
  EXPECT_EQ(tight.at, h.at[3]) << "behind 8 MiB that are free";
  EXPECT_EQ(tight.missing, 2 * MiB);
  EXPECT_EQ(tight.room, 8 * MiB);
  const heap::place filled = h.of.hole_for(20 * MiB, anyone, 2 * MiB);
  EXPECT_EQ(filled.at, h.at[1]) << "4 before it, 8 new, 8 behind it";
  EXPECT_EQ(filled.missing, 8 * MiB);
  EXPECT_EQ(h.of.hole_for(21 * MiB, anyone, 2 * MiB).view, no_view);
  // Another's free memory is of no use.
  extent* const between = h.of.allocate_at(h.at[2], 8 * MiB);
  h.of.release(between, 2, 1, absorb_idle::no);
  EXPECT_EQ(h.of.hole_for(10 * MiB, 1, 2 * MiB).at, h.at[1]);
  EXPECT_EQ(h.of.hole_for(10 * MiB, 1, 2 * MiB).missing, 6 * MiB);
  EXPECT_EQ(h.of.hole_for(10 * MiB, 2, 2 * MiB).at, h.at[3]);
}

TEST(heap_holes, those_of_stitched_views_are_used_again) {
  several h({8, 8, 8});
  const std::vector<handle_id> all = {h.ids[2], h.ids[0], h.ids[1]};
  ASSERT_TRUE(h.of.map_handles(h.stitched, h.there, all));
  h.remove(0);
  const heap::place hole = h.of.lowest_hole(view_kind::stitched, 8 * MiB);
  EXPECT_EQ(hole.at, h.there + 8 * MiB);
  ASSERT_TRUE(h.of.map_handle(h.stitched, hole.at, h.ids[1]));
  h.of.check();
  EXPECT_EQ(h.of.lowest_hole(view_kind::stitched, 2 * MiB).view, no_view);
  extent* const block = h.of.allocate_stitched(h.stitched, h.there, 16 * MiB, anyone);
  ASSERT_NE(block, nullptr);
  h.of.check();
  h.of.release(block, anyone, 0, absorb_idle::no);
  h.of.check();
  h.remove(2);
  h.remove(1);
  EXPECT_EQ(h.of.views()[h.stitched].end, h.there);
  EXPECT_EQ(h.of.mappings(), 0u);
}

TEST(heap_holes, a_plan_goes_on_behind_a_stitched_range_only_where_addresses_are_left) {
  several h({8, 8, 8, 8, 8, 8, 8, 8});
  // The view has 64 MiB, of which 60 are taken; at its end lies the last handle.
  const handle_id wide = h.of.add_handle(52 * MiB, 2 * MiB, 99);
  ASSERT_TRUE(h.of.map_handle(h.primary, h.of.views()[h.primary].end, wide));
  const std::vector<handle_id> there = {wide, h.ids[7]};
  ASSERT_TRUE(h.of.map_handles(h.stitched, h.there, there));
  extent* const used = h.of.allocate_at(h.of.views()[h.primary].end - 52 * MiB, 52 * MiB);
  std::vector<extent*> walls;
  for (const std::size_t i : {0u, 2u, 4u, 6u}) walls.push_back(h.of.allocate_at(h.at[i], 8 * MiB));
  const stitch_plan plan = plan_stitch(h.of, 16 * MiB, anyone);
  ASSERT_TRUE(plan.possible);
  EXPECT_EQ(plan.view, new_view);
  EXPECT_EQ(plan.new_bytes, 0u);
  EXPECT_NE(used, nullptr);
}

TEST(heap_holes, a_handle_that_is_held_is_nobodys_and_is_let_go_as_it_was) {
  several h({8, 8, 8});
  ASSERT_TRUE(h.of.map_handle(h.stitched, h.there, h.ids[1]));
  const heap_books before(h.of);
  ASSERT_TRUE(h.of.hold_handle(h.ids[1]));
  h.of.check();
  EXPECT_EQ(h.of.largest_free(anyone), 8 * MiB);
  EXPECT_EQ(h.of.allocate_stitched(h.stitched, h.there, 4 * MiB, anyone), nullptr);
  EXPECT_FALSE(h.of.wholly_free(h.of.handles()[h.ids[1]].spans[0], anyone));
  EXPECT_TRUE(h.of.holds_used(h.ids[1]));
  h.of.let_go_handle(h.ids[1]);
  EXPECT_EQ(heap_books(h.of), before);

  extent* const part = h.of.allocate_at(h.at[1] + 2 * MiB, 512);
  EXPECT_FALSE(h.of.hold_handle(h.ids[1])) << "a block is in it";
  EXPECT_FALSE(h.of.remove_handle(h.ids[1]));
  h.of.release(part, 1, 1, absorb_idle::no);
  EXPECT_FALSE(h.of.hold_handle(h.ids[1])) << "a part is its owner's";
  EXPECT_EQ(h.of.last_refusal(), refusal::no_room);
  h.of.retire(1, 1);
  EXPECT_TRUE(h.of.remove_handle(h.ids[1]));
  h.of.check();
}

}  // namespace
}  // namespace millpond::heap
