// A heap with one primary view, and what the books of a heap say.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "heap/heap.hpp"
#include "millpond/base/units.hpp"

namespace millpond::heap {

inline constexpr std::uint64_t base = std::uint64_t{1} << 40;

struct one_view {
  heap of;
  view_id primary = 0;
  explicit one_view(std::uint64_t bytes, const limits& most = {}) : of(most) {
    EXPECT_TRUE(of.add_region(base, 64 * GiB));
    primary = of.add_view(base, 32 * GiB);
    for (owner_id owner = 1; owner <= 4; ++owner) EXPECT_TRUE(of.open_owner(owner));
    if (bytes == 0) return;
    EXPECT_TRUE(of.map_handle(primary, base, of.add_handle(bytes, bytes, 0)));
  }
};

// All that a caller can see of a heap, to compare.
struct heap_books {
  explicit heap_books(const heap& of) {
    of.check();
    for (owner_id owner = 0; owner <= 4; ++owner)
      free.emplace_back(of.free_bytes(owner), of.largest_free(owner));
    for (view_id id = 0; id < of.views().size(); ++id) {
      const auto& in = of.views()[id];
      views.emplace_back(in.base, in.end, in.capacity, in.mapped);
      for (const extent* s = in.first; s != nullptr; s = s->after)
        extents.emplace_back(s->start(), s->bytes, s->state, s->in, s->owner, s->batch);
      for (const auto& slot : in.slots)
        slots.emplace_back(slot.at, slot.span, slot.bytes, slot.active);
      for (const auto& h : in.handles) placed.emplace_back(h.at, h.handle);
    }
    for (const auto& h : of.handles())
      handles.emplace_back(h.present, h.held, h.bytes, h.name, h.spans, h.mappings.size());
    mappings = of.mappings();
  }
  bool operator==(const heap_books&) const = default;

  std::vector<std::tuple<std::uint64_t, std::uint64_t>> free;  // and the largest
  std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>> views;
  std::vector<std::tuple<std::uint64_t, std::uint64_t, extent_state, zone, owner_id, std::uint64_t>>
      extents;
  std::vector<std::tuple<std::uint64_t, span_id, std::uint64_t, bool>> slots;
  std::vector<std::tuple<std::uint64_t, handle_id>> placed;
  std::vector<
      std::tuple<bool, bool, std::uint64_t, std::uint64_t, std::vector<span_id>, std::size_t>>
      handles;
  std::uint64_t mappings = 0;
};

}  // namespace millpond::heap
