// Findings as text and as JSON.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "advise/finding.hpp"
#include "trace/source.hpp"

namespace millpond::report {

struct explanation_options {
  std::size_t most_findings = 20;  // in the text; the JSON has all
  std::size_t most_frames = 6;     // of a stack in the text
};

// For a terminal: each finding with its cost, places, evidence and remedy, worst first.
[[nodiscard]] std::string explanation_text(const advise::explanation& of,
                                           const trace::trace_info& trace,
                                           const explanation_options& options = {});
// One document; the keys are in docs/guide/diagnosis.md.
[[nodiscard]] std::string explanation_json(const advise::explanation& of,
                                           const trace::trace_info& trace);

// The frames of a stack, innermost first: "step at server.cu:41".
[[nodiscard]] std::vector<std::string> stack_lines(std::uint32_t stack,
                                                   const trace::trace_info& trace);

}  // namespace millpond::report
