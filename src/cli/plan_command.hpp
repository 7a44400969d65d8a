// What the inputs of `millpond plan` have in common: planning instances (plan.cpp), those of
// several streams (plan_streams.cpp) and traces (plan_trace.cpp).
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "cli/command.hpp"
#include "plan/solve.hpp"

namespace millpond::cli {

struct plan_settings {
  std::string input;
  std::string path;  // to open: the input, or a copy of what can be read only once
  std::string output;
  std::string waits;  // file; for several streams
  std::string capacity_text;
  std::optional<std::uint64_t> capacity;
  double time_limit_s = 60;
  std::uint64_t node_limit = UINT64_C(20'000'000'000);
  std::uint64_t seed = 1;
  bool check = false;
  bool no_compare = false;
};

// 0.01: one hundredth over the bound.
[[nodiscard]] double over_bound(std::uint64_t peak, std::uint64_t bound);
// An instance of a header alone, which is more likely a file cut short than a question.
[[nodiscard]] error no_buffers(const std::string& input);
// To -o; `said` becomes where to say what was done.
[[nodiscard]] result<void> write_plan(const std::string& path, const std::string& text,
                                      session& here, std::ostream*& said);
// Stops at the time limit; tells the session's line of progress.
[[nodiscard]] plan::solve_options solve_options_of(const plan_settings& settings, session& here);

[[nodiscard]] exit_status plan_trace(const plan_settings& settings, session& here);
[[nodiscard]] exit_status plan_streams(const plan_settings& settings, session& here);

}  // namespace millpond::cli
