// The lower bound that every plan is measured against: the peak load, the most bytes in use at one
// time. No plan is smaller, whoever makes it.
#pragma once
#include <string>

#include "millpond/base/result.hpp"
#include "plan/problem.hpp"

namespace millpond::plan {

struct load_peak {
  std::uint64_t bytes =
      0;  // the peak load, or what fixed offsets and alignment force if that is more
  std::int64_t time = 0;         // where the load is reached
  std::size_t buffers_live = 0;  // there
  std::string fixed_by;  // not empty: this buffer's fixed offset and size alone force `bytes`
};

// An error where the sum of live sizes reaches 2^63 (no plan can be written down).
[[nodiscard]] result<load_peak> peak_load(const problem& of);

// "impossible: 1024 bytes are live at time 7 (3 buffers), 24 more than the capacity of 1000; ...".
[[nodiscard]] std::string explain_impossible(const load_peak& bound, std::uint64_t capacity);

}  // namespace millpond::plan
