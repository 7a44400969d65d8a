// What a miss may cost, by what the last ones cost and whether it helped.
#include "pool/miss_budget.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace millpond {
namespace {

TEST(miss_budget, a_thread_that_comes_alone_finds_nobody_however_often) {
  miss_budget queue;
  for (int n = 0; n < 1000; ++n) {
    const miss_budget::visit here(queue);
    EXPECT_EQ(queue.others(), 0u);
  }
  EXPECT_EQ(queue.slack_times(), 1u);
}

TEST(miss_budget, the_average_rises_to_those_inside_and_falls_when_they_have_gone) {
  miss_budget queue;
  {
    std::vector<std::unique_ptr<miss_budget::visit>> inside;
    for (int n = 0; n < 4; ++n) inside.push_back(std::make_unique<miss_budget::visit>(queue));
    for (int n = 0; n < 100; ++n) const miss_budget::visit passing(queue);
    EXPECT_EQ(queue.others(), 4u);
    EXPECT_EQ(queue.slack_times(), 5u);
  }
  for (int n = 0; n < 100; ++n) const miss_budget::visit passing(queue);
  EXPECT_EQ(queue.others(), 0u);
}

TEST(miss_budget, the_slack_counts_no_more_than_its_bound) {
  miss_budget queue;
  std::vector<std::unique_ptr<miss_budget::visit>> inside;
  for (int n = 0; n < 40; ++n) inside.push_back(std::make_unique<miss_budget::visit>(queue));
  for (int n = 0; n < 400; ++n) const miss_budget::visit passing(queue);
  EXPECT_EQ(queue.slack_times(), miss_budget::most_slack_times);
}

TEST(miss_budget, fences_are_asked_more_where_it_helped_and_less_where_it_did_not) {
  miss_budget budget;
  EXPECT_EQ(budget.questions(), miss_budget::first_questions);
  for (int n = 0; n < 20; ++n) budget.asked(true);
  EXPECT_EQ(budget.questions(), miss_budget::most_questions);
  for (int n = 0; n < 20; ++n) budget.asked(false);
  EXPECT_EQ(budget.questions(), miss_budget::least_questions);
}

TEST(miss_budget, caches_are_emptied_less_often_the_longer_it_does_not_help) {
  miss_budget budget;
  const auto occasions_until_the_next = [&] {
    int occasions = 1;
    while (!budget.may_flush()) ++occasions;
    return occasions;
  };
  for (const int expected : {1, 2, 4, 8, 16, 16}) {
    EXPECT_EQ(occasions_until_the_next(), expected);
    budget.flushed(false);
  }
  EXPECT_EQ(occasions_until_the_next(), 16);
  budget.flushed(true);
  EXPECT_EQ(occasions_until_the_next(), 1);
}

}  // namespace
}  // namespace millpond
