// Free ranges of an address space, first fit by address, coalescing. O(ranges) to take, O(log n) to
// give.
#pragma once
#include <cstdint>
#include <map>
#include <optional>

#include "base/bits.hpp"
#include "base/check.hpp"

namespace millpond::sim {

class extents {
 public:
  // [begin, end) becomes free; it was not.
  void give(std::uint64_t begin, std::uint64_t end) {
    MILLPOND_CHECK(begin < end, begin, end);
    auto next = free_.lower_bound(begin);
    MILLPOND_CHECK(next == free_.end() || next->first >= end, begin, end);
    if (next != free_.end() && next->first == end) {
      end = next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      MILLPOND_CHECK(before->second <= begin, before->second, begin);
      if (before->second == begin) {
        before->second = end;
        return;
      }
    }
    free_.emplace_hint(next, begin, end);
  }
  // The lowest range of `bytes` at a multiple of `alignment` (a power of two).
  std::optional<std::uint64_t> take(std::uint64_t bytes, std::uint64_t alignment) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const std::uint64_t at = align_up(it->first, alignment);
      if (at < it->first || at > it->second || it->second - at < bytes) continue;
      cut(it, at, at + bytes);
      return at;
    }
    return std::nullopt;
  }
  // Takes [begin, end) itself; false where part of it is not free.
  bool take_exactly(std::uint64_t begin, std::uint64_t end) {
    auto it = free_.upper_bound(begin);
    if (it == free_.begin()) return false;
    --it;
    if (it->second < end) return false;
    cut(it, begin, end);
    return true;
  }

 private:
  void cut(std::map<std::uint64_t, std::uint64_t>::iterator it, std::uint64_t begin,
           std::uint64_t end) {
    const std::uint64_t stop = it->second;
    if (it->first == begin) {
      it = free_.erase(it);
    } else {
      it->second = begin;
      ++it;
    }
    if (stop > end) free_.emplace_hint(it, end, stop);
  }
  std::map<std::uint64_t, std::uint64_t> free_;
};

}  // namespace millpond::sim
