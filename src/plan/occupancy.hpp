// Which bytes are taken at which time, for first fit in any order.
//
// A segment tree over the sections. A node keeps two sets of taken bytes as sorted, merged pieces:
// `covers` by buffers live in all of its sections, `touches` by buffers live in any of them. A
// buffer's range splits into O(log n) nodes; the bytes taken in it are the `touches` of those nodes
// and the `covers` of their ancestors. Plans are tight, so merged pieces are few: a query costs
// about the number of holes too small for it, not the number of conflicting buffers.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "plan/sections.hpp"

namespace millpond::plan {

class occupancy {
 public:
  explicit occupancy(index section_count);

  void clear();

  // The lowest multiple of alignment, >= from, at which `size` bytes are free in all of the ranges.
  [[nodiscard]] std::uint64_t first_fit(std::span<const section_range> ranges, std::uint64_t size,
                                        std::uint64_t alignment, std::uint64_t from = 0);
  // The place in the smallest free hole that ends below the highest taken byte and holds it; where
  // there is none, as first_fit.
  [[nodiscard]] std::uint64_t best_fit(std::span<const section_range> ranges, std::uint64_t size,
                                       std::uint64_t alignment);
  // Marks [offset, offset + size) as taken in the ranges; they may be taken already.
  void take(std::span<const section_range> ranges, std::uint64_t offset, std::uint64_t size);

 private:
  struct piece {
    std::uint64_t begin;
    std::uint64_t end;
  };
  using pieces = std::vector<piece>;
  struct node {
    pieces covers;
    pieces touches;
  };
  struct cursor {
    const piece* at;
    const piece* end;
  };
  template <class Part, class Above>
  void walk(const section_range& of, Part&& part, Above&& above) const;
  static void add(pieces& to, std::uint64_t begin, std::uint64_t end);
  void collect(std::span<const section_range> ranges, std::uint64_t from);
  // The first byte >= from that no collected piece holds, and how far it stays free.
  std::uint64_t skip_taken(std::uint64_t from);

  index leaves_;  // a power of two
  std::vector<node> nodes_;
  std::vector<index> used_;  // nodes that are not empty, for clear
  std::vector<cursor> cursors_;
};

}  // namespace millpond::plan
