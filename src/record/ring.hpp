// A bounded ring from many threads to one: what a callback in the recorded program writes, and a
// thread in the background reads. Lock-free: a writer claims cells by one compare-and-swap, and is
// refused where the ring is full; it never waits. Cells are read in the order in which they were
// claimed.
//
// A cell was last touched by the reader, on another core, a round ago. So a writer asks for the
// lines of the cells that are next to be written while the program goes on: its stores, and the
// next claim, which has to wait for them, find them at hand.
#pragma once
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <type_traits>

namespace millpond::record {

template <class Cell>
class ring {
 public:
  // A power of two of cells.
  explicit ring(std::size_t capacity) : slots_(make(capacity)), mask_(capacity - 1) {}

  // From any thread: all cells side by side, or none. The position of the first. A writer only
  // stores to cells, and a store does not wait for the reader's cache to give the line back.
  std::optional<std::uint64_t> push(std::span<const Cell> cells) noexcept {
    return push(cells.size(), [&](Cell& to, std::size_t n) { to = cells[n]; });
  }
  // The same, with cells that are written where they lie: fill(cell, number), for each once. What a
  // cell held before is old.
  template <class Fill>
  std::optional<std::uint64_t> push(std::uint64_t count, Fill&& fill) noexcept {
    const std::uint64_t room = mask_ + 1;
    if (count == 0 || count > room) return std::nullopt;
    std::uint64_t at = tail_.load(std::memory_order_relaxed);
    for (;;) {
      if (at + count - head_seen_.load(std::memory_order_acquire) > room) {
        const std::uint64_t head = head_.load(std::memory_order_acquire);
        if (at + count - head > room) {
          // What looks full may be a tail that is old by now.
          const std::uint64_t newer = tail_.load(std::memory_order_relaxed);
          if (newer == at) return std::nullopt;
          at = newer;
          continue;
        }
        head_seen_.store(head, std::memory_order_release);
      }
      if (tail_.compare_exchange_weak(at, at + count, std::memory_order_relaxed)) break;
    }
    for (std::uint64_t n = 0; n < count; ++n) {
      slot& mine = slots_[(at + n) & mask_];
      fill(mine.cell, static_cast<std::size_t>(n));
      mine.turn.store(at + n + 1, std::memory_order_release);  // publishes the cell
      fetch_to_write(slots_[(at + n + cells_ahead) & mask_]);
    }
    return at;
  }

  // From the one reader: false where nothing is there.
  bool pop(Cell& into, std::uint64_t& position) noexcept {
    slot& next = slots_[next_ & mask_];
    if (next.turn.load(std::memory_order_acquire) != next_ + 1) return false;
    into = next.cell;
    position = next_++;
    head_.store(next_, std::memory_order_release);  // gives the cell back
    return true;
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return mask_ + 1; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return (mask_ + 1) * sizeof(slot); }

 private:
  // A cell begins a line of the cache, so that two writers do not share one.
  static constexpr std::size_t line = 64, cells_ahead = 8;
  struct alignas(line) slot {
    std::atomic<std::uint64_t> turn{0};  // the last position that was written here, plus 1
    Cell cell;
  };
  static void fetch_to_write(slot& next) noexcept {
    for (std::size_t at = 0; at < sizeof(slot); at += line) {
      const char* each = reinterpret_cast<const char*>(&next) + at;
#if defined(__x86_64__)
      // The plain builtin asks for a line to read where the compiler is not informed of a newer
      // processor.
      asm volatile("prefetchw %0" : : "m"(*each));
#else
      __builtin_prefetch(each, 1);
#endif
    }
  }

  struct give_back {
    void operator()(slot* at) const noexcept { std::free(at); }  // slots need no destruction
  };
  static_assert(std::is_trivially_destructible_v<Cell>);
  // In large pages where the system has them: the writers go round through megabytes, and each step
  // into another page of 4 KiB would be a walk of page tables, which in a virtual machine are two
  // tables deep. Touched here, not by the program's threads.
  static std::unique_ptr<slot[], give_back> make(std::size_t capacity) {
    constexpr std::size_t large_page = std::size_t{2} << 20;
    const std::size_t bytes = capacity * sizeof(slot);
    void* memory = std::aligned_alloc(bytes >= large_page ? large_page : alignof(slot), bytes);
    if (memory == nullptr) throw std::bad_alloc();
    if (bytes >= large_page) madvise(memory, bytes, MADV_HUGEPAGE);  // refused, it is as before
    slot* made = static_cast<slot*>(memory);
    std::uninitialized_value_construct_n(made, capacity);
    return std::unique_ptr<slot[], give_back>(made);
  }

  std::unique_ptr<slot[], give_back> slots_;
  std::uint64_t mask_;
  alignas(64) std::atomic<std::uint64_t> tail_{0};  // the next to be claimed
  std::atomic<std::uint64_t> head_seen_{0};         // of head_, as writers last looked: at most it
  alignas(64) std::atomic<std::uint64_t> head_{0};  // the next to be read, for writers to look at
  alignas(64) std::uint64_t next_ = 0;              // the same; the reader's alone
};

}  // namespace millpond::record
