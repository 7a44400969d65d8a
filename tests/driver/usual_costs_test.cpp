// The table of costs says what the profile says, and says it for every profile.
#include "driver/usual_costs.hpp"

#include <gtest/gtest.h>

#include "driver/sim/allocator_paths.hpp"

namespace millpond {
namespace {

TEST(usual_costs, are_the_built_in_profiles) {
  const gpu_profile profile = gpu_profile::h200();
  const usual_costs& costs = usual_costs::h200();
  EXPECT_DOUBLE_EQ(costs.pool_pair_ns, 72 + 138);
  EXPECT_DOUBLE_EQ(costs.device_pair_ns(MiB), 43'000 + 36'000);
  EXPECT_DOUBLE_EQ(costs.pinned_pair_ns(MiB), 504'000 + 219'000);
  EXPECT_DOUBLE_EQ(costs.emptied_driver_pool_pair_ns - costs.driver_pool_refill_ns,
                   costs.kept_driver_pool_pair_ns - costs.kept_driver_pool_allocation_ns);
  EXPECT_DOUBLE_EQ(costs.pinned_copy * 1e9, profile.device_to_host_bytes_per_s);
  EXPECT_EQ(costs.driver_pool_step_bytes, profile.pool_step_bytes);
  EXPECT_DOUBLE_EQ(costs.call_ns("no such call", 0), profile.default_call_ns);
}

TEST(usual_costs, rise_with_the_size_where_the_calls_do) {
  const usual_costs& costs = usual_costs::h200();
  for (std::uint64_t bytes = MiB; bytes < GiB; bytes *= 2) {
    EXPECT_LE(costs.device_pair_ns(bytes), costs.device_pair_ns(2 * bytes)) << bytes;
    EXPECT_LE(costs.pinned_pair_ns(bytes), costs.pinned_pair_ns(2 * bytes)) << bytes;
    EXPECT_LE(costs.managed_pair_ns(bytes), costs.managed_pair_ns(2 * bytes)) << bytes;
  }
}

TEST(usual_costs, a_profile_without_the_allocators_paths_takes_the_measured_hosts) {
  gpu_profile other = gpu_profile::h200();
  other.allocator_path_ns.clear();
  EXPECT_DOUBLE_EQ(usual_costs(other).pool_pair_ns, usual_costs::h200().pool_pair_ns);
  other.allocator_path_ns[sim::allocator_path::deallocation] = 1000;
  EXPECT_DOUBLE_EQ(usual_costs(other).pool_pair_ns, 1072);
}

}  // namespace
}  // namespace millpond
