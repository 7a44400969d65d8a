#include "advise/recorded_part.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace millpond::advise {

recorded_part part_of(const trace::metadata& meta) {
  recorded_part made;
  made.gaps = meta.dropped_events > 0;
  for (const auto& [name, value] : meta.notes) {
    if (name == "ended" && value == "exit") made.ended = true;
    if (name == "window") made.window = true;
    if (name == "paused") made.gaps = true;
  }
  return made;
}

bool recorded_part::carries(const finding& of) const noexcept {
  switch (of.which) {
    // That the driver refused a free is seen, whatever else was not. Without that, an allocation
    // that was not recorded may lie at the address.
    case flaw::wrong_kind_free:
    case flaw::double_free:
    case flaw::foreign_free: return !gaps || of.refused;
    // A wait, a use, an allocation, a free, a copy, an advice or a setting that was not recorded
    // would make them false.
    case flaw::free_while_in_use:
    case flaw::use_after_free:
    case flaw::managed_touched_unsynchronised:
    case flaw::dead_write:
    case flaw::device_wide_stall:
    case flaw::growth_without_end:
    case flaw::wrong_advice:
    case flaw::fragmentation:
    case flaw::leak: return !gaps;
    // And these rest on a block's whole life, or on what was ordered, pinned or set before the
    // first event.
    case flaw::use_before_allocation:
    case flaw::pinned_overuse:
    case flaw::unused_allocation:
    case flaw::overallocation:
    case flaw::early_allocation:
    case flaw::late_deallocation:
    case flaw::temporary_idleness:
    case flaw::redundant_allocation: return !gaps && !window;
    // Counts and times of calls that were seen: more of them would only add to it. The driver's
    // pool looks after itself (pool_check).
    case flaw::allocation_churn:
    case flaw::pool_gives_back:
    case flaw::pageable_async_copy:
    case flaw::managed_thrash:
    case flaw::allocator_time:
    case flaw::failed_allocation: return true;
  }
  return true;
}

void leave_unfounded_out(const recorded_part& part, std::vector<finding>& findings,
                         std::vector<std::string>& remarks) {
  if (!part.gaps && !part.window) return;
  std::erase_if(findings, [&](const finding& each) { return !part.carries(each); });
  remarks.emplace_back(part.gaps ? "a part of the run is not in the recording: what is never "
                                   "freed, stream order, unused memory and "
                                   "idleness, which rest on every call, were left out"
                                 : "only the end of the run is in the recording: unused memory and "
                                   "idleness, which rest on blocks' whole "
                                   "lives, were left out");
}

}  // namespace millpond::advise
