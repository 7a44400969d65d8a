// Windows: where a request fits nowhere although enough is free, free spans make room in a row once they are side by
// side: in a window that is mapped already, or in a new one, for which their handles are mapped once more.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "heap/heap.hpp"

namespace millpond::heap {

inline constexpr view_id new_view = ~view_id{0};

struct window_plan {
  bool possible = false;
  std::uint64_t bytes = 0;         // of the block: whole spans
  // Either a stretch of a window that is mapped: no driver call.
  view_id view = new_view;
  std::uint64_t at = 0;
  // Or handles to map in this order, the block beginning so far into the first.
  std::vector<handle_id> handles;
  std::uint64_t skip = 0;
  // Not 0: nothing to map yet; so much new memory would make a window possible.
  std::uint64_t new_bytes = 0;
};

// A window that gives `owner` a run of `bytes`: one that is there, the tightest; else the one with the fewest new bytes, then
// the fewest handles to map. It may begin in the free end of a handle that is in use and end in the free beginning of
// another; in between are handles that are wholly free. Looks at every segment of the homes and at every slot once, and
// at every handle a few times.
[[nodiscard]] window_plan plan_window(const heap& of, std::uint64_t bytes, owner_id owner);

}  // namespace millpond::heap
