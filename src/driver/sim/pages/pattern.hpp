// In which order a kernel's threads touch pages, and how that is dealt out to multiprocessors.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/random.hpp"
#include "driver/sim/pages/costs.hpp"

namespace millpond::sim::pages {

enum class pattern_kind : std::uint8_t { stream, stride, random, blocked, ping_pong };
[[nodiscard]] std::optional<pattern_kind> parse_pattern(std::string_view name) noexcept;
[[nodiscard]] const char* to_string(pattern_kind kind) noexcept;

// A kernel's touches, numbered. Runs of them go to the next free multiprocessor, in order within a
// run.
class pattern {
 public:
  struct options {
    pattern_kind kind = pattern_kind::stream;
    std::uint64_t bytes = 0;    // of the memory
    std::uint64_t stride = 0;   // of pattern_kind::stride: one byte in each
    std::uint64_t touches = 0;  // of pattern_kind::random; 0: one for each page of 4 KiB
    std::uint64_t seed = 1;
  };
  pattern(const options& chosen, const page_costs& costs) noexcept;
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t run_length() const noexcept { return run_; }
  // How many touches of its run a multiprocessor has on the way at once.
  [[nodiscard]] std::uint64_t in_flight() const noexcept { return in_flight_; }
  // The page of 4 KiB that touch number i is in.
  [[nodiscard]] std::uint64_t page(std::uint64_t i) const noexcept {
    switch (options_.kind) {
      case pattern_kind::stride: return i * options_.stride / base_page_bytes;
      case pattern_kind::random:
        return millpond::random(options_.seed + i * 0x9e3779b97f4a7c15ULL).below(pages_);
      case pattern_kind::stream:
      case pattern_kind::blocked:
      case pattern_kind::ping_pong: break;
    }
    return i;
  }
  // Bytes that a touch reads or writes: a page's, or a sector.
  [[nodiscard]] std::uint64_t bytes_a_touch() const noexcept {
    return whole_pages_ ? base_page_bytes : 32;
  }

 private:
  options options_;
  std::uint64_t pages_ = 0, count_ = 0, run_ = 0, in_flight_ = 0;
  bool whole_pages_ = true;
};

}  // namespace millpond::sim::pages
