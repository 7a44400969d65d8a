// What one strategy cost on one workload: plain data, for the choice and for the reports.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "replay/latency.hpp"
#include "replay/strategy.hpp"

namespace millpond::replay {

// Something wrong with the memory that a strategy handed out.
struct violation {
  std::string rule;  // "contents", or the rule of the simulated GPU's checker that was broken
  std::string text;  // one sentence that names the two blocks or calls
};

struct outcome {
  std::string strategy;
  std::string meaning;
  staging copies = staging::none;
  strategy_facts::knowledge needs = strategy_facts::knowledge::none;
  std::string gpu_name;
  bool simulated = false;
  bool touched = false;  // contents were written and checked

  // Time of the allocator's calls, net of the clock's own cost.
  latency_histogram allocate, free;
  double sharing_ns = 0;                   // telling the allocator of other streams' uses
  double allocator_ns = 0;                 // all of the above
  std::vector<double> round_allocator_ns;  // the same by round: the first is cold
  double own_ns = 0;  // the part of it that is path counts times measured cost (simulated only)
  std::string own_source;  // the file with the measured costs; empty where there is none
  latency_histogram step;  // requests or iterations, whole
  double run_ns = 0;       // the whole replay

  std::uint64_t device_waits = 0;  // allocator calls that waited for the whole device
  double device_wait_ns = 0;       // time in them
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t peak_host_bytes = 0;  // pinned memory of the allocator, without our staging
  std::uint64_t failures = 0;         // requests that got no memory, and calls that failed
  std::string first_failure;

  std::uint64_t checked_blocks = 0;
  std::uint64_t wrong_words = 0;
  std::uint64_t violation_count = 0;  // all; the list has the first ones
  std::vector<violation> violations;
  std::vector<std::string> remarks;

  [[nodiscard]] double reserved_ratio() const noexcept {
    return peak_live_bytes == 0
               ? 0
               : static_cast<double>(peak_reserved_bytes) / static_cast<double>(peak_live_bytes);
  }
  // "cuda-malloc", "cuda-malloc/pinned".
  [[nodiscard]] std::string label() const {
    if (copies == staging::none) return strategy;
    return strategy + (copies == staging::pinned ? "/pinned" : "/pageable");
  }
};

}  // namespace millpond::replay
