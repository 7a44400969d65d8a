// What changed between two recordings of one program.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "advise/finding.hpp"
#include "trace/source.hpp"

namespace millpond::advise {

struct difference_limits {
  double bytes_share = 0.05;  // a peak or a place may grow by so much of what it was
  double time_share = 0.20;   // recorded times differ from run to run more than sizes do
  double count_share = 0.10;
  std::uint64_t least_bytes = std::uint64_t{1} << 20;  // less is no regression, whatever its share
  double least_ns = 1e6;
  std::uint64_t least_count = 16;
};

struct measure {
  enum class unit : std::uint8_t { bytes, nanoseconds, count } in{};
  std::string name;
  double before = 0, after = 0;
  bool regressed = false;  // grew beyond its limit
};

struct call_site_change {
  std::string call_site;  // its innermost frame and call, or its call, kind and size
  std::uint32_t stack_before = 0, stack_after = 0;
  std::uint64_t peak_before = 0, peak_after = 0;  // bytes live at each program's peak
  std::uint64_t blocks_before = 0, blocks_after = 0;
  bool regressed = false;
};

// A finding of both sides that costs something else now.
struct finding_change {
  finding before, after;
  bool regressed = false;
};

struct difference {
  std::vector<measure> measures;
  std::vector<finding_change> changed;
  std::vector<call_site_change> call_sites;  // that changed, largest change first
  std::vector<finding> appeared;             // places are the second trace's
  std::vector<finding> gone;                 // places are the first one's
  [[nodiscard]] bool regressed() const noexcept;
};

// One side: an explanation with the tables that its ids are of.
struct explained {
  const explanation& what;
  const trace::trace_info& trace;
};

// Places are the same where their calls and their frames' symbols are: lines move when code is
// edited. Findings are the same where the flaw and the first place are; and of those that are left,
// where the flaw, the call, the counts, the bytes and (within the limit) the time are: a place that
// was renamed. New errors and wastes are regressions, notes are not; and so are those that cost
// more than the limits allow.
[[nodiscard]] difference compare(const explained& before, const explained& after,
                                 const difference_limits& limits = {});

}  // namespace millpond::advise
