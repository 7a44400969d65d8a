// A plan in one pass over time, as an allocator that sees each buffer when it comes would make it:
// O(n log n), so that there is a plan however many buffers there are and however little time.
#pragma once
#include "plan/first_fit.hpp"
#include "plan/problem.hpp"

namespace millpond::plan {

// Of buffers that check_problem has passed. Fixed ones lie where they are, all others above them; a
// gap counts as live.
[[nodiscard]] placement place_by_sweep(const problem& of);

}  // namespace millpond::plan
