// The queue in a pool's slow path: what it counts, and that the slack follows it.
#include "pool/contention_estimate.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace millpond {
namespace {

TEST(crowd, a_thread_that_comes_alone_finds_nobody_however_often) {
  crowd queue;
  for (int n = 0; n < 1000; ++n) {
    const crowd::place here(queue);
    EXPECT_EQ(queue.others(), 0u);
  }
  EXPECT_EQ(queue.slack_times(), 1u);
}

TEST(crowd, the_average_rises_to_those_inside_and_falls_when_they_have_gone) {
  crowd queue;
  {
    std::vector<std::unique_ptr<crowd::place>> inside;
    for (int n = 0; n < 4; ++n) inside.push_back(std::make_unique<crowd::place>(queue));
    for (int n = 0; n < 100; ++n) const crowd::place passing(queue);
    EXPECT_EQ(queue.others(), 4u);
    EXPECT_EQ(queue.slack_times(), 5u);
  }
  for (int n = 0; n < 100; ++n) const crowd::place passing(queue);
  EXPECT_EQ(queue.others(), 0u);
}

TEST(crowd, the_slack_counts_no_more_than_its_bound) {
  crowd queue;
  std::vector<std::unique_ptr<crowd::place>> inside;
  for (int n = 0; n < 40; ++n) inside.push_back(std::make_unique<crowd::place>(queue));
  for (int n = 0; n < 400; ++n) const crowd::place passing(queue);
  EXPECT_EQ(queue.slack_times(), crowd::most_slack_times);
}

}  // namespace
}  // namespace millpond
