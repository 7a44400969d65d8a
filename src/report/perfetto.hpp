// A trace for the Perfetto page (ui.perfetto.dev): a JSON of Chrome's trace events.
#pragma once
#include "millpond/base/result.hpp"
#include "trace/exporters.hpp"
#include "trace/source.hpp"

namespace millpond::report {

// A track a stream with its allocations, frees, kernels, copies and waits as slices as long as the
// recorded call (1 us where that is not known, and of zero length never, since Perfetto hides
// those); counters of live bytes a kind and of reserved bytes; an arrow from each free to the
// allocation that got its address again. Streams: memory grows with the live blocks only.
[[nodiscard]] result<trace::export_counts> export_perfetto(trace::trace_source& from,
                                                           trace::sink& to);

}  // namespace millpond::report
