// The repeating iteration of a trace, found from the events alone: a request, a training step.
//
// 1. Cuts. Where no block but the persistent ones is live, nothing of one iteration reaches into
//    the next. What is persistent is not known, so several answers are tried: never freed, or
//    living longer than some part of the trace. Programs that never fall quiet are cut at a
//    recurring run of events instead.
// 2. Families. The stretches between cuts are compared by their runs of allocations and frees,
//    sizes left out: a model's requests look alike whatever the batch. A family that returns often
//    and makes up a good part of the trace starts an iteration; what lies between two starts
//    belongs to the first. What comes before them all is the warm-up.
// 3. Shapes. In each iteration, the blocks of a stream group that live and die in it are one
//    planning problem; equal sequences of sizes and frees are one shape, planned once.
// The cuts that plan the most bytes win; among nearly equal ones, those with more iterations.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/problem.hpp"
#include "plan/solve.hpp"
#include "trace/lifetimes.hpp"

namespace millpond::plan {

struct iteration_options {
  std::uint64_t fewest_repeats = 3;  // of a family, to be an iteration
  double alike = 0.6;  // share of common runs of events from which two stretches are one family
};

enum class block_fate : std::uint8_t {
  planned,     // lives and dies in one iteration, in one stream group
  persistent,  // outlives iterations: weights, optimizer state, caches
  dynamic,     // the rest: warm-up, blocks that cross iterations or that other streams use
};
inline constexpr std::size_t fate_count = 3;
[[nodiscard]] const char* to_string(block_fate fate) noexcept;

// Blocks of one device, kind and stream: their memory is reused in the stream's order alone, so two
// groups never share bytes.
struct stream_group {
  std::uint16_t device = 0;
  trace::kind kind{};
  std::uint64_t stream = 0;
  friend auto operator<=>(const stream_group&, const stream_group&) = default;
};

// One distinct sequence of allocations and frees. Times are places in it; buffers are in order of
// allocation.
struct shape {
  problem instance;
  std::uint64_t uses = 0;  // in how many iterations
};

struct iteration {
  std::uint64_t first_event = 0;  // as counted by the lifetimes
  std::uint64_t last_event = 0;   // one past
  struct use {
    std::size_t group;  // in iterations::groups
    std::size_t shape;  // in iterations::shapes
  };
  std::vector<use> parts;  // by group
};

struct fate_totals {
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;            // the sum of sizes
  std::uint64_t peak_live_bytes = 0;  // of the blocks of this fate alone
};

struct iterations {
  std::vector<block_fate> fates;   // by lifetimes::blocks
  fate_totals totals[fate_count];  // by block_fate
  std::vector<stream_group> groups;
  std::vector<shape> shapes;
  std::vector<iteration> found;  // none: nothing repeats
};

[[nodiscard]] iterations find_iterations(const trace::lifetimes& of,
                                         const iteration_options& options = {});

struct stream_arena {
  std::uint64_t planned_bytes = 0;  // the largest peak among the plans of its shapes
  std::uint64_t lower_bound = 0;    // the largest lower bound among its shapes
};

struct iteration_plan {
  std::vector<plan> shapes;          // by iterations::shapes
  std::vector<stream_arena> arenas;  // by iterations::groups
  std::uint64_t planned_bytes = 0;   // the sum over groups
  std::uint64_t lower_bound = 0;
};

// Plans every shape; those with the largest bounds first, the others only as well as their groups
// need. options.node_limit is for each shape; options.progress is not called.
[[nodiscard]] result<iteration_plan> plan_iterations(const iterations& of,
                                                     const solve_options& options);

}  // namespace millpond::plan
