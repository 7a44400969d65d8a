// Live blocks ordered by address: which block holds an address, and does a new block overlap one. A
// sorted array cut into pieces of at most 512 (a B-tree of two levels), because the next block's
// place is found by two binary searches in few cache lines and an insertion moves at most 8 KiB.
// O(sqrt n) in the worst case; some 50 ns for thousands of live blocks.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace millpond::trace {

class live_index {
 public:
  struct entry {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;  // exclusive, > begin
    std::uint64_t id = 0;
  };

  // The live block that overlaps [begin, end), or nullptr. Valid until the next change.
  [[nodiscard]] const entry* overlapping(std::uint64_t begin, std::uint64_t end) const noexcept {
    if (pieces_.empty()) return nullptr;
    // The last block that begins before `end` is the only candidate, since live blocks are
    // disjoint.
    const entry* last = last_before(end);
    return last != nullptr && last->end > begin ? last : nullptr;
  }
  [[nodiscard]] const entry* holding(std::uint64_t address) const noexcept {
    return address == UINT64_MAX ? nullptr : overlapping(address, address + 1);
  }
  // Only what overlaps nothing.
  void insert(entry added) {
    if (pieces_.empty()) {
      pieces_.emplace_back();
      starts_.push_back(0);
    }
    const std::size_t at = piece_for(added.begin);
    auto& piece = pieces_[at];
    piece.insert(std::ranges::upper_bound(piece, added.begin, {}, &entry::begin), added);
    if (piece.size() > most) split(at);
    ++size_;
  }
  // Only a block that is there.
  void erase(std::uint64_t begin) {
    const std::size_t at = piece_for(begin);
    auto& piece = pieces_[at];
    piece.erase(std::ranges::lower_bound(piece, begin, {}, &entry::begin));
    if (piece.empty() && at > 0) {  // piece 0 stays: it starts at address 0
      pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(at));
      starts_.erase(starts_.begin() + static_cast<std::ptrdiff_t>(at));
    }
    --size_;
  }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

 private:
  static constexpr std::size_t most = 512;

  // Piece i holds the blocks that begin in [starts_[i], starts_[i + 1]).
  [[nodiscard]] std::size_t piece_for(std::uint64_t begin) const noexcept {
    return static_cast<std::size_t>(std::ranges::upper_bound(starts_, begin) - starts_.begin()) - 1;
  }
  [[nodiscard]] const entry* last_before(std::uint64_t end) const noexcept {
    for (std::size_t at = piece_for(end - 1) + 1; at-- > 0;) {
      const auto& piece = pieces_[at];
      const auto after = std::ranges::lower_bound(piece, end, {}, &entry::begin);
      if (after != piece.begin()) return &*(after - 1);
    }
    return nullptr;
  }
  void split(std::size_t at) {
    auto& full = pieces_[at];
    const auto middle = full.begin() + static_cast<std::ptrdiff_t>(full.size() / 2);
    std::vector<entry> upper(middle, full.end());
    upper.reserve(most + 1);
    full.erase(middle, full.end());
    starts_.insert(starts_.begin() + static_cast<std::ptrdiff_t>(at) + 1, upper.front().begin);
    pieces_.insert(pieces_.begin() + static_cast<std::ptrdiff_t>(at) + 1, std::move(upper));
  }

  std::vector<std::uint64_t> starts_;
  std::vector<std::vector<entry>> pieces_;
  std::uint64_t size_ = 0;
};

}  // namespace millpond::trace
