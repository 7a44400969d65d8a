// Which memory each place of the program should use, with the gain that the replays promise and the
// code to change.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "advise/finding.hpp"
#include "plan/iteration.hpp"
#include "replay/outcome.hpp"
#include "trace/source.hpp"

namespace millpond::advise {

struct call_site_advice {
  call_site_summary where;
  std::string now;         // "cudaMalloc, device memory"
  std::string use;         // "device + pool", "driver pool, kept", "pinned + pool", "mapped",
                           // "managed + prefetch", "leave"
  std::string why;         // a sentence with the numbers that decided
  double time_now_ns = 0;  // as the finding about the place has it; 0 where no time is promised
  double time_then_ns = 0;
  bool time_estimated = false;  // nothing was recorded: a measured cost times the count
  std::vector<std::string> code;
};

struct whole_advice {
  std::string strategy;  // the replay that is best for device memory; empty: none ran
  std::string why;
  std::string
      planned;  // a sentence where the workload repeats so that it can be planned; else empty
  std::vector<call_site_advice> call_sites;  // largest gain first
};

// `outcomes` are of the same trace's device memory; may be empty. Deterministic.
[[nodiscard]] whole_advice advise_call_sites(const explanation& of, const trace::trace_info& trace,
                                             std::span<const replay::outcome> outcomes,
                                             const plan::iterations* repeats);

}  // namespace millpond::advise
