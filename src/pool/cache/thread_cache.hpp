// A cache: what one thread keeps of one stream's free blocks. Its owner pops and pushes with no
// atomic read-modify-write and no shared cache line; a stranger empties it under memory pressure.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <memory>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/own_counter.hpp"
#include "base/prefetch.hpp"
#include "heap/extent.hpp"
#include "millpond/driver/driver.hpp"
#include "pool/cache/biased_lock.hpp"
#include "pool/cache/remote_free_queue.hpp"
#include "pool/cache/size_classes.hpp"

namespace millpond {

struct stream_state;

// 0, 1 and 2 are CUDA's null, legacy and per-thread streams: many streams under one value, so a new
// identity under them says nothing of the old one.
[[nodiscard]] inline bool names_many(stream_handle handle) noexcept {
  return reinterpret_cast<std::uintptr_t>(handle) <= 2;
}

// Where a block is between the heap's carving it and the heap's having it back. Kept in
// extent::holder_state: any thread may read it to tell a double free.
enum class block_state : std::uint8_t {
  none,     // not handed out: the record is free, or belongs to free memory
  live,     // the user has it
  special,  // the user has it, and its free takes the slow path: record_use, a tag or a capture
  cached,   // in a thread cache or in a stream cache
  sent,     // freed by one cache and on its way to another. Most are yet as they were handed out
            // there: who sends may not look
  guarded,  // freed, and with whoever changed it to this: waits for the streams that record_use
            // named, or for an arena
};
[[nodiscard]] inline block_state state_of(const heap::extent& block) noexcept {
  return static_cast<block_state>(block.holder_state.load(std::memory_order_relaxed));
}
// For whoever has the block to itself: it is in no user's hands, so that no free takes it (none,
// cached, guarded), and comes from a cache, a stream cache or the heap, each of which gives it to
// one. Not for a state that a free may leave (live, special, sent), unless all frees of the block
// hold one lock: two threads that free it would both find it live and both store.
inline void set_state(heap::extent& block, block_state to) noexcept {
  block.holder_state.store(static_cast<std::uint8_t>(to), std::memory_order_relaxed);
}
// True where this call made the change: of several frees of one block exactly one. Whoever gets
// false touches no other field of the block, since it is another's by now. Relaxed is enough: the
// exchange alone says who wins, and what the winner reads of the record was written before the
// program had the address. Where a winner then finds that the free was wrong (another size), it
// puts the state back with set_state.
[[nodiscard]] inline bool change_state(heap::extent& block, block_state from,
                                       block_state to) noexcept {
  auto seen = static_cast<std::uint8_t>(from);
  return block.holder_state.compare_exchange_strong(
      seen, static_cast<std::uint8_t>(to), std::memory_order_relaxed, std::memory_order_relaxed);
}

// From now on the block's free takes the slow path. False where it is not live any more.
[[nodiscard]] inline bool make_special(heap::extent& block) noexcept {
  return state_of(block) == block_state::special ||
         change_state(block, block_state::live, block_state::special);
}

// False for nullptr too: no block.
[[nodiscard]] inline bool user_has(const heap::extent* block) noexcept {
  if (block == nullptr) return false;
  const block_state state = state_of(*block);
  return state == block_state::live || state == block_state::special;
}

struct cache_counters {
  own_counter allocations, deallocations, bytes_in, bytes_out;
  own_counter misses;  // allocations that the cache could not serve
  own_counter stream_cache_hits,
      heap_hits;  // of the misses: served by the stream cache; by what the heap held
  void add(const cache_counters& more) noexcept {
    allocations.add(more.allocations.get());
    deallocations.add(more.deallocations.get());
    bytes_in.add(more.bytes_in.get());
    bytes_out.add(more.bytes_out.get());
    misses.add(more.misses.get());
    stream_cache_hits.add(more.stream_cache_hits.get());
    heap_hits.add(more.heap_hits.get());
  }
};

// Which caches send to this one, and to which it sends. Written under the pool's caches mutex and
// this cache's lock.
struct remote_routes {
  static constexpr std::size_t most = 4;  // of each
  struct route {
    std::uint32_t number = 0;                // of the other cache; 0: none
    std::shared_ptr<remote_free_queue> box;  // nullptr: that cache takes none from here
  };
  std::array<std::shared_ptr<remote_free_queue>, most> in;
  std::array<route, most> out;
  // Sender's: a cache to which there is no route yet and whose blocks come here, and how often it
  // was seen.
  std::uint32_t candidate = 0;
  std::uint32_t seen = 0;
  std::uint32_t in_vain = 0;  // blocks that stayed here since there is no route
  std::uint8_t next_out = 0;

