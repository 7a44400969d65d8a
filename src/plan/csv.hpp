// The published text format of planning instances: a header line, then one buffer a line.
//   id,lower,upper,size                          (also start or begin for lower; buffer or
//   buffer_id for id) optional: alignment, gaps, fixed, offset     in any order; other columns are
//   left out, and named
// `end` in place of `upper` names the last time instead of one past it, and so do the gaps of such
// a file. gaps: "7-9 12-15", space separated. fixed: a given offset, or empty. offset: in every
// row, the plan; in some rows, those buffers' given offsets. Empty alignments are 1. Lines end in
// LF or CRLF, the last one too: without it the file counts as cut.
#pragma once
#include <string>
#include <string_view>

#include "millpond/base/result.hpp"
#include "plan/problem.hpp"

namespace millpond::plan {

struct planning_file {
  problem instance;                        // no capacity: the format has none
  std::optional<offsets> plan;             // when every row has an offset
  std::size_t without_offset = 0;          // rows, where there is such a column
  std::vector<std::string> other_columns;  // not understood, and left out
};

// `name` is the file's name in messages, which give it, the line, what was expected and what was
// there.
[[nodiscard]] result<planning_file> parse_csv(std::string_view text, const std::string& name);
[[nodiscard]] result<planning_file> read_csv(const std::string& path, const std::string& name = {});

// A whole file, or bad_input that names it.
[[nodiscard]] result<std::string> read_text(const std::string& path, const std::string& name = {});

// The same columns back, with `offset` when a plan is given (plan->size() == buffers.size()).
[[nodiscard]] std::string format_csv(const problem& of, const offsets* plan);

}  // namespace millpond::plan
