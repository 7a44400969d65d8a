// The validator against broken plans: each mistake a solver could make must be found and named.
#include "plan/validate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "plan/bound.hpp"

namespace millpond::plan {
namespace {

using testing::HasSubstr;

buffer make(std::string id, std::int64_t lower, std::int64_t upper, std::uint64_t size) {
  return {std::move(id), lower, upper, size, 1, {}, std::nullopt};
}

std::string verdict(const problem& of, const offsets& at) {
  const auto checked = validate(of, at);
  return checked ? "valid" : checked.error().message;
}

TEST(plan_validate, accepts_a_plan_and_gives_its_peak) {
  const problem of{{make("a", 0, 5, 10), make("b", 5, 9, 10), make("c", 0, 9, 4)}, 14};
  const auto checked = validate(of, {0, 0, 10});
  ASSERT_TRUE(checked) << checked.error().message;
  EXPECT_EQ(*checked, 14u);
}

TEST(plan_validate, finds_buffers_that_share_a_byte) {
  const problem of{{make("a", 0, 5, 10), make("b", 4, 9, 10)}, {}};
  EXPECT_THAT(verdict(of, {0, 9}),
              HasSubstr("buffer a at [0, 10) and buffer b at [9, 19) share bytes at time 4"));
  EXPECT_THAT(verdict(of, {9, 0}), HasSubstr("share bytes"));
  EXPECT_THAT(verdict(of, {0, 0}), HasSubstr("share bytes"));
  EXPECT_EQ(verdict(of, {0, 10}), "valid");
}

TEST(plan_validate, finds_one_inside_another_and_one_around_two) {
  const problem of{{make("big", 0, 9, 100), make("small", 3, 4, 1), make("last", 5, 6, 5)}, {}};
  EXPECT_THAT(verdict(of, {0, 50, 100}), HasSubstr("share bytes"));
  EXPECT_THAT(verdict(of, {10, 9, 6}), HasSubstr("buffer last"));
  EXPECT_EQ(verdict(of, {10, 9, 5}), "valid");
}

TEST(plan_validate, finds_every_other_mistake) {
  problem of{{make("a", 0, 5, 10), make("b", 4, 9, 10)}, 20};
  EXPECT_THAT(verdict(of, {0}), HasSubstr("1 offsets for 2 buffers"));
  EXPECT_THAT(verdict(of, {0, 11}), HasSubstr("passes the capacity 20 by 1"));
  EXPECT_THAT(verdict(of, {0, ~std::uint64_t{0}}), HasSubstr("pass 2^63"));
  EXPECT_THAT(verdict(of, {0, size_limit - 5}), HasSubstr("pass 2^63"));
  of.buffers[1].alignment = 8;
  EXPECT_THAT(verdict(of, {0, 10}), HasSubstr("not aligned to 8"));
  of.buffers[1].alignment = 1;
  of.buffers[0].fixed = 10;
  EXPECT_THAT(verdict(of, {0, 10}), HasSubstr("not at its fixed offset 10"));
  EXPECT_EQ(verdict(of, {10, 0}), "valid");
}

TEST(plan_validate, a_gap_lets_others_in_and_no_longer_than_it_lasts) {
  problem of{{make("a", 0, 9, 10), make("b", 3, 6, 10)}, {}};
  of.buffers[0].gaps = {{3, 6}};
  EXPECT_EQ(verdict(of, {0, 0}), "valid");
  of.buffers[1].upper = 7;
  EXPECT_THAT(verdict(of, {0, 0}), HasSubstr("share bytes at time 6"));
}

// Plans spoilt at random: the sweep must agree with the definition, checked pair by pair.
TEST(plan_validate, agrees_with_the_definition_on_random_plans) {
  random any(7);
  int valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    problem of;
    offsets at;
    for (std::uint64_t i = 0, n = any.between(1, 6); i < n; ++i) {
      const auto lower = static_cast<std::int64_t>(any.below(8));
      of.buffers.push_back(make(std::to_string(i), lower,
                                lower + static_cast<std::int64_t>(any.below(5)),
                                any.between(1, 4)));
      at.push_back(any.below(12));
    }
    bool good = true;
    for (std::size_t i = 0; i < at.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const buffer& x = of.buffers[i];
        const buffer& y = of.buffers[j];
        const bool in_time = std::max(x.lower, y.lower) < std::min(x.upper, y.upper);
        const bool in_bytes = std::max(at[i], at[j]) < std::min(at[i] + x.size, at[j] + y.size);
        good = good && !(in_time && in_bytes);
      }
    ASSERT_EQ(verdict(of, at) == "valid", good) << verdict(of, at);
    valid += good ? 1 : 0;
  }
  EXPECT_GT(valid, 1000);
  EXPECT_LT(valid, 19'000);
}

TEST(plan_bound, is_the_peak_load_and_explains_an_impossible_capacity) {
  problem of{{make("a", 0, 5, 10), make("b", 4, 9, 10), make("c", 5, 9, 9)}, {}};
  const auto bound = peak_load(of);
  ASSERT_TRUE(bound);
  EXPECT_EQ(bound->bytes, 20u);
  EXPECT_EQ(bound->time, 4);
  EXPECT_EQ(bound->buffers_live, 2u);
  EXPECT_THAT(explain_impossible(*bound, 15),
              HasSubstr("20 bytes are live at time 4 (2 buffers), 5 more than the capacity"));
  of.buffers[0].fixed = 100;
  EXPECT_EQ(peak_load(of)->bytes, 110u);
  EXPECT_THAT(explain_impossible(*peak_load(of), 15),
              HasSubstr("fixed offset of buffer a ends at 110"));
}

TEST(plan_bound, loads_of_2_63_bytes_are_an_error) {
  const problem of{{make("a", 0, 5, size_limit - 1), make("b", 4, 9, 1)}, {}};
  EXPECT_FALSE(peak_load(of));
}

}  // namespace
}  // namespace millpond::plan
