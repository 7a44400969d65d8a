// Host memory that runs out, and tables that are full: what takes memory on is refused with the
// books as they were, and what gives memory back asks the host for nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/bits.hpp"
#include "base/random.hpp"
#include "heap/heap_fixture.hpp"
#include "heap/stitch.hpp"
#include "support/failing_new.hpp"

namespace millpond::heap {
namespace {

class heap_host_memory : public testing::Test {
 protected:
  // The operation with each host allocation in it failing, one after the other, until it is served.
  template <class Operation>
  void served_in_the_end(const Operation& operation) {
    const heap_books before(h.of);
    refusals += fail_each_in_turn(operation, [&] {
      EXPECT_EQ(h.of.last_refusal(), refusal::host_memory);
      EXPECT_EQ(heap_books(h.of), before);
    });
    h.of.check();
  }
  // Nothing in it asks the host.
  template <class Operation>
  void asks_for_nothing(const Operation& operation) {
    bool asked = false;
    {
      const failing_new failing(0, failing_new::which::all_from_there);
      operation();
      asked = failing.failed();
    }
    EXPECT_FALSE(asked);
  }
  void allocate_many(int count, std::uint64_t bytes, std::uint64_t alignment, zone from) {
    for (int i = 0; i < count; ++i) {
      served_in_the_end([&] {
        extent* const made = h.of.allocate(bytes, alignment, 1, reach::own_and_idle, from);
        if (made == nullptr) return false;
        failing_new::pause spare;
        live.push_back(made);
        return true;
      });
    }
    EXPECT_GT(refusals, 0u) << "the host was never asked";
  }
  void release_all() {
    asks_for_nothing([&] {
      for (std::size_t i = 0; i < live.size(); i += 2) h.of.release(live[i], 1, 1, absorb_idle::no);
      for (std::size_t i = 1; i < live.size(); i += 2) h.of.release(live[i], 2, 1, absorb_idle::no);
      h.of.reassign(2, 1, 3, 5);
      h.of.retire(1, 9);
      h.of.retire(3, 5);
    });
    live.clear();
    h.of.check();
    EXPECT_EQ(h.of.largest_free(anyone), 512 * MiB);
  }

