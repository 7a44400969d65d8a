// The books of an arena: offsets only. Best fit over what was freed, with coalescing; the end, from
// the last live block on, is taken only when no hole fits. So the highest byte ever used does not
// depend on how large the arena is, and a first pass over the workload finds the size that every
// later one needs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/bits.hpp"

namespace millpond::replay {

class arena_book {
 public:
  static constexpr std::uint64_t none = UINT64_MAX;
  static constexpr std::uint64_t alignment = 512;

  // A free on a stream, numbered within it. The work before it must be done before the bytes are
  // used again.
  struct mark {
    std::uint16_t stream = 0;
    std::uint64_t serial = 0;
  };

  explicit arena_book(std::uint64_t capacity) : capacity_(capacity) {}

  [[nodiscard]] std::uint64_t high_water() const noexcept { return high_water_; }
  [[nodiscard]] std::size_t holes() const noexcept { return holes_.size(); }

  // An offset, or none. `after` receives the frees that the block's bytes come from.
  std::uint64_t allocate(std::uint64_t bytes, std::vector<mark>& after) {
    after.clear();
    const std::uint64_t size = align_up(bytes, alignment);
    const auto fit = by_size_.lower_bound({size, 0});
    if (fit == by_size_.end()) {
      if (capacity_ - end_ < size) return none;
      const std::uint64_t at = end_;
      end_ += size;
      high_water_ = std::max(high_water_, end_);
      list(end_after_, after);
      return at;
    }
    const std::uint64_t at = fit->second;
    const auto hole = holes_.find(at);
    list(hole->second.after, after);
    const std::uint64_t left = hole->second.size - size;
    by_size_.erase(fit);
    marks_by_stream marks = std::move(hole->second.after);
    holes_.erase(hole);
    if (left > 0) insert(at + size, left, std::move(marks));
    return at;
  }

  void free(std::uint64_t at, std::uint64_t bytes, mark freed) {
    std::uint64_t size = align_up(bytes, alignment);
    marks_by_stream marks{{freed.stream, freed.serial}};
    auto next = holes_.lower_bound(at);
    if (next != holes_.end() && next->first == at + size) {
      size += next->second.size;
      next = absorb(next, marks);
    }
    if (next != holes_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.size == at) {
        at = before->first;
        size += before->second.size;
        absorb(before, marks);
      }
    }
    if (at + size == end_) {
      end_ = at;
      join(end_after_, std::move(marks));
      return;
    }
    insert(at, size, std::move(marks));
  }

 private:
  using marks_by_stream = std::map<std::uint16_t, std::uint64_t>;  // the latest free of each
  struct hole_facts {
    std::uint64_t size = 0;
    marks_by_stream after;
  };
  using hole_map = std::map<std::uint64_t, hole_facts>;

  void insert(std::uint64_t at, std::uint64_t size, marks_by_stream marks) {
    by_size_.insert({size, at});
    holes_[at] = {size, std::move(marks)};
  }
  // The fewer go to the more: merging hole after hole stays near linear however many streams freed
  // into them.
  static void join(marks_by_stream& into, marks_by_stream from) {
    if (into.size() < from.size()) std::swap(into, from);
    for (const auto& [stream, serial] : from) {
      std::uint64_t& mine = into[stream];
      mine = std::max(mine, serial);
    }
  }
  static void list(const marks_by_stream& of, std::vector<mark>& into) {
    for (const auto& [stream, serial] : of) into.push_back({stream, serial});
  }
  hole_map::iterator absorb(hole_map::iterator hole, marks_by_stream& marks) {
    join(marks, std::move(hole->second.after));
    by_size_.erase({hole->second.size, hole->first});
    return holes_.erase(hole);
  }

  std::uint64_t capacity_;
  std::uint64_t end_ = 0;
  std::uint64_t high_water_ = 0;
  marks_by_stream end_after_;  // frees of what lay beyond the end
  hole_map holes_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
};

}  // namespace millpond::replay
