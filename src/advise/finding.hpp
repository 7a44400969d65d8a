// What is wrong with a program's memory, as plain data.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/event.hpp"

namespace millpond::advise {

enum class severity : std::uint8_t {
  error,  // undefined, or refused by the driver: the program is wrong
  waste,  // right, but it costs memory or time that need not be spent
  note,   // worth knowing; may be meant
};
[[nodiscard]] const char* to_string(severity of) noexcept;

// Everything that `explain` looks for, in the order of its report.
enum class flaw : std::uint8_t {
  wrong_kind_free,
  double_free,
  foreign_free,
  use_after_free,
  free_while_in_use,
  use_before_allocation,
  managed_touched_unsynchronised,
  leak,
  growth_without_end,
  device_wide_stall,
  allocation_churn,
  pool_gives_back,
  pageable_async_copy,
  pinned_overuse,
  managed_thrash,
  wrong_advice,
  fragmentation,
  unused_allocation,
  overallocation,
  early_allocation,
  late_deallocation,
  temporary_idleness,
  redundant_allocation,
  dead_write,
  allocator_time,
  failed_allocation,
};
inline constexpr int flaw_count = static_cast<int>(flaw::failed_allocation) + 1;

struct flaw_facts {
  const char* name;     // "wrong_kind_free": how text, JSON and tests call it
  const char* title;    // "freed through another kind's call"
  const char* pattern;  // of "DrGPUM: Guiding Memory Optimization for GPU-Accelerated Applications"
                        // (ASPLOS 2023); empty where that paper has none
  severity how_bad;
};
[[nodiscard]] const flaw_facts& facts_of(flaw which) noexcept;
[[nodiscard]] std::optional<flaw> find_flaw(std::string_view name) noexcept;

// Where in the program. `stack` is an id in the trace's stack table, 0 where none was recorded.
struct finding_call_site {
  std::string what;  // "allocated", "freed by cudaFree", "used by kernel step"
  std::uint32_t stack = 0;
};

struct finding {
  flaw which{};
  severity how_bad{};
  std::string summary;          // one or two sentences with the numbers
  std::uint64_t count = 0;      // how often; the rest is about all of them
  std::uint64_t bytes = 0;      // memory it costs, 0 where it costs none or is not known
  double time_ns = 0;           // time it costs
  double time_after_ns = 0;     // what is left of it with the remedy
  bool time_estimated = false;  // not recorded: a count times a measured cost, see `summary`
  bool refused = false;         // the driver refused the call: true whatever was not recorded
  std::uint64_t peak_bytes =
      0;  // live at most, as it is; 0 where the finding is not about the peak
  std::uint64_t peak_after_bytes = 0;  // and with the remedy
  std::vector<finding_call_site> call_sites;
  std::vector<std::uint64_t> events;  // numbers in the trace, from 0: the first few
  std::string seen;  // what the finding rests on, and what could not be seen; may be empty
  std::vector<std::string> remedy;  // what to do, then the lines to write
};

// GPU memory of one device.
struct device_summary {
  std::uint16_t device = 0;
  std::uint64_t peak_live_bytes = 0, peak_event = 0, end_live_bytes = 0, end_live_blocks = 0;
};

// What was looked at.
struct analysed {
  std::uint64_t events = 0, allocations = 0, frees = 0, kernels = 0, copies = 0, streams = 0;
  // Of the device that has most; of `devices` each has its own.
  std::uint64_t peak_live_bytes = 0, peak_event = 0;
  std::uint64_t end_live_bytes = 0, end_live_blocks = 0;  // of all devices, and of the host
  std::vector<device_summary> devices;                    // that blocks were on, by number
  std::uint64_t duration_ns = 0;
  double allocator_ns = 0;  // recorded time in calls that allocate or free, of all threads together
  std::uint64_t allocating_threads = 0;  // that made such calls
  bool kernel_pointers = false;          // the trace says which blocks kernels were given
  bool calls_known = false;              // the trace says which calls were made
  std::vector<std::string> remarks;      // what could not be looked at, and why
};

// What one place of the program allocated. A place is a call stack and a call where stacks were
// recorded, else a call, a kind and a size to an eighth of a doubling.
struct call_site_summary {
  std::uint32_t stack = 0;
  std::uint32_t call = 0;  // string id of the call; 0 where not recorded
  trace::kind of{};
  std::uint64_t blocks = 0, bytes = 0, largest_bytes = 0;
  std::uint64_t peak_bytes = 0;  // live when their device had most
  std::uint64_t end_bytes = 0;   // live at the end
  std::uint64_t rounds = 0;      // allocations that came after a free of the place's own
  double time_ns = 0;            // recorded, in its allocations and frees
  // What the worst finding about the place says that it loses, and what is left with its remedy; 0
  // where no finding with a time is about it.
  double loss_ns = 0, loss_after_ns = 0;
  bool loss_estimated = false;
  flaw loses_by{};
  std::uint64_t used_by_kernels = 0;  // blocks that a kernel was given
  std::uint64_t touched_by_cpu = 0;   // managed blocks in which the CPU faulted
};

struct explanation {
  std::vector<finding> findings;  // worst first
  analysed what;
  std::vector<call_site_summary> call_sites;  // most bytes at the peak first
};

}  // namespace millpond::advise
