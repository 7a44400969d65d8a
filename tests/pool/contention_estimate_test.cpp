// The queue in a pool's slow path: what it counts, and that the slack follows it.
#include "pool/contention_estimate.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace millpond {
namespace {

TEST(contention_estimate, a_thread_that_comes_alone_finds_nobody_however_often) {
  contention_estimate queue;
  for (int n = 0; n < 1000; ++n) {
    const contention_estimate::visit here(queue);
    EXPECT_EQ(queue.others(), 0u);
  }
  EXPECT_EQ(queue.slack_times(), 1u);
}

TEST(contention_estimate, the_average_rises_to_those_inside_and_falls_when_they_have_gone) {
  contention_estimate queue;
  {
    std::vector<std::unique_ptr<contention_estimate::visit>> inside;
    for (int n = 0; n < 4; ++n)
      inside.push_back(std::make_unique<contention_estimate::visit>(queue));
    for (int n = 0; n < 100; ++n) const contention_estimate::visit passing(queue);
    EXPECT_EQ(queue.others(), 4u);
    EXPECT_EQ(queue.slack_times(), 5u);
  }
  for (int n = 0; n < 100; ++n) const contention_estimate::visit passing(queue);
  EXPECT_EQ(queue.others(), 0u);
}

TEST(contention_estimate, the_slack_counts_no_more_than_its_bound) {
  contention_estimate queue;
  std::vector<std::unique_ptr<contention_estimate::visit>> inside;
  for (int n = 0; n < 40; ++n)
    inside.push_back(std::make_unique<contention_estimate::visit>(queue));
  for (int n = 0; n < 400; ++n) const contention_estimate::visit passing(queue);
  EXPECT_EQ(queue.slack_times(), contention_estimate::most_slack_times);
}

}  // namespace
}  // namespace millpond
