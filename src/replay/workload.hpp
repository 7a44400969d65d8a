// A workload: what a program asked of memory, with no word of how it was served. A compact list of
// operations over blocks and streams that are small numbers, so that ten million operations take
// 240 MB.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "millpond/base/result.hpp"
#include "trace/source.hpp"

namespace millpond::replay {

inline constexpr std::uint32_t no_block = UINT32_MAX;
inline constexpr std::uint64_t never = UINT64_MAX;

enum class op_kind : std::uint8_t {
  allocate,      // block, on stream
  free,          // block, on stream
  use,           // block, by work on another stream than it was allocated on; the first time only
  kernel,        // on stream, writes block and reads other blocks that were allocated before
  copy_in,       // amount bytes from the host into block, on stream
  copy_out,      // amount bytes from block to the host, on stream
  copy_between,  // amount bytes from block to block `other`, on stream
  synchronize_stream,  // the host waits for stream
  synchronize_device,
  order_streams,  // stream waits for all that stream number `other` has queued
  step,           // a request or an iteration begins, and the one before it is over
};

struct op {
  std::uint32_t block = no_block;
  std::uint32_t other = 0;
  std::uint64_t amount = 0;
  std::uint32_t gap_ns = 0;  // recorded host time since the operation before; saturates
  std::uint16_t stream = 0;  // index into workload::streams
  op_kind what{};
};

struct workload_block {
  std::uint64_t bytes = 0;
  std::uint64_t event = 0;   // the allocation's sequence in the trace: how messages name the block
  std::uint16_t stream = 0;  // that it is allocated on
};

struct workload {
  std::string name;  // the file's name, or "inference(seed 1, ...)"
  std::vector<workload_block> blocks;
  std::vector<op> ops;
  std::vector<std::uint64_t> streams;  // the trace's own numbers, by index
  // What the workload is.
  std::uint64_t events = 0;           // of the trace, or operations of a named workload
  std::uint64_t peak_live_bytes = 0;  // of the blocks here
  std::uint64_t largest_bytes = 0;
  std::uint64_t allocations = 0, frees = 0;
  std::uint64_t never_freed = 0;   // blocks that live to the end
  std::uint64_t duration_ns = 0;   // recorded; 0 where times are not known
  std::uint64_t copied_bytes = 0;  // between host and device
  std::uint64_t largest_copy_bytes = 0;
  std::uint64_t steps = 0;  // step operations; the last one's end is not known
  // What lowering had to decide, for the report.
  std::uint64_t inserted_synchronizes = 0;
  std::uint64_t idle_gap_ns = 0;  // from which recorded pause on one was inserted
  std::uint64_t guessed_uses =
      0;  // blocks kept back by the recorded allocator for streams not named
  std::uint64_t host_blocks = 0;     // pinned and pageable blocks: not served by the strategies
  std::uint64_t skipped_events = 0;  // of capture, other devices, failed calls
  std::vector<std::string> notes;    // the same in sentences
};

struct lower_options {
  std::uint16_t device = 0;  // only this device's events
  // A trace with no synchronise records gets one in each pause of the host of at least this many
  // times the median pause between two events, and at least idle_gap_floor_ns: there the program
  // waited for its GPU. In the five traces of data/traces the median is 9 to 37 us, and fewer
  // pauses lie between 0.5 and 1 ms than anywhere beside: below it the host launches, above it the
  // host waits.
  double idle_gap_medians = 20;
  std::uint64_t idle_gap_floor_ns = 1'000'000;
};

// Errors: bad_input, as trace::find_lifetimes, with the events named; a trace with no allocation
// too.
[[nodiscard]] result<workload> lower(const trace::trace_data& trace,
                                     const lower_options& options = {});

}  // namespace millpond::replay
