// A bounded ring from many threads to one: what a callback in the recorded program writes, and a thread in the
// background reads. Lock-free: a writer claims cells by one compare-and-swap, and is refused where the ring is full;
// it never waits. Cells are read in the order in which they were claimed.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace millpond::record {

template <class Cell>
class ring {
 public:
  // A power of two of cells.
  explicit ring(std::size_t capacity) : slots_(std::make_unique<slot[]>(capacity)), mask_(capacity - 1) {
    for (std::size_t at = 0; at < capacity; ++at) slots_[at].turn.store(at, std::memory_order_relaxed);
  }

  // From any thread: all cells side by side, or none. The position of the first.
  std::optional<std::uint64_t> push(std::span<const Cell> cells) noexcept {
    const std::uint64_t count = cells.size();
    if (count == 0 || count > mask_ + 1) return std::nullopt;
    std::uint64_t at = tail_.load(std::memory_order_relaxed);
    for (;;) {
      // Cells are given back in order, so that where the last one is free all before it are.
      const std::uint64_t last = at + count - 1;
      const std::uint64_t turn = slots_[last & mask_].turn.load(std::memory_order_acquire);
      if (turn == last) {
        if (tail_.compare_exchange_weak(at, at + count, std::memory_order_relaxed)) break;
      } else if (turn < last) {
        return std::nullopt;
      } else {
        at = tail_.load(std::memory_order_relaxed);
      }
    }
    for (std::uint64_t n = 0; n < count; ++n) {
      slot& mine = slots_[(at + n) & mask_];
      mine.cell = cells[n];
      mine.turn.store(at + n + 1, std::memory_order_release);  // publishes the cell
    }
    return at;
  }

  // From the one reader: false where nothing is there.
  bool pop(Cell& into, std::uint64_t& position) noexcept {
    slot& next = slots_[head_ & mask_];
    if (next.turn.load(std::memory_order_acquire) != head_ + 1) return false;
    into = next.cell;
    position = head_;
    next.turn.store(head_ + mask_ + 1, std::memory_order_release);  // gives the cell back
    ++head_;
    return true;
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return mask_ + 1; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return (mask_ + 1) * sizeof(slot); }

 private:
  struct slot {
    std::atomic<std::uint64_t> turn{0};  // position: free for it; position + 1: written
    Cell cell;
  };
  std::unique_ptr<slot[]> slots_;
  std::uint64_t mask_;
  alignas(64) std::atomic<std::uint64_t> tail_{0};  // the next to be claimed
  alignas(64) std::uint64_t head_ = 0;              // the next to be read; the reader's alone
};

}  // namespace millpond::record
