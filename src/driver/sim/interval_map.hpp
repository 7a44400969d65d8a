// A map from disjoint half-open ranges of 64-bit numbers to values. Assigning a range cuts what was
// there. Every operation is O(log n) plus the ranges that it touches.
#pragma once
#include <cstdint>
#include <map>
#include <utility>

namespace millpond::sim {

template <class Value>
class interval_map {
 public:
  struct piece {
    std::uint64_t end;
    Value value;
  };
  using container = std::map<std::uint64_t, piece>;

  void assign(std::uint64_t begin, std::uint64_t end, Value value) {
    if (begin >= end) return;
    // The common case: exactly one range, as it was last assigned.
    const auto same = pieces_.find(begin);
    if (same != pieces_.end() && same->second.end == end) {
      same->second.value = std::move(value);
      return;
    }
    erase(begin, end);
    pieces_.emplace(begin, piece{end, std::move(value)});
  }

  void erase(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    auto it = first_over(begin);
    while (it != pieces_.end() && it->first < end) {
      const std::uint64_t start = it->first;
      const std::uint64_t stop = it->second.end;
      if (start < begin) {
        it->second.end = begin;
        if (stop > end) {
          pieces_.emplace(end, piece{stop, it->second.value});
          return;
        }
        ++it;
      } else if (stop > end) {
        auto node = pieces_.extract(it);
        node.key() = end;
        pieces_.insert(std::move(node));
        return;
      } else {
        it = pieces_.erase(it);
      }
    }
  }

  // Calls visit(begin, end, const Value&) for each part of [begin, end) that has a value, by rising
  // begin.
  template <class Visitor>
  void visit(std::uint64_t begin, std::uint64_t end, Visitor&& visit) const {
    for (auto it = first_over(begin); it != pieces_.end() && it->first < end; ++it) {
      visit(it->first > begin ? it->first : begin, it->second.end < end ? it->second.end : end,
            it->second.value);
    }
  }
  // Whether every number of [begin, end) has a value.
  [[nodiscard]] bool covers(std::uint64_t begin, std::uint64_t end) const {
    for (auto it = first_over(begin); it != pieces_.end() && it->first <= begin; ++it) {
      begin = it->second.end;
      if (begin >= end) return true;
    }
    return begin >= end;
  }
  [[nodiscard]] std::size_t size() const noexcept { return pieces_.size(); }
  void clear() noexcept { pieces_.clear(); }

 private:
  typename container::iterator first_over(std::uint64_t begin) {
    auto it = pieces_.upper_bound(begin);
    if (it != pieces_.begin()) {
      const auto before = std::prev(it);
      if (before->second.end > begin) return before;
    }
    return it;
  }
  typename container::const_iterator first_over(std::uint64_t begin) const {
    auto it = pieces_.upper_bound(begin);
    if (it != pieces_.begin()) {
      const auto before = std::prev(it);
      if (before->second.end > begin) return before;
    }
    return it;
  }

  container pieces_;
};

}  // namespace millpond::sim
