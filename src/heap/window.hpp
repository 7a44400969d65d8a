// Windows: where a request fits nowhere although enough is free, whole free spans make room in a row once they are
// side by side: by a mapping that is there already and only has to be made active, or by a new one.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "heap/heap.hpp"

namespace millpond::heap {

inline constexpr view_id new_view = ~view_id{0};

struct window_plan {
  bool possible = false;
  view_id view = new_view;              // the view to use or to lengthen, or new_view
  std::vector<std::uint64_t> activate;  // dormant mappings of the view to make active first; costs no driver call
  std::vector<span_id> spans;           // to map at the view's end, in this order
  std::uint64_t new_bytes = 0;          // of new memory behind them
};

// The window with the fewest new bytes, then the fewest new mappings, then the fewest spans moved, that gives `owner` a
// run of `bytes`. round_new: what asking for so many new bytes really adds. Looks at every span once and at every slot of
// every view twice.
[[nodiscard]] window_plan plan_window(const heap& of, std::uint64_t bytes, owner_id owner,
                                      const std::function<std::uint64_t(std::uint64_t)>& round_new);

}  // namespace millpond::heap
