#include "advise/prices.hpp"

#include "driver/sim/pages/costs.hpp"
#include "driver/usual_costs.hpp"

namespace millpond::advise::prices {
namespace {

const gpu_profile& profile() {
  static const gpu_profile made = gpu_profile::h200();
  return made;
}

const sim::pages::page_costs& pages() {
  static const sim::pages::page_costs made = sim::pages::page_costs::from(profile());
  return made;
}

const usual_costs& costs() {
  return usual_costs::h200();
}

double at_rate(std::uint64_t bytes, double bytes_per_s) {
  return bytes_per_s > 0 ? static_cast<double>(bytes) / bytes_per_s * 1e9 : 0;
}

// A launch and the wait for it, with nothing to do: 9.3 us on an H200.
constexpr double launch_and_wait_ns = 9.3e3;
// The calls of one round on a 4 KiB block of mapped pinned memory: 10 us on an H200.
constexpr double mapped_round = 10e3;
// A kernel's first pass over managed memory that prefers the host maps its pages: 199 to 208 ms for
// 256 MiB, 11 to 12 ms for 16 MiB on an H200.
constexpr double mapping_ns_a_byte = 203.5e6 / (256.0 * static_cast<double>(MiB));

}  // namespace

double allocation_ns(trace::kind of, std::uint64_t bytes) {
  switch (of) {
    case trace::kind::device: return costs().call_ns("cuMemAlloc", bytes);
    case trace::kind::pinned: return costs().call_ns("cuMemHostAlloc", bytes);
    case trace::kind::managed: return costs().call_ns("cuMemAllocManaged", bytes);
    case trace::kind::driver_pool: return costs().kept_driver_pool_allocation_ns;
    case trace::kind::pageable: return usual_costs::pageable_pair_ns / 2;
  }
  return 0;
}

double free_ns(trace::kind of, std::uint64_t bytes, bool used) {
  switch (of) {
    case trace::kind::device: return costs().call_ns("cuMemFree", bytes);
    case trace::kind::pinned: return costs().call_ns("cuMemFreeHost", bytes);
    case trace::kind::managed:
      return costs().call_ns(used ? "cuMemFree.managed_resident" : "cuMemFree.managed", bytes);
    case trace::kind::driver_pool:
      return costs().kept_driver_pool_pair_ns - costs().kept_driver_pool_allocation_ns;
    case trace::kind::pageable: return usual_costs::pageable_pair_ns / 2;
  }
  return 0;
}

double kept_pair_ns(trace::kind of) {
  return of == trace::kind::pinned ? costs().pool_pair_ns : costs().kept_driver_pool_pair_ns;
}

double pool_refill_ns(std::uint64_t bytes) {
  return profile().pool_growth.p50_ns(bytes);
}

double copy_ns(trace::copy_direction way, trace::kind host, std::uint64_t bytes) {
  const bool pageable = host == trace::kind::pageable;
  switch (way) {
    case trace::copy_direction::host_to_device:
      return at_rate(bytes, pageable ? profile().pageable_to_device_bytes_per_s
                                     : profile().host_to_device_bytes_per_s);
    case trace::copy_direction::device_to_host:
      return at_rate(bytes, pageable ? profile().device_to_pageable_bytes_per_s
                                     : profile().device_to_host_bytes_per_s);
    case trace::copy_direction::host_to_host:
      return at_rate(bytes, profile().pageable_to_device_bytes_per_s);
    case trace::copy_direction::device_to_device: break;
    case trace::copy_direction::unknown:
      if (host != trace::kind::device)
        return copy_ns(trace::copy_direction::host_to_device, host, bytes);
      break;
  }
  return at_rate(2 * bytes, profile().memory_bytes_per_s);  // each byte is read and written
}

double blocking_copy_ns(trace::copy_direction way, trace::kind host, std::uint64_t bytes) {
  return launch_and_wait_ns + copy_ns(way, host, bytes);
}

double issued_copy_ns() {
  return costs().call_ns("cuMemcpyAsync", 0);
}

double memset_ns(std::uint64_t bytes) {
  return at_rate(bytes, profile().memory_bytes_per_s);
}

double faulted_ns(std::uint64_t to_device, std::uint64_t to_host) {
  return at_rate(to_device, profile().managed_fault_in_bytes_per_s) +
         at_rate(to_host, profile().managed_fault_back_bytes_per_s);
}

double prefetched_ns(std::uint64_t bytes) {
  return at_rate(bytes, profile().managed_prefetch_bytes_per_s);
}

double mapped_round_ns() {
  return mapped_round;
}

double far_passes_ns(std::uint64_t bytes, std::uint64_t kernels) {
  if (kernels == 0) return 0;
  return mapping_ns_a_byte * static_cast<double>(bytes) +
         static_cast<double>(kernels - 1) * at_rate(bytes, profile().host_memory_bytes_per_s);
}

double near_passes_ns(std::uint64_t bytes, std::uint64_t kernels) {
  return pages().prefetch_call_ns + prefetched_ns(bytes) +
         static_cast<double>(kernels) * at_rate(bytes, profile().memory_bytes_per_s);
}

double parking_ns(trace::kind of, std::uint64_t bytes) {
  const double there = at_rate(bytes, profile().device_to_host_bytes_per_s);
  const double back = at_rate(bytes, profile().host_to_device_bytes_per_s);
  return there + back + allocation_ns(of, bytes) + free_ns(of, bytes, true);
}

}  // namespace millpond::advise::prices
