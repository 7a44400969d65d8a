// A trace as a PyTorch memory snapshot, which PyTorch's own viewer (pytorch.org/memory_viz,
// _memory_viz.py) opens.
#pragma once
#include "millpond/base/result.hpp"
#include "trace/exporters.hpp"
#include "trace/source.hpp"

namespace millpond::report {

// Pickle protocol 2 with plain containers, numbers and texts. One device's worth of device memory:
// that of the first allocation; other kinds, other devices, kernels and copies are left out and
// counted. The viewer asks that every block lies in a segment and that every free was both
// requested and completed, so: where the trace's own segments do not hold all its blocks, the
// ranges of addresses that it used stand for them, and a completion that was not recorded follows
// its free at once.
[[nodiscard]] result<trace::export_counts> export_torch_snapshot(trace::trace_source& from,
                                                                 trace::sink& to);

}  // namespace millpond::report
