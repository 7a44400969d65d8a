// What compare and replay have in common: where the workload comes from and how it is run.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "replay/run.hpp"
#include "replay/workload.hpp"
#include "report/comparison.hpp"

namespace millpond::cli {

struct workload_input {
  std::string trace;
  std::string name;  // of --workload
  std::uint64_t seed = 1;
  std::uint64_t length = 0;
  std::uint64_t streams = 1;
  unsigned device = 0;
  std::uint64_t rounds = 1;
  bool no_touch = false;
  bool recorded_pace = false;
  bool flat_out = false;

  // TRACE, --workload and its parameters, --rounds, --no-touch, --recorded-pace, --flat-out.
  void add_to(CLI::App& app);
  // invalid_argument when neither or both of TRACE and --workload were given.
  [[nodiscard]] result<replay::workload> load() const;
  // A recording keeps its pauses on the simulated GPU, where time is free: streams then run as far
  // ahead of each other as they did. On a card, and for a named workload, one operation follows
  // another unless reported otherwise.
  [[nodiscard]] replay::run_options run_options(const driver& gpu) const;
  // The parts of a report that do not depend on the outcomes. After the GPU was opened.
  [[nodiscard]] report::comparison describe(const session& here, const driver& gpu,
                                            const replay::workload& work) const;
};

}  // namespace millpond::cli
