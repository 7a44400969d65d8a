// Planning for several streams: lifetimes as intervals on a partial order, not on a line.
//
// Each stream runs its steps in order; streams run at once, but for waits. Two buffers may share
// bytes only if every use of one happens before every use of the other, whatever the timing. That
// is a conflict graph, which is no longer an interval graph: the peak load of a line is replaced by
// the heaviest clique found.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millpond/base/result.hpp"
#include "plan/problem.hpp"
#include "plan/solve.hpp"

namespace millpond::plan {

// Steps first to last, both included, of one stream: the buffer may be touched in all of them.
struct stream_use {
  std::uint32_t stream = 0;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

struct stream_buffer {
  std::string id;
  std::uint64_t size = 0;  // 1 to 2^63 - 1
  std::uint64_t alignment = 1;
  std::vector<stream_use> uses;  // at least one
};

// Step `step` of `stream` and all after it wait for step `for_step` of `for_stream` and all before
// it: an event recorded after for_step, and a wait before step.
struct stream_wait {
  std::uint32_t stream = 0;
  std::uint64_t step = 0;
  std::uint32_t for_stream = 0;
  std::uint64_t for_step = 0;
};

struct stream_problem {
  std::vector<stream_buffer> buffers;
  std::vector<stream_wait> waits;
  std::optional<std::uint64_t> capacity;
};

// Which buffers must not share bytes: conflicts[i] ascending, without i. bad_input for waits in a
// circle, a buffer without uses, a use that ends before it starts, a size of 0 or 2^63. O(n^2)
// pairs.
[[nodiscard]] result<std::vector<std::vector<std::uint32_t>>> find_conflicts(
    const stream_problem& of);

// As solve: offsets, peak, a lower bound (the heaviest clique found, so proved_optimal is proof
// where it is reached). With a capacity: impossible only where the bound proves it. Deterministic
// as solve is.
[[nodiscard]] result<plan> solve_streams(const stream_problem& of, const solve_options& options);

// The peak, or the first violation, pair by pair from the definition and from no code of the
// solver's.
[[nodiscard]] result<std::uint64_t> validate_streams(const stream_problem& of, const offsets& plan);

}  // namespace millpond::plan
