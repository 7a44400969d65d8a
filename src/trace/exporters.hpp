// A trace written out again: as .mpt, as the CSV that read_csv takes.
#pragma once
#include <cstdint>
#include <string>

#include "millpond/base/result.hpp"
#include "trace/source.hpp"
#include "trace/writer.hpp"

namespace millpond::trace {

struct export_counts {
  std::uint64_t written = 0;   // events
  std::uint64_t left_out = 0;  // that the format has no word for
};

// Everything: events, strings, stacks, metadata. Streams; what the source has read already is not
// written.
[[nodiscard]] result<export_counts> export_mpt(trace_source& from, sink& to,
                                               const writer_options& options = {});
[[nodiscard]] result<export_counts> export_mpt(const trace_data& from, sink& to,
                                               const writer_options& options = {});

// `action,time_us,addr,size,stream`: allocations (failed ones as oom), frees, completions, segments
// and snapshot marks, of device memory; the rest is left out and counted. Times are cut to
// microseconds. What came from such a file comes out with the same bytes.
[[nodiscard]] result<export_counts> export_csv(trace_source& from, sink& to);
[[nodiscard]] result<export_counts> export_csv(const trace_data& from, sink& to);

}  // namespace millpond::trace
