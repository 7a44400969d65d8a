// Addresses to lines, when the program is over: addr2line on each module that has line tables.
#pragma once
#include <cstdint>
#include <string>

#include "millpond/result.hpp"

namespace millpond::record {

struct line_report {
  std::uint64_t frames = 0;     // different ones
  std::uint64_t resolved = 0;   // of them to a line
  std::uint64_t modules = 0;    // that have line tables
};

// Writes the trace anew, with lines in its stacks, and puts it in the place of the old one; the frames of CUDA's own
// that only a line table could tell are taken off. A trace that is cut stays cut. The file is as it was on any error.
[[nodiscard]] result<line_report> add_lines(const std::string& path);

// Whether an ELF file has a table of lines.
[[nodiscard]] bool has_line_table(const std::string& path);

}  // namespace millpond::record
