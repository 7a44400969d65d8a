// Managed memory of the simulated GPU: the page machine's space (driver/sim/pages), with the
// profile's costs. Everything the simulator knows of managed residency is behind this class.
#pragma once
#include <cstdint>
#include <set>

#include "base/bits.hpp"
#include "driver/sim/pages/space.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::sim {

class managed_memory {
 public:
  explicit managed_memory(const gpu_profile& profile) noexcept
      : costs_(pages::page_costs::from(profile)), space_(costs_) {}
  managed_memory(const managed_memory&) = delete;
  managed_memory& operator=(const managed_memory&) = delete;

  // Allocations smaller than a block lie in blocks that they share and that stay when they go, so
  // that the next one finds its pages where the last one left them (seen on a card: thousands of
  // small blocks hardly fault).
  void add(std::uint64_t address, std::uint64_t bytes) {
    const std::uint64_t first = align_down(address, pages::block_bytes),
                        last = align_up(address + bytes, pages::block_bytes);
    for (std::uint64_t at = first; at < last; at += pages::block_bytes) {
      if (bytes >= pages::block_bytes) {
        if (shared_.erase(at) != 0) space_.remove(at);
      } else if (shared_.insert(at).second) {
        space_.add(at, pages::block_bytes);
      }
    }
    if (bytes >= pages::block_bytes) space_.add(address, bytes);
  }
  void remove(std::uint64_t address) {
    if (!shared_.contains(align_down(address, pages::block_bytes))) space_.remove(address);
  }
  [[nodiscard]] bool empty() const noexcept { return space_.empty(); }

  // Device time that a kernel which starts at now_ns waits for a range. Outside managed ranges: 0.
  // What the range has left on the host and mapped is reached over the link; that time is in the
  // answer.
  double stream_ns(std::uint64_t address, std::uint64_t bytes, access_kind kind, double now_ns) {
    std::uint64_t remote = 0;
    const double waited = space_.stream(address, bytes, kind, now_ns, remote);
    if (remote == 0 || costs_.remote_bytes_per_s <= 0) return waited;
    return waited + costs_.remote_round_trip_ns +
           static_cast<double>(remote) / costs_.remote_bytes_per_s * 1e9;
  }
  double prefetch_ns(std::uint64_t address, std::uint64_t bytes, memory_location to,
                     double now_ns) {
    return space_.prefetch(address, bytes, to, now_ns);
  }
  double touch_by_host_ns(std::uint64_t address, std::uint64_t bytes, access_kind kind,
                          double now_ns) {
    return space_.touch_by_host(address, bytes, kind, now_ns);
  }
  void advise(std::uint64_t address, std::uint64_t bytes, managed_advice advice,
              memory_location location) {
    space_.advise(address, bytes, advice, location);
  }
  // What the first fault of a kernel takes by itself, in stream_ns of each range that faults.
  [[nodiscard]] double first_fault_ns() const noexcept { return costs_.first_fault_ns; }
  [[nodiscard]] std::uint64_t resident(std::uint64_t address, std::uint64_t bytes) {
    return space_.resident(address, bytes);
  }
  [[nodiscard]] const pages::page_counts& counts() const noexcept { return space_.counts(); }

 private:
  pages::page_costs costs_;
  pages::space space_;
  std::set<std::uint64_t> shared_;  // blocks of small allocations
};

}  // namespace millpond::sim
