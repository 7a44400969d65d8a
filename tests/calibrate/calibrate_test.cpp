// Calibration measured against the one GPU whose costs are known exactly: the simulated one.
#include "calibrate/calibrate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "driver/sim/calls.hpp"
#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace {

std::shared_ptr<simulated_gpu> make_gpu() {
  simulated_gpu_options options;
  options.times = simulated_gpu_options::call_times::median;
  options.check = simulated_gpu_options::checker::off;
  auto made = simulated_gpu::create(std::move(options));
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

calibration_options on_virtual_time(const std::shared_ptr<simulated_gpu>& gpu) {
  calibration_options options;
  options.name = "again";
  options.source = "the simulated GPU itself";
  options.host_bytes = 64 * GiB;
  options.now_ns = [gpu] { return gpu->now_ns(); };
  options.touch_managed = [gpu](device_address at, std::uint64_t bytes) {
    gpu->touch_managed(at, bytes);
  };
  options.samples = 5;
  return options;
}

void expect_near(double found, double truth, double tolerance, const std::string& what) {
  EXPECT_NEAR(found, truth, tolerance * truth + 2) << what;
}

TEST(calibrate, gives_the_simulated_gpus_own_profile_back) {
  const auto gpu = make_gpu();
  const auto measured = calibrate(*gpu, on_virtual_time(gpu));
  ASSERT_TRUE(measured) << measured.error().message;
  const gpu_profile& truth = gpu->profile();
  for (const auto& [call, table] : measured->calls) {
    for (const cost_point& point : table.points) {
      const auto known = truth.calls.find(call);
      const double expected =
          known != truth.calls.end() ? known->second.p50_ns(point.bytes) : truth.default_call_ns;
      expect_near(point.p50_ns, expected, 0.01, call + " at " + std::to_string(point.bytes));
      EXPECT_GE(point.p99_ns, point.p50_ns) << call;
    }
  }
  for (const auto& [call, table] : truth.calls) {
    EXPECT_TRUE(measured->calls.contains(call)) << call << " is not measured";
  }
  for (const cost_point& point : measured->pool_growth.points) {
    expect_near(point.p50_ns, truth.pool_growth.p50_ns(point.bytes), 0.02, "pool growth");
  }
  for (const cost_point& point : measured->pool_shrink.points) {
    expect_near(point.p50_ns, truth.pool_shrink.p50_ns(point.bytes), 0.02, "pool shrink");
  }
  EXPECT_EQ(measured->pool_step_bytes, truth.pool_step_bytes);
  expect_near(measured->kernel_overhead_ns, truth.kernel_overhead_ns, 0.02, "kernel overhead");
  expect_near(measured->launch_latency_ns, truth.launch_latency_ns, 0.05, "launch latency");
  expect_near(measured->memory_bytes_per_s, truth.memory_bytes_per_s, 0.02, "memory");
  expect_near(measured->host_to_device_bytes_per_s, truth.host_to_device_bytes_per_s, 0.01,
              "to device");
  expect_near(measured->device_to_host_bytes_per_s, truth.device_to_host_bytes_per_s, 0.01,
              "to host");
  expect_near(measured->pageable_to_device_bytes_per_s, truth.pageable_to_device_bytes_per_s, 0.01,
              "pageable to device");
  expect_near(measured->device_to_pageable_bytes_per_s, truth.device_to_pageable_bytes_per_s, 0.01,
              "device to pageable");
  expect_near(measured->host_memory_bytes_per_s, truth.host_memory_bytes_per_s, 0.01,
              "kernel on pinned");
  // The page machine has parts that do not scale with bytes, and its own fit to many rows:
  // docs/measured/managed_memory.md.
  expect_near(measured->managed_fault_in_bytes_per_s, truth.managed_fault_in_bytes_per_s, 0.15,
              "fault in");
  expect_near(measured->managed_fault_back_bytes_per_s, truth.managed_fault_back_bytes_per_s, 0.25,
              "fault back");
  expect_near(measured->managed_prefetch_bytes_per_s, truth.managed_prefetch_bytes_per_s, 0.01,
              "prefetch");
  expect_near(measured->managed_prefetch_back_bytes_per_s, truth.managed_prefetch_back_bytes_per_s,
              0.02, "prefetch back");
}

TEST(calibrate, measures_only_calls_that_the_simulator_charges) {
  const auto gpu = make_gpu();
  calibration_options options = on_virtual_time(gpu);
  options.largest_bytes = 64 * MiB;
  const auto measured = calibrate(*gpu, options);
  ASSERT_TRUE(measured) << measured.error().message;
  for (const auto& [name, table] : measured->calls) {
    const std::string call = name.substr(0, name.find('.'));
    const bool known = std::any_of(sim::call_table.begin(), sim::call_table.end(),
                                   [&](const sim::call_facts& each) { return call == each.name; });
    EXPECT_TRUE(known) << name;
  }
}

TEST(calibrate, leaves_nothing_behind_and_its_profile_makes_a_gpu) {
  const auto gpu = make_gpu();
  calibration_options options = on_virtual_time(gpu);
  options.largest_bytes = 64 * MiB;
  double last = -1;
  options.progress = [&](std::string_view, double share) {
    EXPECT_GE(share, last);
    last = share;
  };
  const auto measured = calibrate(*gpu, options);
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_EQ(last, 1.0);
  EXPECT_EQ(to_string(gpu->leaks()), "nothing");

  std::string path = (std::filesystem::temp_directory_path() / "millpond_profile_XXXXXX").string();
  ::close(::mkstemp(path.data()));
  ASSERT_TRUE(save_profile(*measured, path));
  const auto loaded = find_profile(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(loaded) << loaded.error().message;
  simulated_gpu_options again;
  again.profile = *loaded;
  EXPECT_TRUE(simulated_gpu::create(std::move(again)));
}

TEST(calibrate, a_failing_call_is_named_and_nothing_is_left) {
  for (const char* call :
       {"cuMemAlloc", "cuMemHostAlloc", "cuMemCreate", "cuMemMap", "cuGraphInstantiate",
        "cuMemPoolCreate", "cuMemAllocManaged", "cuMemPrefetchAsync"}) {
    for (const std::uint64_t at : {std::uint64_t{1}, std::uint64_t{3}}) {
      const auto gpu = make_gpu();
      fault planned;
      planned.call = call;
      planned.at = at;
      gpu->set_faults({.faults = {planned}});
      calibration_options options = on_virtual_time(gpu);
      options.largest_bytes = 8 * MiB;
      const auto measured = calibrate(*gpu, options);
      ASSERT_FALSE(measured) << call;
      EXPECT_THAT(measured.error().message, testing::HasSubstr(call));
      EXPECT_EQ(to_string(gpu->leaks()), "nothing") << call << " at " << at;
    }
  }
}

}  // namespace
}  // namespace millpond
