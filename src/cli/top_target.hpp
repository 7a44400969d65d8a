// What `millpond top` is pointed at, and the trace in which it is written down.
#pragma once
#include <string>
#include <vector>

#include "millpond/base/result.hpp"

namespace millpond::cli {

struct top_target {
  enum class sort { program, process, trace };
  sort what = sort::program;
  std::string title;  // of the view
  std::string trace;  // the file that is written; of a program: not known yet
  int process = 0;
};

// All digits: a process. An .mpt: that trace. Anything else: a program and its arguments. bad_input
// with what to do instead where a process is not there or records nothing.
[[nodiscard]] result<top_target> find_top_target(const std::vector<std::string>& words);
[[nodiscard]] bool process_runs(int process);

}  // namespace millpond::cli
