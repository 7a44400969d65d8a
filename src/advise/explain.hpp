// What is wrong with the memory of a recorded program.
#pragma once
#include <cstdint>
#include <functional>

#include "advise/finding.hpp"
#include "trace/source.hpp"

namespace millpond::advise {

struct explain_options {
  // A place that allocates, frees and allocates again this often is a loop, not a start or an end.
  std::uint64_t loop_rounds = 8;
  // Savings of memory below this share of the peak, or below so many bytes, are not worth a
  // finding.
  double least_peak_share = 0.05;
  std::uint64_t least_bytes = std::uint64_t{1} << 20;
  // What costs less time than this in all is not worth a finding.
  double least_ns = 50'000;
  // A place that costs this share of the run is worth one however seldom it allocates.
  double dear_share = 0.05;
  // Kernels, copies and memsets that pass before a block counts as idle. The DrGPUM paper counts 2;
  // real programs hold scratch memory over a few kernels, and there is nothing to gain by asking
  // for it later.
  std::uint32_t idle_kernels = 16;
  // Called now and then with the events so far.
  std::function<void(std::uint64_t)> progress;
};

// Reads the trace to its end, in one pass: about 100 bytes a block and 8 bytes an event. bad_input
// as the reader's, or where there are 2^32 events. A cut trace is analysed up to its cut. Nothing
// is claimed that the trace does not show: a kernel's arguments are seen, pointers that it finds in
// memory are not, and findings say so.
[[nodiscard]] result<explanation> explain(trace::trace_source& from,
                                          const explain_options& options = {});

}  // namespace millpond::advise
