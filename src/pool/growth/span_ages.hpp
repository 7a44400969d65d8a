// Which handles have been unused for how long, at the price of a few bits set a heap allocation.
//
// Each stretch of 2 MiB of addresses has a bit, set when a block is carved there; a look at the
// pool's handles clears them all. Two stretches may share a bit: a handle then seems younger than
// it is, which is harmless. Not thread-safe: under the lock of the pool's blocks.
#pragma once
#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace millpond {

class span_ages {
 public:
  span_ages() : touched_(bits / 64) {}

  void touch(std::uint64_t at, std::uint64_t bytes) noexcept {
    const std::uint64_t last = (at + bytes - 1) >> stretch;
    for (std::uint64_t i = at >> stretch; i <= last; ++i)
      touched_[(i % bits) / 64] |= std::uint64_t{1} << (i % 64);
  }
  // Whether a block was carved in this stretch since the last look.
  [[nodiscard]] bool touched(std::uint64_t at, std::uint64_t bytes) const noexcept {
    const std::uint64_t last = (at + bytes - 1) >> stretch;
    for (std::uint64_t i = at >> stretch; i <= last; ++i) {
      if ((touched_[(i % bits) / 64] >> (i % 64) & 1) != 0) return true;
    }
    return false;
  }
  enum class use : std::uint8_t { none, since_last_look };
  // The handle is wholly free, and is looked at now. Answers since when it has been seen so: `now`
  // where it was used since, or was never looked at.
  [[nodiscard]] std::uint64_t look(std::uint64_t handle, use seen_use, std::uint64_t now) {
    const auto found = since_.emplace(handle, seen{now, round_}).first;
    if (seen_use == use::since_last_look) found->second.since = now;
    found->second.round = round_;
    return found->second.since;
  }
  // After all handles were looked at: bits start again, and handles that were not among them are
  // forgotten.
  void end_of_look() {
    std::fill(touched_.begin(), touched_.end(), 0);
    std::erase_if(since_, [this](const auto& s) { return s.second.round != round_; });
    ++round_;
  }

 private:
  static constexpr unsigned stretch = 21;
  static constexpr std::uint64_t bits = std::uint64_t{1} << 17;  // 256 GiB of addresses in 16 KiB
  struct seen {
    std::uint64_t since;
    std::uint64_t round;
  };
  std::vector<std::uint64_t> touched_;
  std::unordered_map<std::uint64_t, seen> since_;  // by the driver's handle
  std::uint64_t round_ = 0;
};

}  // namespace millpond
