// Which strategy to use, from what each one cost.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "replay/outcome.hpp"

namespace millpond::advise {

struct choose_options {
  // Time in the allocator below this share of the program's own time does not decide: memory does.
  double negligible_time_share = 0.01;
  // Reserved bytes nearer than this are the same; then time decides.
  double same_memory_share = 0.02;
  // The recorded run of the workload, as the measure of time; 0: each replay's own length.
  double program_ns = 0;
};

struct recommendation {
  std::string strategy;  // an outcome's label; empty when nothing served the workload
  std::string why;       // sentences with the numbers that decided
  std::vector<std::string>
      against;  // one sentence for each strategy that was not taken, in their order
};

// A strategy is out when its memory was wrong, when it failed a request, when it has to know the
// workload beforehand, or when it waits for the whole device while another one does not. Of the
// rest: those whose time is within negligible_time_share of the fastest, of these the ones with the
// least memory, of these the fastest. Where nothing is left, the least bad is named and said to be
// so. Deterministic.
[[nodiscard]] recommendation choose(std::span<const replay::outcome> outcomes,
                                    const choose_options& options = {});

}  // namespace millpond::advise
