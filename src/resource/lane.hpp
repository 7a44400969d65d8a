// A lane: what one thread keeps of one stream's free blocks. Its owner pops and pushes with no atomic
// read-modify-write and no shared cache line; a stranger empties it under memory pressure.
#pragma once
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "base/bits.hpp"
#include "heap/segment.hpp"
#include "resource/biased_lock.hpp"
#include "resource/size_classes.hpp"
#include "millpond/driver.hpp"

namespace millpond {

struct stream_state;

// Where a block is between the heap's carving it and the heap's having it back. Kept in
// segment::holder_state: any thread may read it to tell a double free.
enum class block_state : std::uint8_t {
  none,      // not handed out: the record is free, or belongs to free memory
  live,      // the user has it
  special,   // the user has it, and its free takes the slow path: record_use or a capture
  lane,      // in a lane
  shelf,     // on a stream's shelf
  guarded,   // freed, waits for the streams that were told by record_use
};

// A counter with one writer: no read-modify-write, readers see a recent value.
class own_counter {
 public:
  void add(std::uint64_t n) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct lane_counters {
  own_counter allocations, deallocations, bytes_in, bytes_out;
  own_counter misses;  // allocations that the lane could not serve
};

struct alignas(64) stream_lane {
  biased_lock lock;
  // Emptied for good: its stream is gone. Written under the lock; a hint to whoever reads it without.
  std::atomic<bool> dead{false};
  std::uint8_t next_large = 0;   // the large slot that is given up next
  std::uint64_t small_limit_bytes = 0;
  std::uint64_t large_limit_bytes = 0;
  std::uint64_t small_bytes = 0;
  std::uint64_t filled = 0;      // bit c: small[c] holds something
  std::uint64_t large_bytes = 0;
  stream_handle handle = nullptr;
  std::uint64_t stream_id = 0;
  stream_state* stream = nullptr;
  std::uint64_t calls_seen = 0;  // its thread's table: calls when it last looked for idle lanes
  lane_counters counts;          // written by the owner

  static constexpr std::size_t large_slots = 8;
  struct large_slot {
    std::uint64_t bytes = 0;
    heap::segment* block = nullptr;
  };
  std::array<large_slot, large_slots> large{};
  static_assert(small_classes <= 64);
  std::array<heap::segment*, small_classes> small{};

  // All under the lock. bytes: what the user asked for.
  [[nodiscard]] heap::segment* pop(std::uint64_t bytes) noexcept {
    if (bytes <= small_limit) return pop_class(class_of(bytes));
    const std::uint64_t exact = align_up(bytes, heap::granule);
    for (large_slot& slot : large) {
      if (slot.bytes != exact) continue;
      heap::segment* const out = slot.block;
      slot = {};
      large_bytes -= exact;
      return out;
    }
    return nullptr;
  }
  [[nodiscard]] heap::segment* pop_class(unsigned of) noexcept {
    heap::segment* const out = small[of];
    if (out == nullptr) return nullptr;
    small[of] = out->link;
    if (out->link == nullptr) filled &= ~(std::uint64_t{1} << of);
    small_bytes -= out->bytes;
    return out;
  }
  enum class pushed : std::uint8_t { kept, over_limit, refused };
  // over_limit: kept, and the caller is to flush small blocks. refused: a large block that did not fit; it is
  // still the caller's.
  [[nodiscard]] pushed push(heap::segment* block) noexcept {
    if (block->holder_class != large_class) {
      block->link = small[block->holder_class];
      small[block->holder_class] = block;
      filled |= std::uint64_t{1} << block->holder_class;
      small_bytes += block->bytes;
      return small_bytes <= small_limit_bytes ? pushed::kept : pushed::over_limit;
    }
    if (large_bytes + block->bytes > large_limit_bytes) return pushed::refused;
    for (large_slot& slot : large) {
      if (slot.block != nullptr) continue;
      slot = {block->bytes, block};
      large_bytes += block->bytes;
      return pushed::kept;
    }
    return pushed::refused;
  }
  // Takes out the slot that is given up next, or nullptr where there is none.
  [[nodiscard]] heap::segment* displace_large() noexcept {
    for (std::size_t i = 0; i < large_slots; ++i) {
      large_slot& slot = large[next_large];
      next_large = static_cast<std::uint8_t>((next_large + 1) % large_slots);
      if (slot.block == nullptr) continue;
      heap::segment* const out = slot.block;
      large_bytes -= slot.bytes;
      slot = {};
      return out;
    }
    return nullptr;
  }
  // Everything as one chain through segment::link.
  [[nodiscard]] heap::segment* empty() noexcept {
    heap::segment* chain = nullptr;
    while (filled != 0) {
      const auto c = static_cast<unsigned>(std::countr_zero(filled));
      while (heap::segment* const s = pop_class(c)) {
        s->link = chain;
        chain = s;
      }
    }
    while (heap::segment* const s = displace_large()) {
      s->link = chain;
      chain = s;
    }
    return chain;
  }
};

}  // namespace millpond
