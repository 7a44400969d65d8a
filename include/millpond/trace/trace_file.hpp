// A file of trace events from inside the program: what `millpond explain`, `compare` and `plan`
// read.
//
//     auto file = millpond::trace_file::create("server.mpt", {.program = "server"});
//     millpond::trace_resource traced(pool, (*file)->sink());
//     void* ptr = traced.allocate(bytes, stream);     // the file has the size, the time, the
//     stream and this line
//     ...
//     (*file)->close();
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <memory>
#include <string>

#include "millpond/base/result.hpp"
#include "millpond/memory/adaptors.hpp"

namespace millpond {

struct trace_file_options {
  std::string program = {};  // for the readers' headings
  std::string device_name = {};
  bool simulated = false;  // recorded on the simulated GPU
};

// Places come with the events: the caller's source location, and the words of the innermost
// scoped_call_site. Thread-safe; a lock is held while an event is coded, some 0.1 us, and while a
// full chunk of 256 KiB is compressed and written.
class trace_file {
 public:
  // An existing file is emptied. output_failure names the path and the reason.
  [[nodiscard]] static result<std::unique_ptr<trace_file>> create(const std::string& path,
                                                                  trace_file_options options = {});
  // Closes as close() does, and drops its error.
  ~trace_file();
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;

  // For one trace_resource, whose events it puts into the order of their sequence numbers; call it
  // once for each resource, with the trace_options::first_sequence that it has. The file must
  // outlive the calls.
  [[nodiscard]] trace_resource::sink sink(std::uint64_t first_sequence = 0);
  // Something to find again in the trace: a request, a step.
  void mark(const std::string& words);
  // What was added is readable from now on, though the program be killed. Where a thread has been
  // stopped for 2 ms between the number of its event and the event, those after it are written
  // first.
  result<void> flush();
  // Completes the file; what is added later is dropped. The first error of the file since it was
  // made. Where the program says by `ended` that it is over, blocks that are live are leaks to a
  // reader.
  enum class program_state : std::uint8_t { goes_on, ended };
  result<void> close(program_state state = program_state::goes_on);

 private:
  struct inside;
  explicit trace_file(std::unique_ptr<inside> made);
  std::unique_ptr<inside> inside_;
};

}  // namespace millpond
