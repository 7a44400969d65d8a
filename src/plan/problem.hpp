// The planning problem as plain data: buffers whose lifetimes are known, and the plan that gives
// each of them an offset. Nothing here does work; see solve.hpp, validate.hpp and csv.hpp.
//
// Time is a position in a program (an event number, a step): any 64-bit integer. A buffer is live
// in the half-open [lower, upper). Two buffers conflict when both use memory at the same time;
// conflicting buffers must not share a byte.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millpond::plan {

// Half-open. Inside a buffer's lifetime: a time in which it uses no memory (its contents are dead).
struct interval {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
  friend bool operator==(const interval&, const interval&) = default;
};

struct buffer {
  std::string id;
  std::int64_t lower = 0;
  std::int64_t upper = 0;              // >= lower; equal: never live, any offset serves
  std::uint64_t size = 0;              // bytes, 1 to 2^63 - 1
  std::uint64_t alignment = 1;         // any positive number; offsets are multiples of it
  std::vector<interval> gaps;          // sorted, disjoint, inside [lower, upper)
  std::optional<std::uint64_t> fixed;  // the offset is given, and not the solver's to choose
};

struct problem {
  std::vector<buffer> buffers;
  std::optional<std::uint64_t> capacity;  // bytes; none: as few as possible
};

// offsets[i] belongs to problem.buffers[i].
using offsets = std::vector<std::uint64_t>;

// Sizes and sums stay below this, so that no addition of two of them overflows.
inline constexpr std::uint64_t size_limit = std::uint64_t{1} << 63;

// Calls visit(interval) for each part of the lifetime in which the buffer uses memory, in order.
template <class Visit>
void for_each_active(const buffer& of, Visit&& visit) {
  std::int64_t from = of.lower;
  for (const interval& gap : of.gaps) {
    if (gap.lower > from) visit(interval{from, gap.lower});
    if (gap.upper > from) from = gap.upper;
  }
  if (from < of.upper) visit(interval{from, of.upper});
}

}  // namespace millpond::plan