  one_view h{512 * MiB};
  std::vector<extent*> live;
  std::uint64_t refusals = 0;
};

TEST_F(heap_host_memory, small_blocks) {
  allocate_many(600, 512, granule, zone::small);
  release_all();
}
TEST_F(heap_host_memory, blocks_of_some_kibibytes_of_which_eight_share_a_page) {
  allocate_many(600, 9 * KiB, granule, zone::general);
  release_all();
}
TEST_F(heap_host_memory, blocks_that_leave_something_before_and_behind) {
  allocate_many(400, 1536, 64 * KiB, zone::general);
  release_all();
}

TEST_F(heap_host_memory, runs) {
  for (int i = 0; i < 300; ++i) {
    // Two batches side by side, which no block but a run crosses.
    extent* const a = h.of.allocate(64 * KiB, granule, 1);
    extent* const b = h.of.allocate(32 * KiB, granule, 1);
    extent* const wall = h.of.allocate(512, granule, 1);
    ASSERT_TRUE(a != nullptr && b != nullptr && wall != nullptr);
    h.of.release(a, 1, 1, absorb_idle::no);
    h.of.release(b, 1, 2, absorb_idle::no);
    live.push_back(wall);
    served_in_the_end([&] {
      extent* const made = h.of.allocate_run(80 * KiB, granule, 1, reach::own);
      if (made == nullptr) return false;
      failing_new::pause spare;
      live.push_back(made);
      return true;
    });
  }
  EXPECT_GT(refusals, 0u);
  release_all();
}

// Handles of 8 MiB, each with its last 4 free, make stitched ranges of two.
TEST_F(heap_host_memory, handles_and_stitched_ranges) {
  const view_id stitched = h.of.add_view(base + 32 * GiB, 16 * GiB, view_kind::stitched);
  extent* const all = h.of.allocate(512 * MiB, granule, anyone);
  std::vector<handle_id> ids;
  for (int i = 0; i < 120; ++i) {
    const std::uint64_t at = h.of.views()[h.primary].end;
    served_in_the_end([&] {
      const handle_id made = h.of.add_handle(8 * MiB, 2 * MiB, 1);
      if (made == no_handle) return false;
      failing_new::pause spare;
      ids.push_back(made);
      return true;
    });
    served_in_the_end([&] { return h.of.map_handle(h.primary, at, ids.back()); });
    live.push_back(h.of.allocate_at(at, 4 * MiB));
    ASSERT_NE(live.back(), nullptr);
    const std::uint64_t end = h.of.views()[stitched].end;
    served_in_the_end([&] { return h.of.map_handle(stitched, end, ids.back()); });
  }
  EXPECT_GT(refusals, 0u);
  refusals = 0;
  std::vector<extent*> blocks;
  for (const handle_id id : ids) {
    served_in_the_end([&] {
      extent* const made = h.of.allocate_stitched(
          stitched, h.of.handles()[id].mappings.back().at + 4 * MiB, 4 * MiB, 1);
      if (made == nullptr) return false;
      failing_new::pause spare;
      blocks.push_back(made);
      return true;
    });
  }
  EXPECT_GT(refusals, 0u);
  asks_for_nothing([&] {
    for (extent* const block : blocks) h.of.release(block, 2, 1, absorb_idle::no);
    for (extent* const block : live) h.of.release(block, anyone, 0, absorb_idle::no);
    h.of.retire(2, 1);
  });
  h.of.check();
  EXPECT_EQ(h.of.free_bytes(anyone), ids.size() * 8 * MiB);
  for (std::size_t i = 0; i < ids.size(); i += 2) {
    served_in_the_end([&] { return h.of.hold_handle(ids[i]); });
    asks_for_nothing([&] { h.of.let_go_handle(ids[i]); });
    served_in_the_end([&] { return h.of.hold_handle(ids[i]); });
    asks_for_nothing([&] { EXPECT_TRUE(h.of.remove_handle(ids[i])); });
    h.of.check();
  }
  for (std::size_t i = 1; i < ids.size(); i += 2)
    served_in_the_end([&] { return h.of.remove_handle(ids[i]); });
  h.of.release(all, anyone, 0, absorb_idle::no);
  EXPECT_EQ(h.of.free_bytes(anyone), 512 * MiB);
}

TEST_F(heap_host_memory, views_owners_and_chunks) {
  for (int i = 0; i < 20; ++i) {
    served_in_the_end([&] {
      return h.of.open_view(base + (64 + static_cast<std::uint64_t>(i)) * GiB, GiB) != no_view;
    });
  }
  EXPECT_GT(refusals, 0u);
  refusals = 0;
  for (owner_id owner = 5; owner < 25; ++owner)
    served_in_the_end([&] { return h.of.open_owner(owner); });
  EXPECT_GT(refusals, 0u);
  refusals = 0;
  for (std::uint64_t i = 0; i < 40; ++i) {
    served_in_the_end([&] { return h.of.prepare_chunk(32 * MiB); });
    // What was prepared is there, whatever is taken meanwhile.
    for (int k = 0; k < 20; ++k) live.push_back(h.of.allocate(64 * KiB, granule, 1));
    asks_for_nothing([&] { h.of.enter_chunk(base + (100 + i) * GiB, 32 * MiB, i); });
    h.of.check();
  }
  EXPECT_GT(refusals, 0u);
  EXPECT_EQ(h.of.free_bytes(anyone), 512 * MiB + 40 * (32 * MiB - 20 * (64 * KiB)));
}

TEST_F(heap_host_memory, a_plan_of_a_stitched_range_is_not_possible_without_it) {
  stitch_plan plan;
  plan.possible = true;
  {
    const failing_new failing(0);
    plan = plan_stitch(h.of, 600 * MiB, anyone);
  }
  EXPECT_FALSE(plan.possible);
  EXPECT_TRUE(plan_stitch(h.of, 600 * MiB, anyone).possible);
}

// Everything in random order, with one of the next allocations failing now and then.
TEST_F(heap_host_memory, random_operations_are_served_or_change_nothing) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    random pick(seed);
    for (int step = 0; step < 500; ++step) {
      const auto owner = static_cast<owner_id>(pick.between(1, 3));
      if (pick.chance(0.6) || live.empty()) {
        const std::uint64_t bytes = align_up(pick.log_uniform(512, 2 * MiB), granule);
        const std::uint64_t alignment = granule << pick.below(8);
        const zone from = bytes <= 64 * KiB && pick.chance(0.5) ? zone::small : zone::general;
        const bool run = pick.chance(0.2);
        served_in_the_end([&] {
          extent* const made =
              run ? h.of.allocate_run(bytes, alignment, owner)
                  : h.of.allocate(bytes, alignment, owner, reach::own_and_idle, from);
          if (made == nullptr) return h.of.last_refusal() == refusal::no_room;
          failing_new::pause spare;
          live.push_back(made);
          return true;
        });
      } else {
        const std::size_t i = pick.below(live.size());
        const absorb_idle absorb = pick.chance(0.3) ? absorb_idle::yes : absorb_idle::no;
        const std::uint64_t batch = pick.between(1, 4);
        asks_for_nothing([&] {
          h.of.release(live[i], owner, batch, absorb);
          if (batch == 1) h.of.retire(owner, 3);
          if (batch == 2) h.of.reassign(owner, 3, owner % 3 + 1, 4);
        });
        live[i] = live.back();
        live.pop_back();
      }
    }
    asks_for_nothing([&] {
      for (extent* const block : live) h.of.release(block, anyone, 0, absorb_idle::no);
      for (owner_id owner = 1; owner <= 3; ++owner) h.of.retire(owner, 9);
    });
    live.clear();
    h.of.check();
    EXPECT_EQ(h.of.largest_free(anyone), 512 * MiB);
  }
  EXPECT_GT(refusals, 0u);
}

