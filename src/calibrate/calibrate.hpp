// Calibration: what each driver call and each kind of work costs on one GPU, as the profile that
// the simulated GPU runs on.
//
// Any driver can be measured: the real one by the host's clock, and in the tests the simulated one
// by its virtual clock, which must give its own profile back.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {

struct calibration_options {
  std::string name;              // of the profile
  std::string source;            // where and when: put into the profile
  std::uint64_t host_bytes = 0;  // host memory that can be pinned
  // Nanoseconds of the clock that the driver's calls take time on.
  std::function<std::uint64_t()> now_ns;
  // The CPU touches a managed range, a byte a page; empty: it does so.
  std::function<void(device_address at, std::uint64_t bytes)> touch_managed;
  // Reported what is measured next, and the share that is done, from 0 to 1.
  std::function<void(std::string_view what, double share)> progress;
  std::uint64_t largest_bytes =
      std::uint64_t{1} << 30;  // of any single block; halved until a quarter of free memory
  // A row is measured until it has `samples` or has taken `row_budget_ns`, at least three times.
  unsigned samples = 101;
  std::uint64_t row_budget_ns = 400'000'000;
};

// Measures everything: under a minute on an H200. The thread must be bound, and nothing else should
// run on the GPU. Takes up to twice largest_bytes of device memory and largest_bytes of pinned
// memory, and gives all of it back. Errors: the first call that failed.
[[nodiscard]] result<gpu_profile> calibrate(driver& gpu, const calibration_options& options);

}  // namespace millpond
