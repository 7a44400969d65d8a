#include "calibrate/calibrate.hpp"

#include "calibrate/calibration_bench.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

// What a call costs for which there is no row: the median of the short ones that were measured.
double typical_call_ns(const gpu_profile& profile) {
  std::vector<double> times;
  for (const auto& [name, table] : profile.calls) {
    if (table.points.size() == 1) times.push_back(table.points.front().p50_ns);
  }
  return times.empty() ? 0 : calibration::bench::median(std::move(times));
}

}  // namespace

result<gpu_profile> calibrate(driver& gpu, const calibration_options& options) {
  gpu_profile profile;
  profile.name = options.name;
  profile.source = options.source;
  profile.host_bytes = options.host_bytes;
  profile.device = gpu.info();
  // The simulator puts its own word before the name.
  constexpr std::string_view simulated = "simulated ";
  if (profile.device.name.starts_with(simulated)) profile.device.name.erase(0, simulated.size());
  try {
    calibration::bench on(gpu, options);
    std::uint64_t free = 0, total = 0;
    on.need(gpu.memory_info(&free, &total), "asking for free memory");
    std::uint64_t largest = options.largest_bytes;
    while (largest > free / 4 && largest > 2 * MiB) largest /= 2;
    on.stage("streams and events", 0.0);
    calibration::measure_streams(on, profile);
    on.stage("graphs", 0.1);
    calibration::measure_graphs(on, profile);
    on.stage("plain allocations", 0.15);
    calibration::measure_plain_calls(on, profile, largest);
    on.stage("driver pools", 0.45);
    if (gpu.info().memory_pools) calibration::measure_pools(on, profile, largest);
    on.stage("virtual memory", 0.6);
    if (gpu.info().virtual_memory) calibration::measure_virtual_memory(on, profile, largest);
    on.stage("kernels and copies", 0.8);
    calibration::measure_work(on, profile, largest, options);
    on.stage("done", 1.0);
  } catch (const calibration::failed_call& failure) {
    return to_error(failure.answer, failure.doing);
  }
  profile.default_call_ns = typical_call_ns(profile);
  return profile;
}

}  // namespace millpond
