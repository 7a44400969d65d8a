// Windows: where a request fits nowhere although enough is free, the free end of one span, whole free spans and the
// free start of another make room in a row once they are mapped side by side (a second time: old mappings stay).
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "heap/heap.hpp"

namespace millpond::heap {

inline constexpr view_id new_view = ~view_id{0};

struct window_plan {
  bool possible = false;
  view_id view = new_view;          // the view to lengthen, or new_view
  std::vector<span_id> spans;       // to map there, in this order
  std::uint64_t new_bytes = 0;      // of new memory behind them
};

// The window with the fewest new bytes, then the fewest mappings, that gives `owner` a run of `bytes`. No span is
// mapped twice into one view, so that no block meets a page twice. round_new: what asking for so many new bytes
// really adds. Walks all segments once, then looks at every view and at the longest free ends.
[[nodiscard]] window_plan plan_window(const heap& of, std::uint64_t bytes, owner_id owner,
                                      const std::function<std::uint64_t(std::uint64_t)>& round_new);

}  // namespace millpond::heap
