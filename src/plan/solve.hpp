// The solver: offsets for a problem, the lower bound they are measured against, and how they were
// found.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "millpond/base/result.hpp"
#include "plan/problem.hpp"

namespace millpond::plan {

struct solve_options {
  // Asked now and then on the calling thread; true ends the search with what it has. None: run to
  // the node limit.
  std::function<bool()> stop;
  // Steps of search (a buffer placed) after which it ends. The plan depends on this, the seed and
  // the problem alone, as long as `stop` never says true.
  std::uint64_t node_limit = UINT64_C(20'000'000'000);
  std::uint64_t seed = 1;
  // Reported of each better plan: peak and steps so far.
  std::function<void(std::uint64_t peak, std::uint64_t nodes)> progress;
};

struct solve_stats {
  std::uint64_t nodes = 0;       // buffers placed by the complete search
  std::uint64_t placements = 0;  // buffers placed by the heuristics
  std::uint64_t restarts = 0;
  std::string method;  // what found the plan: "first fit by size", "search", ...
};

enum class outcome {
  found,       // a plan; within the capacity where the problem has one
  impossible,  // proved: by the bound, or by a search that covered everything
  gave_up,     // no plan within the capacity was found before the limit
};
[[nodiscard]] const char* to_string(outcome what) noexcept;

struct plan {
  outcome what = outcome::gave_up;
  millpond::plan::offsets
      offsets;             // by buffer; on gave_up the best plan found, though past the capacity
  std::uint64_t peak = 0;  // of the offsets
  std::uint64_t lower_bound = 0;  // no plan has a smaller peak
  bool proved_optimal = false;    // no plan has a smaller peak: by the bound or by search
  std::string reason;             // of impossible and gave_up: a sentence with the numbers
  solve_stats stats;
};

// With problem.capacity: a plan that fits. Without: the smallest peak found. Every plan returned
// has passed the validator. An error: the problem itself is broken (a size of 0, loads past 2^63,
// ...).
[[nodiscard]] result<plan> solve(const problem& of, const solve_options& options);

// The problem's own mistakes, as read_csv would tell them; for problems built in memory.
[[nodiscard]] result<void> check_problem(const problem& of);

}  // namespace millpond::plan
