// A stream cache: free blocks of one stream that any thread cache of it may take. What one thread
// frees another allocates through here, so nobody waits for anybody: blocks of a class go in and
// out as whole chains by one exchange, large blocks one by one through words that say size and
// record.
#pragma once
#include <array>
#include <cstdint>

#include "base/atomic.hpp"
#include "heap/extent.hpp"
#include "pool/cache/size_classes.hpp"

namespace millpond {

// Any thread, at any time. Putting a block here publishes what its record says, taking it sees
// that.
class stream_cache {
 public:
  // Blocks of one class, linked, the last one's link being nullptr.
  struct chain {
    heap::extent* head = nullptr;
    heap::extent* tail = nullptr;  // nullptr: not known
    std::uint32_t count = 0;
  };

  // False, and nothing is taken, where small blocks of more than `limit` bytes would lie here.
  [[nodiscard]] bool put(unsigned size_class, chain blocks, std::uint64_t limit) noexcept {
    const std::uint64_t bytes = blocks.count * class_bytes(size_class);
    if (small_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes > limit) {
      small_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
      return false;
    }
    put_counted(size_class, blocks);
    return true;
  }

  // At most `most` blocks of the class (at least one), or an empty chain.
  [[nodiscard]] chain take(unsigned size_class, std::uint64_t most) noexcept {
    atomic<heap::extent*>& box = boxes_[size_class];
    if (box.load(std::memory_order_relaxed) == nullptr) return {};
    chain out{box.exchange(nullptr, std::memory_order_acquire), nullptr, 0};
    if (out.head == nullptr) return {};
    out.count = out.head->holder_number;
    if (out.count > most) {
      heap::extent* last = out.head;
      for (std::uint64_t i = 1; i < most; ++i) last = last->link;
      heap::extent* const rest = last->link;
      last->link = nullptr;
      put_counted(size_class, {rest, nullptr, static_cast<std::uint32_t>(out.count - most)});
      out.count = static_cast<std::uint32_t>(most);
    }
    small_bytes_.fetch_sub(out.count * class_bytes(size_class), std::memory_order_relaxed);
    return out;
  }

  // Large blocks by their exact size. False where the stream cache's part for this size is full, or
  // all large blocks here would pass `limit` bytes.
  [[nodiscard]] bool put_large(const heap::extent& block, std::uint64_t limit) noexcept {
    const std::uint64_t granules = block.bytes / heap::granule;
    if (granules > ~std::uint32_t{0}) return false;
    if (large_bytes_.fetch_add(block.bytes, std::memory_order_relaxed) + block.bytes <= limit) {
      for (auto& slot : part_of(granules)) {
        std::uint64_t nothing = 0;
        if (slot.load(std::memory_order_relaxed) == 0 &&
            slot.compare_exchange_strong(nothing, granules << 32 | block.id,
                                         std::memory_order_release, std::memory_order_relaxed)) {
          return true;
        }
      }
    }
    large_bytes_.fetch_sub(block.bytes, std::memory_order_relaxed);
    return false;
  }
  // The id of a block of exactly so many bytes; 0 where there is none.
  [[nodiscard]] std::uint32_t take_large(std::uint64_t bytes) noexcept {
    if (large_bytes_.load(std::memory_order_relaxed) == 0) return 0;
    const std::uint64_t granules = bytes / heap::granule;
    for (auto& slot : part_of(granules)) {
      std::uint64_t there = slot.load(std::memory_order_relaxed);
      if (there >> 32 != granules || there == 0) continue;
      if (slot.compare_exchange_strong(there, 0, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        large_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
        return static_cast<std::uint32_t>(there);
      }
    }
    return 0;
  }

  // Takes everything: visit(chain) for blocks of a class, visit_large(id) for large ones.
  template <class Visit, class VisitLarge>
  void empty(Visit&& visit, VisitLarge&& visit_large) noexcept {
    for (unsigned c = 0; c < small_classes; ++c) {
      if (const chain blocks = take(c, ~std::uint64_t{0}); blocks.head != nullptr) visit(blocks);
    }
    empty_large(visit_large);
  }
  template <class VisitLarge>
  void empty_large(VisitLarge&& visit_large) noexcept {
    if (large_bytes() == 0) return;
    for (auto& each : parts_) {
      for (auto& slot : each.words) {
        if (slot.load(std::memory_order_relaxed) == 0) continue;
        const std::uint64_t there = slot.exchange(0, std::memory_order_acquire);
        if (there == 0) continue;
        large_bytes_.fetch_sub((there >> 32) * heap::granule, std::memory_order_relaxed);
        visit_large(static_cast<std::uint32_t>(there));
      }
    }
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return small_bytes_.load(std::memory_order_relaxed) + large_bytes();
  }
  [[nodiscard]] std::uint64_t large_bytes() const noexcept {
    return large_bytes_.load(std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] static heap::extent* tail_of(heap::extent* head) noexcept {
    while (head->link != nullptr) head = head->link;
    return head;
  }
  void put_counted(unsigned size_class, chain blocks) noexcept {
    atomic<heap::extent*>& box = boxes_[size_class];
    for (;;) {
      blocks.head->holder_number = blocks.count;
      heap::extent* there = nullptr;
      if (box.compare_exchange_strong(there, blocks.head, std::memory_order_release,
                                      std::memory_order_relaxed))
        return;
      // What is there comes behind ours. Chains are only taken whole, so a box holds what its head
      // says.
      heap::extent* const old = box.exchange(nullptr, std::memory_order_acquire);
      if (old == nullptr) continue;
      (blocks.tail != nullptr ? blocks.tail : tail_of(blocks.head))->link = old;
      blocks.count += old->holder_number;
      blocks.tail = nullptr;
    }
  }

  // Cache lines of its own each, so that sizes that alternate do not share one.
  // Granules above, the record's id below; 0: nothing.
  using slots = std::array<atomic<std::uint64_t>, interleaved ? 2 : 16>;
  struct alignas(64) part {
    slots words{};
  };
  static constexpr unsigned part_bits = 2;
  [[nodiscard]] slots& part_of(std::uint64_t granules) noexcept {
    return parts_[(granules * 0x9e3779b97f4a7c15ULL) >> (64 - part_bits)].words;
  }
  // Counted before a block is there and after it has gone.
  alignas(64) atomic<std::uint64_t> small_bytes_{0};
  alignas(64) atomic<std::uint64_t> large_bytes_{0};
  alignas(64) std::array<atomic<heap::extent*>, small_classes> boxes_{};
  std::array<part, 1u << part_bits> parts_{};
};

}  // namespace millpond