TEST(heap_limits, with_as_many_blocks_as_records_another_is_refused_and_frees_make_room) {
  one_view h(16 * MiB, {.records = 1024});
  std::vector<extent*> live;
  while (extent* const made = h.of.allocate(512, granule, 1, reach::own_and_idle, zone::small))
    live.push_back(made);
  EXPECT_GT(live.size(), 1000u);
  EXPECT_EQ(h.of.last_refusal(), refusal::records);
  EXPECT_EQ(h.of.why().message, "the pool has as many blocks as its records can hold (1,024)");
  EXPECT_FALSE(h.of.ready());
  const heap_books before(h.of);
  EXPECT_EQ(h.of.allocate_run(512, granule, 1), nullptr);
  EXPECT_EQ(h.of.last_refusal(), refusal::records);
  EXPECT_EQ(h.of.allocate_at(h.of.views()[h.primary].end - 1024, 512), nullptr);
  const handle_id more = h.of.add_handle(2 * MiB, 2 * MiB, 1);
  EXPECT_FALSE(h.of.map_handle(h.primary, h.of.views()[h.primary].end, more));
  EXPECT_TRUE(h.of.remove_handle(more));
  EXPECT_EQ(heap_books(h.of).extents, before.extents);
  // A block that leaves nothing over needs no record.
  const std::uint64_t at = live[500]->start();
  h.of.release(live[500], 1, 1, absorb_idle::no);
  live[500] = h.of.allocate(512, granule, 1, reach::own_and_idle, zone::small);
  ASSERT_NE(live[500], nullptr);
  EXPECT_EQ(live[500]->start(), at);
  for (extent* const block : live) h.of.release(block, anyone, 0, absorb_idle::no);
  h.of.check();
  EXPECT_EQ(h.of.largest_free(anyone), 16 * MiB);
  EXPECT_NE(h.of.allocate(4096, granule, 1), nullptr);
}

// With each record in use a handle cannot be taken out of what is free on both sides of it.
TEST(heap_limits, a_handle_is_held_before_the_driver_is_asked_or_not_at_all) {
  one_view h(0, {.records = 512});
  std::vector<handle_id> ids;
  for (std::uint64_t i = 0; i < 4; ++i) {
    ids.push_back(h.of.add_handle(2 * MiB, 2 * MiB, i));
    ASSERT_TRUE(h.of.map_handle(h.primary, base + i * 2 * MiB, ids.back()));
  }
  std::vector<extent*> live;
  while (extent* const made = h.of.allocate(512, granule, 1)) live.push_back(made);
  ASSERT_LT(live.size(), 2 * MiB / 512);
  const heap_books before(h.of);
  EXPECT_FALSE(h.of.hold_handle(ids[2]));
  EXPECT_EQ(h.of.last_refusal(), refusal::records);
  EXPECT_FALSE(h.of.remove_handle(ids[2]));
  EXPECT_EQ(heap_books(h.of), before);
  for (int i = 0; i < 4; ++i) {
    h.of.release(live.back(), anyone, 0, absorb_idle::no);
    live.pop_back();
  }
  ASSERT_TRUE(h.of.hold_handle(ids[2]));
  while (extent* const made = h.of.allocate(512, granule, 1)) live.push_back(made);
  EXPECT_TRUE(h.of.remove_handle(ids[2])) << "a handle that is held needs no record";
  h.of.check();
}

TEST(heap_limits, a_chunk_that_was_prepared_enters_whatever_was_taken_meanwhile) {
  one_view h(2 * MiB, {.records = 512});
  ASSERT_TRUE(h.of.prepare_chunk(32 * MiB));
  std::size_t blocks = 0;
  while (h.of.allocate(512, granule, 1) != nullptr) ++blocks;
  EXPECT_EQ(h.of.last_refusal(), refusal::records);
  EXPECT_GT(blocks, 500u);
  h.of.enter_chunk(base + 100 * GiB, 32 * MiB, 1);
  h.of.check();
  EXPECT_EQ(h.of.largest_free(anyone), 32 * MiB);
  EXPECT_FALSE(h.of.prepare_chunk(32 * MiB));
  EXPECT_EQ(h.of.last_refusal(), refusal::records);
}

TEST(heap_limits, as_many_regions_as_there_is_room_for_and_none_too_large_for_the_host) {
  one_view h(2 * MiB, {.regions = 2});
  EXPECT_FALSE(h.of.add_region(base + 128 * GiB, std::uint64_t{1} << 62));
  EXPECT_EQ(h.of.last_refusal(), refusal::host_memory);
  EXPECT_NE(h.of.open_view(base + 128 * GiB, GiB), no_view);
  const heap_books before(h.of);
  EXPECT_FALSE(h.of.room_for_region());
  EXPECT_EQ(h.of.open_view(base + 256 * GiB, GiB), no_view);
  EXPECT_EQ(h.of.last_refusal(), refusal::regions);
  EXPECT_EQ(h.of.why().message,
            "the pool has as many ranges of addresses as its table can hold (2)");
  EXPECT_FALSE(h.of.prepare_chunk(32 * MiB));
  EXPECT_FALSE(h.of.contains(base + 256 * GiB));
  EXPECT_EQ(heap_books(h.of), before);
}

}  // namespace
}  // namespace millpond::heap
