// The validator: decides whether offsets are a plan for a problem, by a sweep over time that shares
// no code with the solver. Nothing leaves the solver unseen by it.
#pragma once
#include "millpond/base/result.hpp"
#include "plan/problem.hpp"

namespace millpond::plan {

// The peak (one past the last byte used by any buffer), or the first violation found: a wrong
// count, an offset that is misaligned, not the fixed one, past the capacity or past 2^63, or two
// buffers that share a byte at one time (both named, with the time). n buffers: O(n log n).
[[nodiscard]] result<std::uint64_t> validate(const problem& of, const offsets& plan);

}  // namespace millpond::plan
