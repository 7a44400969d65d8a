#include "driver/usual_costs.hpp"

#include <algorithm>

#include "driver/sim/allocator_paths.hpp"

namespace millpond {
namespace {

const gpu_profile& built_in() {
  static const gpu_profile profile = gpu_profile::h200();
  return profile;
}

// A profile of another machine may say nothing of the allocator's own paths: its host is taken to
// be as fast as the one that was measured.
double path_ns(const gpu_profile& of, const char* name) {
  const auto found = of.allocator_path_ns.find(name);
  return found != of.allocator_path_ns.end() ? found->second
                                             : built_in().allocator_path_ns.find(name)->second;
}

constexpr double a_nanosecond(double bytes_per_s) {
  return bytes_per_s / 1e9;
}

}  // namespace

usual_costs::usual_costs(const gpu_profile& of) : profile_(of) {
  pool_pair_ns = path_ns(of, sim::allocator_path::thread_cache_hit) +
                 path_ns(of, sim::allocator_path::deallocation);
  const double free_ns = call_ns("cuMemFreeAsync", 0);
  kept_driver_pool_allocation_ns = call_ns("cuMemAllocFromPoolAsync", 0);
  driver_pool_step_bytes = of.pool_step_bytes;
  driver_pool_refill_ns = of.pool_growth.p50_ns(of.pool_step_bytes);
  kept_driver_pool_pair_ns = kept_driver_pool_allocation_ns + free_ns;
  emptied_driver_pool_pair_ns = driver_pool_refill_ns + free_ns;
  pinned_copy =
      a_nanosecond(std::min(of.host_to_device_bytes_per_s, of.device_to_host_bytes_per_s));
  pageable_copy_to_device = a_nanosecond(of.pageable_to_device_bytes_per_s);
  pageable_copy_to_host = a_nanosecond(of.device_to_pageable_bytes_per_s);
  managed_fault_in = a_nanosecond(of.managed_fault_in_bytes_per_s);
  managed_prefetch = a_nanosecond(of.managed_prefetch_bytes_per_s);
  kernel_over_the_link = a_nanosecond(of.host_memory_bytes_per_s);
  device_memory = a_nanosecond(of.memory_bytes_per_s);
}

const usual_costs& usual_costs::h200() {
  static const usual_costs costs(built_in());
  return costs;
}

double usual_costs::call_ns(const char* name, std::uint64_t bytes) const {
  const auto found = profile_.calls.find(name);
  return found == profile_.calls.end() ? profile_.default_call_ns : found->second.p50_ns(bytes);
}

double usual_costs::device_pair_ns(std::uint64_t bytes) const {
  return call_ns("cuMemAlloc", bytes) + call_ns("cuMemFree", bytes);
}
double usual_costs::pinned_pair_ns(std::uint64_t bytes) const {
  return call_ns("cuMemHostAlloc", bytes) + call_ns("cuMemFreeHost", bytes);
}
double usual_costs::managed_pair_ns(std::uint64_t bytes) const {
  return call_ns("cuMemAllocManaged", bytes) + call_ns("cuMemFree.managed", bytes);
}

}  // namespace millpond
