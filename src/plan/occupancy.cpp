#include "plan/occupancy.hpp"

#include "base/bits.hpp"

#include <algorithm>
#include <bit>

namespace millpond::plan {

occupancy::occupancy(index section_count)
    : leaves_(std::bit_ceil(std::max<index>(section_count, 1))), nodes_(2 * std::size_t{leaves_}) {}

void occupancy::clear() {
  for (const index n : used_) {
    nodes_[n].covers.clear();
    nodes_[n].touches.clear();
  }
  used_.clear();
}

void occupancy::add(pieces& to, std::uint64_t begin, std::uint64_t end) {
  // Pieces that touch [begin, end) at all, even end to end, become one.
  auto first = std::lower_bound(to.begin(), to.end(), begin,
                                [](const piece& p, std::uint64_t b) { return p.end < b; });
  auto last = first;
  while (last != to.end() && last->begin <= end) ++last;
  if (first == last) {
    to.insert(first, {begin, end});
    return;
  }
  first->begin = std::min(first->begin, begin);
  first->end = std::max(std::prev(last)->end, end);
  to.erase(std::next(first), last);
}

// The whole subtrees that make up a range, and then every node above its ends.
template <class Part, class Above>
void occupancy::walk(const section_range& of, Part&& part, Above&& above) const {
  const index left = of.first + leaves_;
  const index right = of.last - 1 + leaves_;
  index low = left;
  index high = right + 1;
  for (; low < high; low >>= 1, high >>= 1) {
    if ((low & 1) != 0) part(low++);
    if ((high & 1) != 0) part(--high);
  }
  for (index n = left >> 1, m = right >> 1; n > 0; n >>= 1, m >>= 1) {
    above(n);
    if (m != n) above(m);
  }
}

void occupancy::take(std::span<const section_range> ranges, std::uint64_t offset,
                     std::uint64_t size) {
  const auto touch = [&](index n) {
    if (nodes_[n].touches.empty()) used_.push_back(n);
    add(nodes_[n].touches, offset, offset + size);
  };
  const auto cover = [&](index n) {
    touch(n);
    add(nodes_[n].covers, offset, offset + size);
  };
  for (const section_range& r : ranges) walk(r, cover, touch);
}

void occupancy::collect(std::span<const section_range> ranges, std::uint64_t from) {
  cursors_.clear();
  const auto open = [&](const pieces& p) {
    if (p.empty() || p.back().end <= from) return;
    const auto at = std::lower_bound(p.begin(), p.end(), from,
                                     [](const piece& q, std::uint64_t f) { return q.end <= f; });
    cursors_.push_back({&*at, p.data() + p.size()});
  };
  for (const section_range& r : ranges) {
    walk(r, [&](index n) { open(nodes_[n].touches); }, [&](index n) { open(nodes_[n].covers); });
  }
}

std::uint64_t occupancy::skip_taken(std::uint64_t from) {
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t c = 0; c < cursors_.size();) {
      cursor& list = cursors_[c];
      while (list.at != list.end && list.at->end <= from) ++list.at;
      if (list.at == list.end) {
        list = cursors_.back();
        cursors_.pop_back();
        continue;
      }
      if (list.at->begin <= from) {
        from = list.at->end;
        ++list.at;
        moved = true;
      }
      ++c;
    }
  }
  return from;
}

std::uint64_t occupancy::first_fit(std::span<const section_range> ranges, std::uint64_t size,
                                   std::uint64_t alignment, std::uint64_t from) {
  const auto align = [&](std::uint64_t value) { return next_multiple(value, alignment); };
  std::uint64_t at = align(from);
  collect(ranges, at);
  // `clear` lists in a row have nothing in [at, at + size): when all of them agree, it fits.
  std::size_t clear = 0;
  for (std::size_t c = 0; clear < cursors_.size();) {
    cursor& list = cursors_[c];
    while (list.at != list.end && list.at->end <= at) ++list.at;
    if (list.at == list.end) {
      list = cursors_.back();
      cursors_.pop_back();
      if (c >= cursors_.size()) c = 0;
      clear = 0;  // the list moved here may be counted already
      continue;
    }
    if (list.at->begin < at + size) {
      at = align(list.at->end);
      clear = 0;
    } else {
      ++clear;
    }
    if (++c >= cursors_.size()) c = 0;
  }
  return at;
}

std::uint64_t occupancy::best_fit(std::span<const section_range> ranges, std::uint64_t size,
                                  std::uint64_t alignment) {
  collect(ranges, 0);
  std::uint64_t best = 0;
  std::uint64_t best_hole = ~std::uint64_t{0};
  std::uint64_t from = 0;
  for (;;) {
    from = skip_taken(from);
    std::uint64_t hole_end = ~std::uint64_t{0};
    for (const cursor& list : cursors_) hole_end = std::min(hole_end, list.at->begin);
    const std::uint64_t at = next_multiple(from, alignment);
    if (cursors_.empty()) return best_hole == ~std::uint64_t{0} ? at : best;
    if (at < hole_end && hole_end - at >= size && hole_end - from < best_hole) {
      best = at;
      best_hole = hole_end - from;
    }
    from = hole_end;
  }
}

}  // namespace millpond::plan
