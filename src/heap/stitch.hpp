// Stitched ranges: where a request fits nowhere although enough is free, free spans make room in a
// row once they are side by side: in a stitched range that is mapped already, or in a new one, for
// which their handles are mapped once more.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "heap/heap.hpp"

namespace millpond::heap {

inline constexpr view_id new_view = no_view;

struct stitch_plan {
  bool possible = false;
  std::uint64_t bytes = 0;  // of the block: whole spans
  // Handles to map in this order; none where the block's place is mapped already: no driver call.
  std::vector<handle_id> handles;
  // The block begins here in a stitched range that is there, and the handles go to that view's end.
  view_id view = new_view;
  std::uint64_t at = 0;
  // Or, where view is new_view, so far into the first handle.
  std::uint64_t skip = 0;
  // Not 0: nothing to map yet; so much new memory would make a stitched range possible.
  std::uint64_t new_bytes = 0;
};

// A stitched range that gives `owner` a run of `bytes`: one that is there, the tightest; else the
// one with the fewest new bytes, then the fewest handles to map. It may go on where a view of
// stitched ranges ends with free spans, or begin in the free end of a handle that is in use, and
// end in the free beginning of another; in between are handles that are wholly free. Looks at both
// ends of every handle, and at every mapping once, not at blocks: what a plan reads is not to throw
// the calls after it out of the processor's caches. Where the host has no memory for a plan, none
// is possible.
[[nodiscard]] stitch_plan plan_stitch(const heap& of, std::uint64_t bytes, owner_id owner) noexcept;

}  // namespace millpond::heap
