#include "replay/latency.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.hpp"

namespace millpond::replay {
namespace {

TEST(latency_histogram, small_values_and_the_largest_are_exact) {
  latency_histogram made;
  for (const double each : {1.0, 2.0, 3.0, 40.0, 123456789.0}) made.add(each);
  EXPECT_EQ(made.count(), 5u);
  EXPECT_DOUBLE_EQ(made.percentile_ns(0.5), 3.0);
  EXPECT_DOUBLE_EQ(made.percentile_ns(0.8), 40.0);
  EXPECT_DOUBLE_EQ(made.max_ns(), 123456789.0);
  EXPECT_DOUBLE_EQ(made.percentile_ns(1), made.max_ns());
  EXPECT_DOUBLE_EQ(made.sum_ns(), 123456835.0);
}

TEST(latency_histogram, percentiles_are_within_two_percent_of_the_sorted_values) {
  random dice(7);
  latency_histogram made;
  std::vector<double> all;
  for (int i = 0; i < 20'000; ++i) {
    all.push_back(static_cast<double>(dice.log_uniform(1, 1'000'000'000)));
    made.add(all.back());
  }
  std::sort(all.begin(), all.end());
  for (const double share : {0.01, 0.25, 0.5, 0.9, 0.99, 0.999}) {
    const double exact = all[static_cast<std::size_t>(share * 20'000) - 1];
    EXPECT_NEAR(made.percentile_ns(share), exact, 0.02 * exact + 1) << share;
  }
}

TEST(latency_histogram, nothing_recorded_is_zero) {
  const latency_histogram none;
  EXPECT_EQ(none.percentile_ns(0.99), 0);
  EXPECT_EQ(none.mean_ns(), 0);
}

}  // namespace
}  // namespace millpond::replay
