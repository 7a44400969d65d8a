// A problem with its time compressed, which is what every algorithm here works on.
//
// A section is a maximal stretch of time in which no buffer ends before another starts: its live
// set is a maximal clique of the conflict graph, and two buffers conflict exactly when they share a
// section. Most instances have a half to a tenth as many sections as event times.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "plan/problem.hpp"

namespace millpond::plan {

using index = std::uint32_t;

// Sections [first, last).
struct section_range {
  index first = 0;
  index last = 0;
  friend bool operator==(const section_range&, const section_range&) = default;
};

struct sections {
  index count = 0;
  std::vector<std::uint64_t> load;  // by section: the sum of live sizes
  std::vector<std::int64_t> time;   // by section: a time in it at which all of them are live
  std::vector<section_range>
      ranges;  // of buffer i: range_start[i] up to range_start[i + 1], ascending
  std::vector<index> range_start;

  [[nodiscard]] std::span<const section_range> of(std::size_t buffer) const {
    return {ranges.data() + range_start[buffer], ranges.data() + range_start[buffer + 1]};
  }
  [[nodiscard]] std::size_t buffers() const { return range_start.size() - 1; }
  // The number of sections in which the buffer is live.
  [[nodiscard]] index length(std::size_t buffer) const {
    index sum = 0;
    for (const section_range r : of(buffer)) sum += r.last - r.first;
    return sum;
  }
};

// The sizes live in one section must sum to less than 2^63 (see peak_load).
[[nodiscard]] sections make_sections(const problem& of);

}  // namespace millpond::plan
