// Free extents by size: exact bins up to 64 granules, then 16 a doubling, with a bitmap of those
// that hold anything. Insert and remove are constant time; a fit looks at a bounded number of
// extents once it has one.
#pragma once
#include <array>
#include <bit>
#include <cstdint>

#include "base/bits.hpp"
#include "heap/extent.hpp"

namespace millpond::heap {

class bins {
 public:
  static constexpr unsigned exact = 64;
  static constexpr unsigned steps = 16;
  static constexpr unsigned doublings = 34;  // up to 512 B * 2^40
  static constexpr unsigned count = exact + steps * doublings;

  [[nodiscard]] static unsigned index_of(std::uint64_t bytes) noexcept {
    const std::uint64_t granules = bytes / granule;
    if (granules < exact) return static_cast<unsigned>(granules);
    const unsigned power = floor_log2(granules);
    const unsigned step = static_cast<unsigned>((granules >> (power - 4)) & (steps - 1));
    const unsigned index = exact + (power - 6) * steps + step;
    return index < count ? index : count - 1;
  }

  void insert(extent* of) noexcept {
    const unsigned index = index_of(of->bytes);
    of->bin_before = nullptr;
    of->bin_after = heads_[index];
    if (heads_[index] != nullptr) heads_[index]->bin_before = of;
    heads_[index] = of;
    bits_[index / 64] |= std::uint64_t{1} << (index % 64);
    bytes_ += of->bytes;
    ++extents_;
  }
  void remove(extent* of) noexcept {
    const unsigned index = index_of(of->bytes);
    if (of->bin_before != nullptr)
      of->bin_before->bin_after = of->bin_after;
    else
      heads_[index] = of->bin_after;
    if (of->bin_after != nullptr) of->bin_after->bin_before = of->bin_before;
    if (heads_[index] == nullptr) bits_[index / 64] &= ~(std::uint64_t{1} << (index % 64));
    of->bin_before = of->bin_after = nullptr;
    bytes_ -= of->bytes;
    --extents_;
  }

  // The smallest found extent of at least `bytes`; nullptr only where there is none.
  [[nodiscard]] extent* best_fit(std::uint64_t bytes) const noexcept {
    extent* best = nullptr;
    unsigned looked = 0;
    // The request's own bin holds smaller ones too, so it is walked until one fits.
    for (extent* s = heads_[index_of(bytes)]; s != nullptr; s = s->bin_after) {
      if (s->bytes >= bytes && (best == nullptr || s->bytes < best->bytes)) {
        if (s->bytes == bytes) return s;
        best = s;
      }
      if (++looked >= look && best != nullptr) break;
    }
    if (best != nullptr) return best;
    const unsigned index = next_filled(index_of(bytes) + 1);
    if (index == count) return nullptr;
    looked = 0;
    for (extent* s = heads_[index]; s != nullptr && looked < look; s = s->bin_after, ++looked) {
      if (best == nullptr || s->bytes < best->bytes) best = s;
    }
    return best;
  }

  // Of the extents from `bytes` to `most`, the one at the lowest address; `otherwise` where none
  // lies below it. Looks at a bounded number.
  [[nodiscard]] extent* lowest_fit(std::uint64_t bytes, std::uint64_t most,
                                   extent* otherwise) const noexcept {
    const unsigned last = index_of(most);
    unsigned looked = 0;
    for (unsigned index = next_filled(index_of(bytes)); index <= last && index != count;
         index = next_filled(index + 1)) {
      for (extent* s = heads_[index]; s != nullptr; s = s->bin_after) {
        if (s->bytes >= bytes && s->bytes <= most && s->start() < otherwise->start()) otherwise = s;
        if (++looked == look_for_lowest) return otherwise;
      }
    }
    return otherwise;
  }

  // Visits every extent; the visitor may remove the one it is given, and no other.
  template <class Visit>
  void each(Visit&& visit) const {
    for (unsigned index = next_filled(0); index != count; index = next_filled(index + 1)) {
      for (extent* s = heads_[index]; s != nullptr;) {
        extent* const next = s->bin_after;
        visit(s);
        s = next;
      }
    }
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t extents() const noexcept { return extents_; }
  [[nodiscard]] bool empty() const noexcept { return extents_ == 0; }
  // Bytes of the largest extent; walks one bin.
  [[nodiscard]] std::uint64_t largest() const noexcept {
    for (std::size_t word = bits_.size(); word-- > 0;) {
      if (bits_[word] == 0) continue;
      std::uint64_t most = 0;
      for (extent* s = heads_[word * 64 + floor_log2(bits_[word])]; s != nullptr;
           s = s->bin_after) {
        most = s->bytes > most ? s->bytes : most;
      }
      return most;
    }
    return 0;
  }

 private:
  static constexpr unsigned look = 16;
  static constexpr unsigned look_for_lowest = 64;

  [[nodiscard]] unsigned next_filled(unsigned from) const noexcept {
    if (from >= count) return count;
    std::size_t word = from / 64;
    std::uint64_t bits = bits_[word] & (~std::uint64_t{0} << (from % 64));
    while (bits == 0) {
      if (++word == bits_.size()) return count;
      bits = bits_[word];
    }
    return static_cast<unsigned>(word * 64) + static_cast<unsigned>(std::countr_zero(bits));
  }

  std::array<extent*, count> heads_{};
  std::array<std::uint64_t, (count + 63) / 64> bits_{};
  std::uint64_t bytes_ = 0;
  std::uint64_t extents_ = 0;
};

}  // namespace millpond::heap
