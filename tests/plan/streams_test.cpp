#include "plan/streams.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "base/random.hpp"

namespace millpond::plan {
namespace {

using testing::HasSubstr;

TEST(plan_streams, buffers_of_unordered_streams_never_share) {
  stream_problem of;
  of.buffers = {{"a", 10, 1, {{0, 0, 1}}}, {"b", 10, 1, {{1, 5, 6}}}};
  const auto apart = solve_streams(of, {});
  ASSERT_TRUE(apart);
  EXPECT_EQ(apart->peak, 20u);
  EXPECT_TRUE(apart->proved_optimal);
  of.waits = {{1, 5, 0, 1}};
  EXPECT_EQ(solve_streams(of, {})->peak, 10u);
  of.waits = {{1, 5, 0, 0}};  // waits for too little
  EXPECT_EQ(solve_streams(of, {})->peak, 20u);
  of.waits = {{1, 6, 0, 1}};  // waits too late
  EXPECT_EQ(solve_streams(of, {})->peak, 20u);
}

TEST(plan_streams, order_passes_through_a_third_stream) {
  stream_problem of;
  of.buffers = {{"a", 10, 1, {{0, 0, 1}}}, {"b", 10, 1, {{1, 5, 6}}}};
  of.waits = {{2, 3, 0, 1}, {1, 5, 2, 3}};
  EXPECT_EQ(solve_streams(of, {})->peak, 10u);
  of.waits = {{2, 3, 0, 1},
              {1, 5, 2, 2}};  // the third stream's wait comes after what is waited for
  EXPECT_EQ(solve_streams(of, {})->peak, 20u);
}

TEST(plan_streams, a_buffer_used_on_two_streams_is_free_only_after_both) {
  stream_problem of;
  of.buffers = {{"a", 10, 1, {{0, 0, 1}, {1, 0, 3}}}, {"b", 10, 1, {{0, 2, 4}}}};
  EXPECT_EQ(solve_streams(of, {})->peak, 20u);
  of.waits = {{0, 2, 1, 3}};
  EXPECT_EQ(solve_streams(of, {})->peak, 10u);
}

TEST(plan_streams, waits_in_a_circle_and_broken_buffers_are_errors) {
  stream_problem of;
  of.buffers = {{"a", 10, 1, {{0, 0, 1}}}};
  of.waits = {{0, 1, 1, 1}, {1, 1, 0, 1}};
  EXPECT_THAT(solve_streams(of, {}).error().message, HasSubstr("circle"));
  of.waits = {{0, 1, 1, 0}, {1, 1, 0, 0}};
  EXPECT_TRUE(solve_streams(of, {}));
  of.buffers[0].size = 0;
  EXPECT_THAT(solve_streams(of, {}).error().message, HasSubstr("buffer a: the size"));
  of.buffers[0] = {"a", 10, 1, {}};
  EXPECT_THAT(solve_streams(of, {}).error().message, HasSubstr("no use"));
}

TEST(plan_streams, an_impossible_capacity_is_proved_by_buffers_in_use_at_once) {
  stream_problem of;
  of.buffers = {{"a", 10, 1, {{0, 0, 1}}}, {"b", 10, 1, {{1, 5, 6}}}};
  of.capacity = 15;
  const auto found = solve_streams(of, {});
  EXPECT_EQ(found->what, outcome::impossible);
  EXPECT_THAT(found->reason, HasSubstr("5 more than the capacity"));
}

// The clocks of the solver against the walk of the validator, and the plans against both.
TEST(plan_streams, conflicts_are_what_the_validator_says_on_random_programs) {
  random any(3);
  int conflicts_seen = 0;
  int shares_seen = 0;
  for (int round = 0; round < 300; ++round) {
    stream_problem of;
    for (std::uint64_t k = 0, n = any.between(1, 10); k < n; ++k) {
      stream_buffer b{std::to_string(k), any.between(1, 9), any.between(1, 3), {}};
      for (std::uint64_t u = any.between(1, 2); u > 0; --u) {
        const std::uint64_t first = any.below(10);
        b.uses.push_back({static_cast<std::uint32_t>(any.below(3)), first, first + any.below(3)});
      }
      of.buffers.push_back(std::move(b));
    }
    for (std::uint64_t k = any.below(8); k > 0; --k) {  // forward in time, so never a circle
      const std::uint64_t at = any.between(1, 12);
      of.waits.push_back({static_cast<std::uint32_t>(any.below(3)), at,
                          static_cast<std::uint32_t>(any.below(3)), any.below(at)});
    }
    const auto conflicts = find_conflicts(of);
    ASSERT_TRUE(conflicts) << conflicts.error().message;
    for (std::uint32_t i = 0; i < of.buffers.size(); ++i)
      for (std::uint32_t j = 0; j < i; ++j) {
        const bool said = std::binary_search((*conflicts)[i].begin(), (*conflicts)[i].end(), j);
        const stream_problem pair{{of.buffers[i], of.buffers[j]}, of.waits, {}};
        ASSERT_EQ(said, !validate_streams(pair, {0, 0}))
            << "round " << round << " buffers " << j << " and " << i;
        (said ? conflicts_seen : shares_seen) += 1;
      }
    solve_options options;
    options.node_limit = 20'000;
    const auto found = solve_streams(of, options);
    ASSERT_TRUE(found);
    EXPECT_TRUE(validate_streams(of, found->offsets));
    EXPECT_GE(found->peak, found->lower_bound);
  }
  EXPECT_GT(conflicts_seen, 500);
  EXPECT_GT(shares_seen, 500);
}

// The smallest peak of all, with the validator as the only judge: every offset up to the best known
// one is tried for every buffer, so nothing of the solver or of its argument about orders is
// believed.
std::uint64_t best_by_brute_force(const stream_problem& of, std::uint64_t known) {
  offsets at(of.buffers.size(), 0);
  std::uint64_t best = known;
  const std::function<void(std::size_t, std::uint64_t)> place = [&](std::size_t i,
                                                                    std::uint64_t peak) {
    if (peak >= best) return;
    if (i == of.buffers.size()) {
      best = peak;
      return;
    }
    stream_problem some{
        {of.buffers.begin(), of.buffers.begin() + static_cast<std::ptrdiff_t>(i) + 1},
        of.waits,
        {}};
    for (std::uint64_t offset = 0; offset + of.buffers[i].size < best;
         offset += of.buffers[i].alignment) {
      at[i] = offset;
      if (validate_streams(some, {at.begin(), at.begin() + static_cast<std::ptrdiff_t>(i) + 1}))
        place(i + 1, std::max(peak, offset + of.buffers[i].size));
    }
  };
  place(0, 0);
  return best;
}

TEST(plan_streams, is_optimal_on_small_problems_as_brute_force_over_all_offsets) {
  random any(11);
  int above_the_clique = 0;
  for (int round = 0; round < 120; ++round) {
    stream_problem of;
    for (std::uint64_t k = 0, n = any.between(2, 5); k < n; ++k) {
      stream_buffer b{std::to_string(k), any.between(1, 4), any.between(1, 2), {}};
      for (std::uint64_t u = any.between(1, 2); u > 0; --u) {
        const std::uint64_t first = any.below(8);
        b.uses.push_back({static_cast<std::uint32_t>(any.below(3)), first, first + any.below(3)});
      }
      of.buffers.push_back(std::move(b));
    }
    for (std::uint64_t k = any.below(10); k > 0; --k) {
      const std::uint64_t at = any.between(1, 9);
      of.waits.push_back({static_cast<std::uint32_t>(any.below(3)), at,
                          static_cast<std::uint32_t>(any.below(3)), any.below(at)});
    }
    const auto found = solve_streams(of, {});
    ASSERT_TRUE(found);
    ASSERT_EQ(validate_streams(of, found->offsets).value(), found->peak);
    const std::uint64_t best = best_by_brute_force(of, found->peak);
    EXPECT_EQ(found->peak, best) << "round " << round;
    EXPECT_TRUE(found->proved_optimal) << "round " << round;
    above_the_clique +=
        found->stats.method == "every order" || found->stats.placements > 1000 ? 1 : 0;
    of.capacity = found->peak - 1;
    EXPECT_EQ(solve_streams(of, {})->what, outcome::impossible);
  }
  RecordProperty("above_the_clique", above_the_clique);
}

// Many buffers on many streams: every plan passes the validator, and is never below what must be in
// use at once.
TEST(plan_streams, large_random_programs_get_valid_plans_near_the_bound) {
  random any(5);
  stream_problem of;
  for (std::uint64_t k = 0; k < 400; ++k) {
    const std::uint64_t first = any.below(2000);
    of.buffers.push_back(
        {std::to_string(k),
         any.log_uniform(1000, 1'000'000),
         512,
         {{static_cast<std::uint32_t>(any.below(4)), first, first + any.below(60)}}});
  }
  for (std::uint64_t at = 50; at < 2000; at += 50)  // the streams meet now and then
    for (std::uint32_t to = 0; to < 4; ++to) of.waits.push_back({to, at, (to + 1) % 4, at - 1});
  solve_options options;
  options.node_limit = 400'000;
  const auto found = solve_streams(of, options);
  ASSERT_TRUE(found);
  EXPECT_EQ(validate_streams(of, found->offsets).value(), found->peak);
  EXPECT_LE(static_cast<double>(found->peak), 1.25 * static_cast<double>(found->lower_bound));
}

TEST(plan_streams, the_validator_finds_broken_plans) {
  stream_problem of;
  of.buffers = {{"a", 10, 4, {{0, 0, 1}}}, {"b", 10, 1, {{1, 5, 6}}}};
  of.capacity = 30;
  EXPECT_TRUE(validate_streams(of, {0, 10}));
  EXPECT_THAT(validate_streams(of, {0, 9}).error().message, HasSubstr("share bytes"));
  EXPECT_THAT(validate_streams(of, {2, 12}).error().message, HasSubstr("not aligned to 4"));
  EXPECT_THAT(validate_streams(of, {0, 21}).error().message, HasSubstr("past the capacity 30"));
  EXPECT_THAT(validate_streams(of, {0}).error().message, HasSubstr("1 offsets for 2 buffers"));
  of.waits = {{1, 5, 0, 1}};
  EXPECT_TRUE(validate_streams(of, {0, 9}));
}

}  // namespace
}  // namespace millpond::plan
