#include "driver/sim/pages/costs.hpp"

#include <algorithm>

#include "base/bits.hpp"

namespace millpond::sim::pages {
namespace {

constexpr double mebibytes(double count) {
  return count * static_cast<double>(MiB);
}

// The rates that the constants were fitted beside. Another card's software is slower or faster by
// what its own rate for 256 MiB says.
constexpr double fitted_fault_in = mebibytes(256) / 29e-3;
constexpr double fitted_prefetch = mebibytes(256) / 5.4e-3;

double slower(double fitted, double given) {
  return given > 0 ? fitted / given : 1;
}

}  // namespace

page_costs page_costs::from(const gpu_profile& profile) noexcept {
  page_costs made;
  const double faults = slower(fitted_fault_in, profile.managed_fault_in_bytes_per_s);
  for (double* each :
       {&made.first_fault_ns, &made.more_blocks_ns, &made.batch_ns, &made.block_service_ns,
        &made.region_ns, &made.big_page_ns, &made.fault_ns, &made.replay_ns, &made.remote_map_ns,
        &made.populate_block_ns, &made.duplicate_block_ns, &made.collapse_ns,
        &made.collapse_to_host_ns, &made.collapse_block_ns}) {
    *each *= faults;
  }
  const double prefetch = slower(fitted_prefetch, profile.managed_prefetch_bytes_per_s);
  made.prefetch_call_ns *= prefetch;
  made.to_device_bytes_per_s = profile.host_to_device_bytes_per_s;
  const double block_ns =
      profile.managed_prefetch_bytes_per_s > 0
          ? static_cast<double>(block_bytes) / profile.managed_prefetch_bytes_per_s * 1e9
          : 0;
  const double link_ns = made.to_device_bytes_per_s > 0
                             ? static_cast<double>(block_bytes) / made.to_device_bytes_per_s * 1e9
                             : 0;
  made.prefetch_block_ns = std::max(0.0, block_ns - link_ns - made.prefetch_call_ns / 128);
  made.to_host_bytes_per_s = profile.managed_prefetch_back_bytes_per_s;
  // A block comes back by six faults, each grown by density: what the profile's rate leaves beyond
  // the link is theirs and their pages'.
  if (profile.managed_fault_back_bytes_per_s > 0 && made.to_host_bytes_per_s > 0) {
    constexpr double faults_a_block = 6;
    const double beside =
        static_cast<double>(block_bytes) *
        (1 / profile.managed_fault_back_bytes_per_s - 1 / made.to_host_bytes_per_s) * 1e9;
    const double here = std::max(
        0.05, beside / (faults_a_block * made.host_fault_ns + pages_a_block * made.host_page_ns));
    made.host_fault_ns *= here;
    made.host_page_ns *= here;
  }
  made.multiprocessors = profile.device.multiprocessors > 0
                             ? static_cast<unsigned>(profile.device.multiprocessors)
                             : made.multiprocessors;
  made.read_pass_bytes_per_s = profile.memory_bytes_per_s * (mebibytes(64) / 40e-6 / 4.3e12);
  // 256 MiB read and written in 0.20 ms beside 4.3 TB/s read: 0.31 of the rate.
  made.read_write_pass_bytes_per_s =
      profile.memory_bytes_per_s * (mebibytes(256) / 0.20e-3 / 4.3e12);
  made.remote_bytes_per_s = profile.host_memory_bytes_per_s;
  return made;
}

std::uint64_t stream_faults(std::uint64_t pages) noexcept {
  return pages == 0 ? 0 : divide_up(pages, pages_a_big_page / 2);
}

}  // namespace millpond::sim::pages