  static constexpr std::uint32_t worth_a_route = 16;
  static constexpr std::uint32_t worth_asking_again =
      1024;  // blocks in vain: the other cache may take some now
  // A block of this cache came here. True where it is worth making a route: other caches' blocks in
  // between count against it.
  [[nodiscard]] bool saw(std::uint32_t number) noexcept {
    if (candidate == number) return ++seen >= worth_a_route;
    if (seen > 0)
      --seen;
    else
      candidate = number;
    return false;
  }
  [[nodiscard]] route* to(std::uint32_t number) noexcept {
    for (route& each : out) {
      if (each.number == number) return &each;
    }
    return nullptr;
  }
  [[nodiscard]] bool sends_any() const noexcept {
    for (const route& each : out) {
      if (each.box != nullptr) return true;
    }
    return false;
  }
  // Everything that was put is the receivers' to see.
  void send_all() noexcept {
    for (const route& each : out) {
      if (each.box != nullptr) each.box->send();
    }
  }
};

struct alignas(128) thread_cache {
  biased_lock lock;
  // is_dead: emptied for good, since its stream is gone. checks_frees: its blocks may be freed by
  // threads that do not take its lock, so each free changes the block's state by compare and
  // exchange; until the pool has met such a free, nobody pays for that. Written under the lock; a
  // hint to whoever reads them without.
  static constexpr std::uint8_t is_dead = 1, checks_frees = 2;
  atomic<std::uint8_t> flags{0};
  [[nodiscard]] bool has(std::uint8_t flag) const noexcept {
    return (flags.load(std::memory_order_relaxed) & flag) != 0;
  }
  void set(std::uint8_t flag) noexcept {
    flags.store(flags.load(std::memory_order_relaxed) | flag, std::memory_order_relaxed);
  }
  atomic<bool> sends{
      false};  // it has a route out: a hint to its owner, who looks before it takes the lock
  std::uint8_t next_large = 0;  // the large slot that is given up next
  bool leaving = false;         // about to be dropped; under the pool's caches mutex
  std::uint64_t small_limit_bytes = 0;
  std::uint64_t large_limit_bytes = 0;
  std::uint64_t small_bytes = 0;
  std::uint64_t filled = 0;  // bit c: small[c] holds something
  std::uint64_t large_bytes = 0;
  std::uint32_t number = 0;   // of the pool's caches, from 1; 0: in a capture
  std::uint32_t in_call = 0;  // slow calls of its owner that are under way with it: until they
                              // end it is not dropped. The owner's alone
  stream_handle handle = nullptr;
  std::uint64_t stream_id = 0;
  stream_state* stream = nullptr;
  std::uint64_t calls_seen = 0;  // its thread's table: calls when it last looked for idle caches
  cache_counters counts;         // written by the owner

  static constexpr std::size_t large_slots = 8;
  struct large_slot {
    std::uint64_t bytes = 0;
    heap::extent* block = nullptr;
  };
  std::array<large_slot, large_slots> large{};
  static_assert(small_classes <= 64);
  std::array<plain<heap::extent*>, small_classes> small{};
  remote_routes remote;

