// A comparison as text and as JSON.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "advise/choose.hpp"
#include "replay/outcome.hpp"
#include "replay/run.hpp"
#include "replay/workload.hpp"

namespace millpond::report {

// Where and how the numbers were made, kept with them.
struct provenance {
  std::string version, commit, compiler, flavour;
  std::string gpu_name;
  std::string why_simulated;  // empty where it was asked for, or not simulated
  bool simulated = false;
  int driver_version = 0;  // 13000 for 13.0; 0 on a simulated GPU
  std::string profile;     // of the simulated GPU, and where its numbers are from
  std::string profile_source;
};

// What of the workload is printed.
struct workload_facts {
  std::string name;
  std::uint64_t events = 0, allocations = 0, frees = 0, never_freed = 0, streams = 0;
  std::uint64_t peak_live_bytes = 0, largest_bytes = 0, copied_bytes = 0;
  std::uint64_t duration_ns = 0, inserted_synchronizes = 0, idle_gap_ns = 0, guessed_uses = 0;
  std::vector<std::string> notes;
};
[[nodiscard]] workload_facts facts_of(const replay::workload& work);

struct comparison {
  provenance from;
  workload_facts trace;
  std::uint64_t seed = 0;
  std::uint64_t rounds = 1;
  replay::contents_mode contents = replay::contents_mode::touch;
  replay::pacing pace = replay::pacing::flat_out;
  std::vector<replay::outcome> outcomes;
  advise::recommendation choice;  // of a single replay: empty
};

// Tables of at most 80 columns, each number with its unit.
[[nodiscard]] std::string comparison_text(const comparison& of);
// One document; the keys are in docs/guide/command.md.
[[nodiscard]] std::string comparison_json(const comparison& of);

}  // namespace millpond::report
