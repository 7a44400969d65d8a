// What calls and bytes cost, for advice about what a trace does not say: one table that every
// subcommand asks, so that `explain`, `advise`, `choose` and a replay on the simulated GPU name the
// same price. The numbers are a profile's; docs/internals/simulated_gpu.md says where each number
// of the built-in one is from: one NVIDIA H200, driver 580.159, 16 host cores. What a profile does
// not hold stands here, with its result file.
#pragma once
#include <cstdint>

#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {

class usual_costs {
 public:
  // Keeps a reference to the profile.
  explicit usual_costs(const gpu_profile& of);
  [[nodiscard]] static const usual_costs& h200();

  // The median of a driver's call, nanoseconds.
  [[nodiscard]] double call_ns(const char* name, std::uint64_t bytes) const;

  // --- An allocation and its free, nanoseconds ---
  // millpond's pool from a warm thread cache, in the calls of recorded programs
  // (bench/results/h200/c2132ae0a0a2/path_costs.json: 72 + 138). A tight loop of nothing else has
  // 51 (bench/results/h200/25554661a621/pairs.json): its caches hold nothing but the pool.
  double pool_pair_ns = 0;
  // The driver's pool where it keeps its memory, among a program's other calls
  // (bench/results/h200/*/compare_*.json: 690 + 670). A tight loop has 863
  // (bench/results/h200/25554661a621/pairs.json).
  double kept_driver_pool_pair_ns = 0;
  // The driver's pool where it gives its memory back at each synchronise: an allocation that must
  // fetch one step again, and a free.
  double emptied_driver_pool_pair_ns = 0;
  // By plain calls: cuMemAlloc, cuMemHostAlloc, cuMemAllocManaged and their frees.
  [[nodiscard]] double device_pair_ns(std::uint64_t bytes) const;
  [[nodiscard]] double pinned_pair_ns(std::uint64_t bytes) const;
  [[nodiscard]] double managed_pair_ns(std::uint64_t bytes) const;
  // malloc and free of a block that the heap has (docs/concepts/kinds.md).
  static constexpr double pageable_pair_ns = 60;

  // --- Parts of them ---
  double kept_driver_pool_allocation_ns = 0;
  std::uint64_t driver_pool_step_bytes = 0;  // it reserves in such steps
  double driver_pool_refill_ns =
      0;  // an allocation that fetches one step of driver_pool_step_bytes
  // Pinning and unpinning a byte with huge pages and 16 threads
  // (bench/results/h200/2bb8ae016caa/pinned.json: 74.5 + 36.6 ms for 2 GiB).
  static constexpr double pin_ns_a_byte = 111.1e6 / (2.0 * static_cast<double>(GiB));

  // --- Bytes a nanosecond (GB/s) ---
  double pinned_copy = 0;  // either way: the slower
  double pageable_copy_to_device = 0;
  double pageable_copy_to_host = 0;
  double managed_fault_in = 0;
  double managed_prefetch = 0;
  double kernel_over_the_link = 0;  // a kernel that reads host memory
  double device_memory = 0;

 private:
  const gpu_profile& profile_;
};

}  // namespace millpond