  // All under the lock. bytes: what the user asked for.
  [[nodiscard]] heap::extent* pop(std::uint64_t bytes) noexcept {
    if (bytes <= small_limit) return pop_class(class_of(bytes));
    const std::uint64_t exact = align_up(bytes, heap::granule);
    for (large_slot& slot : large) {
      if (slot.bytes != exact) continue;
      heap::extent* const out = slot.block;
      slot = {};
      large_bytes -= exact;
      return out;
    }
    return nullptr;
  }
  [[nodiscard]] heap::extent* pop_class(unsigned of) noexcept {
    heap::extent* const out = small[of];
    if (out == nullptr) return nullptr;
    small[of] = out->link;
    // What comes next may have been written by another thread.
    if (out->link == nullptr)
      filled &= ~(std::uint64_t{1} << of);
    else
      prefetch_to_write(out->link);
    small_bytes -= out->bytes;
    return out;
  }
  // False: kept, and the caller is to flush small blocks.
  [[nodiscard]] bool push_small(heap::extent* block) noexcept {
    block->link = small[block->holder_class];
    small[block->holder_class] = block;
    filled |= std::uint64_t{1} << block->holder_class;
    small_bytes += block->bytes;
    return small_bytes <= small_limit_bytes;
  }
  // `count` blocks of one class, linked: before what the cache has of it.
  void adopt(heap::extent* chain, unsigned size_class, std::uint32_t count) noexcept {
    if (__builtin_expect(small[size_class] != nullptr, 0)) {
      heap::extent* last = chain;
      while (last->link != nullptr) last = last->link;
      last->link = small[size_class];
    }
    small[size_class] = chain;
    filled |= std::uint64_t{1} << size_class;
    small_bytes += count * class_bytes(size_class);
  }
  // Keeps a large block. The answer is what is kept no more: nothing, the oldest block in whose
  // place it fits, or the block itself. One at most, since it goes where a lock is, and no free
  // should pay for many.
  [[nodiscard]] heap::extent* push_large(heap::extent* block) noexcept {
    const std::uint64_t bytes = block->bytes;
    if (bytes > large_limit_bytes) return block;
    if (large_bytes + bytes <= large_limit_bytes) {
      for (large_slot& slot : large) {
        if (slot.block != nullptr) continue;
        slot = {bytes, block};
        large_bytes += bytes;
        return nullptr;
      }
    }
    for (std::size_t i = 0; i < large_slots; ++i) {
      const std::size_t at = (next_large + i) % large_slots;
      large_slot& slot = large[at];
      if (slot.block == nullptr || large_bytes - slot.bytes + bytes > large_limit_bytes) continue;
      heap::extent* const out = slot.block;
      large_bytes += bytes - slot.bytes;
      slot = {bytes, block};
      next_large = static_cast<std::uint8_t>((at + 1) % large_slots);
      return out;
    }
    return block;
  }
  // Whether the block is what a request of `bytes` gets.
  [[nodiscard]] static bool serves(const heap::extent& block, std::uint64_t bytes) noexcept {
    if (bytes <= small_limit) return block.holder_class == class_of(bytes);
    return block.holder_class == large_class && block.bytes == align_up(bytes, heap::granule);
  }
  // Keeps the block if that puts nothing out.
  [[nodiscard]] bool keep(heap::extent* block) noexcept {
    if (block->holder_class != large_class) {
      if (small_bytes + block->bytes > small_limit_bytes) return false;
      return push_small(block);
    }
    if (large_bytes + block->bytes > large_limit_bytes) return false;
    for (large_slot& slot : large) {
      if (slot.block != nullptr) continue;
      slot = {block->bytes, block};
      large_bytes += block->bytes;
      return true;
    }
    return false;
  }
  // Bytes of blocks that other caches sent and that were opened.
  [[nodiscard]] std::uint64_t remote_bytes() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& box : remote.in) sum += box != nullptr ? box->bytes() : 0;
    return sum;
  }
  // All that was opened of a box that this cache receives, before a chain.
  [[nodiscard]] static heap::extent* empty(remote_free_queue& box, heap::extent* chain) noexcept {
    while (heap::extent* const block = box.front()) {
      box.take_front();
      block->link = chain;
      chain = block;
    }
    box.tell();
    return chain;
  }
  // Everything, what was opened of other caches' remote frees too, as one chain through
  // extent::link.
  [[nodiscard]] heap::extent* empty() noexcept {
    heap::extent* chain = nullptr;
    while (filled != 0) {
      const auto c = static_cast<unsigned>(std::countr_zero(filled));
      while (heap::extent* const s = pop_class(c)) {
        s->link = chain;
        chain = s;
      }
    }
    for (large_slot& slot : large) {
      if (slot.block == nullptr) continue;
      slot.block->link = chain;
      chain = slot.block;
      slot = {};
    }
    large_bytes = 0;
    for (const auto& box : remote.in) {
      if (box != nullptr) chain = empty(*box, chain);
    }
    return chain;
  }
};

}  // namespace millpond
