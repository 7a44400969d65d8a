// Where managed memory is, by blocks of 2 MiB, and what it costs to bring it where it is needed: a model of
// first order. A block is in one place; a kernel that touches a block of the host's faults it in.
// Everything the simulator knows of managed residency is behind this class.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "base/bits.hpp"
#include "driver/sim/memory.hpp"
#include "millpond/simulated_gpu.hpp"

namespace millpond::sim {

class managed_memory {
 public:
  explicit managed_memory(const gpu_profile& profile) noexcept : profile_(profile) {}
  void add(std::uint64_t address, std::uint64_t bytes) {
    ranges_[address] = {bytes, std::vector<bool>(divide_up(bytes, page_bytes))};
  }
  void remove(std::uint64_t address) { ranges_.erase(address); }
  // Device time that a kernel waits until [address, address + bytes) is there. Outside managed ranges: 0.
  double fault_in_ns(std::uint64_t address, std::uint64_t bytes) {
    return nanoseconds(move(address, bytes, memory_place::device), profile_.managed_fault_in_bytes_per_s);
  }
  double prefetch_ns(std::uint64_t address, std::uint64_t bytes, memory_place to) {
    return nanoseconds(move(address, bytes, to), to == memory_place::device
                                                     ? profile_.managed_prefetch_bytes_per_s
                                                     : profile_.managed_prefetch_back_bytes_per_s);
  }
  double fault_back_ns(std::uint64_t address, std::uint64_t bytes) {
    return nanoseconds(move(address, bytes, memory_place::host), profile_.managed_fault_back_bytes_per_s);
  }
  [[nodiscard]] std::uint64_t resident(std::uint64_t address, std::uint64_t bytes) {
    std::uint64_t total = 0;
    visit(address, bytes, [&](std::vector<bool>::reference on_device, std::uint64_t part) {
      if (on_device) total += part;
    });
    return total;
  }
  [[nodiscard]] bool empty() const noexcept { return ranges_.empty(); }

 private:
  struct range {
    std::uint64_t bytes = 0;
    std::vector<bool> on_device;
  };
  static double nanoseconds(std::uint64_t bytes, double rate) noexcept {
    return bytes == 0 || rate <= 0 ? 0 : static_cast<double>(bytes) / rate * 1e9;
  }
  // Bytes that had to move; whole blocks of the range.
  std::uint64_t move(std::uint64_t address, std::uint64_t bytes, memory_place to) {
    std::uint64_t moved = 0;
    visit(address, bytes, [&](std::vector<bool>::reference on_device, std::uint64_t part) {
      if (on_device == (to == memory_place::device)) return;
      on_device = to == memory_place::device;
      moved += part;
    });
    return moved;
  }
  template <class Visitor>
  void visit(std::uint64_t address, std::uint64_t bytes, Visitor&& visit) {
    if (bytes == 0) return;
    auto it = ranges_.upper_bound(address);
    if (it != ranges_.begin()) --it;
    for (; it != ranges_.end() && it->first < address + bytes; ++it) {
      range& r = it->second;
      const std::uint64_t begin = std::max(address, it->first) - it->first;
      const std::uint64_t end = std::min(address + bytes - it->first, r.bytes);
      if (address + bytes <= it->first || begin >= end) continue;
      for (std::uint64_t block = begin / page_bytes; block * page_bytes < end; ++block) {
        const std::uint64_t part = std::min(page_bytes, r.bytes - block * page_bytes);
        visit(r.on_device[block], part);
      }
    }
  }
  const gpu_profile& profile_;
  std::map<std::uint64_t, range> ranges_;
};

}  // namespace millpond::sim
