// Addresses to lines, when the program is over or while it runs: addr2line on each module that has
// line tables.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "millpond/base/result.hpp"

namespace millpond::record {

struct line_report {
  std::uint64_t frames = 0;    // different ones
  std::uint64_t resolved = 0;  // of them to a line
  std::uint64_t modules = 0;   // that have line tables
};

// Writes the trace anew, with lines in its stacks, and puts it in the place of the old one; the
// frames of CUDA's own that only a line table could tell are taken off. A trace that is cut stays
// cut. The file is as it was on any error.
[[nodiscard]] result<line_report> add_lines(const std::string& path);

// One frame of a stack, as texts; line 0 where it is not known.
struct source_frame {
  std::string symbol, file;
  std::uint32_t line = 0;
};
// The same frames with their lines, innermost first; what was inlined becomes frames of its own,
// and CUDA's own innermost ones are taken off. Frames that are not known stay. Starts a process for
// each module: some 20 ms, more for large ones.
[[nodiscard]] std::vector<source_frame> with_lines(const std::vector<source_frame>& frames);

// Whether an ELF file has a table of lines.
[[nodiscard]] bool has_line_table(const std::string& path);

}  // namespace millpond::record
