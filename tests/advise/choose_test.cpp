#include "advise/choose.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millpond/base/units.hpp"

namespace millpond::advise {
namespace {

using replay::outcome;
using testing::HasSubstr;

outcome made(const char* name, double allocate_ns, std::uint64_t reserved) {
  outcome one;
  one.strategy = name;
  for (int i = 0; i < 1000; ++i) one.allocate.add(allocate_ns);
  one.allocator_ns = one.allocate.sum_ns();
  one.peak_live_bytes = 100 * MiB;
  one.peak_reserved_bytes = reserved;
  one.run_ns = 1e9;
  return one;
}

TEST(choose, waits_for_the_device_put_a_strategy_out) {
  std::vector<outcome> all{made("plain", 45'000, 100 * MiB), made("pool", 300, 110 * MiB)};
  all[0].device_waits = 1000;
  all[0].device_wait_ns = 37e6;
  const auto answer = choose(all);
  EXPECT_EQ(answer.strategy, "pool");
  ASSERT_EQ(answer.against.size(), 1u);
  EXPECT_THAT(answer.against[0], HasSubstr("1000 of its calls waited"));
}

TEST(choose, memory_decides_between_two_fast_ones) {
  const std::vector<outcome> all{made("fast", 50, 150 * MiB), made("small", 300, 105 * MiB)};
  const auto answer = choose(all);
  EXPECT_EQ(answer.strategy, "small");
  EXPECT_THAT(answer.why, HasSubstr("fast is faster"));
}

TEST(choose, time_decides_where_it_is_a_share_of_the_program) {
  const std::vector<outcome> all{made("fast", 50, 150 * MiB), made("slow", 300'000, 105 * MiB)};
  EXPECT_EQ(choose(all).strategy, "fast");
}

TEST(choose, the_same_memory_leaves_it_to_time) {
  const std::vector<outcome> all{made("slow", 900, 105 * MiB), made("fast", 50, 106 * MiB)};
  EXPECT_EQ(choose(all).strategy, "fast");
}

TEST(choose, wrong_contents_failures_and_foreknowledge_are_out) {
  std::vector<outcome> all{made("wrong", 1, 100 * MiB), made("failing", 1, 100 * MiB),
                           made("arena", 1, 100 * MiB), made("sound", 5000, 300 * MiB)};
  all[0].violation_count = 1;
  all[1].failures = 3;
  all[1].first_failure = "out of memory";
  all[2].needs = replay::strategy_facts::knowledge::whole_workload;
  const auto answer = choose(all);
  EXPECT_EQ(answer.strategy, "sound");
  EXPECT_THAT(answer.against, testing::Contains(HasSubstr("3 requests failed: out of memory")));
}

TEST(choose, with_nothing_left_the_fewest_failures_are_named_as_such) {
  std::vector<outcome> all{made("a", 1, 1), made("b", 1, 1)};
  all[0].failures = 9;
  all[1].failures = 2;
  const auto answer = choose(all);
  EXPECT_EQ(answer.strategy, "b");
  EXPECT_THAT(answer.why, HasSubstr("no strategy served every request"));
}

TEST(choose, nothing_compared_recommends_nothing) {
  const auto answer = choose({});
  EXPECT_TRUE(answer.strategy.empty());
  EXPECT_FALSE(answer.why.empty());
}

}  // namespace
}  // namespace millpond::advise
