// Starts a program under the recorder and waits for it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millpond/base/result.hpp"
#include "record/settings.hpp"

namespace millpond::record {

struct launch_request {
  settings how;                      // `root` is filled in
  std::string library;               // libmillpond_record.so
  std::vector<std::string> command;  // the program and its arguments
  int output =
      -1;  // a descriptor for what the program prints, which then reads nothing; -1: as ours
  bool keeps_mode = true;  // of a recording that is written over; else how.file_mode
  // Signals to this process go to the program while it runs; else they are the caller's.
  bool passes_signals = true;
  std::function<void(int)> started;  // with its process id, where it could be started
};

struct launch_outcome {
  int exit_status = 0;              // of the program; meaningless where a signal ended it
  int signal = 0;                   // that ended it, or 0
  std::vector<std::string> traces;  // that it and its children left; the program's own first
};

// not_supported where the library is not there; bad_input where the program cannot be started;
// output_failure where the trace's place is not the recorder's to write. From one thread at a time.
// A trace of a child alone (the program was a script) takes the name
// that was asked for.
[[nodiscard]] result<launch_outcome> launch(const launch_request& request);

// A library that comes with this executable: beside it or in its lib folder, of a build or of an
// installation; empty where there is none.
[[nodiscard]] std::string find_own_library(const char* file);
// libmillpond_record.so, so found.
[[nodiscard]] std::string find_recorder_library();
// libcupti where the toolkit or python3's packages have it; empty where it was not found.
[[nodiscard]] std::string find_cupti();

}  // namespace millpond::record
