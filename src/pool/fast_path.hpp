// The fast paths of the pool's calls, written into them: a call would cost a tenth of it.
//
// A thread's cache and a capture's pop and push alike. They differ in which blocks are theirs
// (may_take, claim), in what a block is while the user has it (mark_served) and in where a freed
// block goes (take_back): what cache_directory and capture_directory say, each for its sort.
#pragma once
#include "pool/cache/cache_directory.hpp"
#include "pool/cache/thread_caches.hpp"
#include "pool/capture/capture_directory.hpp"
#include "pool/core.hpp"

namespace millpond {

// Under the cache's lock.
template <class Directory, class Cache>
[[gnu::always_inline]] inline void serve(Directory& of, Cache& in, heap::extent& block,
                                         std::uint64_t bytes) noexcept {
  block.requested = bytes;
  of.mark_served(in, block);
  in.counts.allocations.add(1);
  in.counts.bytes_out.add(bytes);
}

// nullptr and false: take the slow path.
template <class Directory, class Cache>
[[gnu::always_inline]] inline void* pop_here(Directory& of, Cache& in,
                                             std::uint64_t bytes) noexcept {
  if (__builtin_expect(!in.lock.owner_lock(), 0)) return nullptr;
  heap::extent* const block = in.pop(bytes);
  if (block == nullptr) {
    in.lock.owner_unlock();
    return nullptr;
  }
  serve(of, in, *block, bytes);
  in.lock.owner_unlock();
  return reinterpret_cast<void*>(block->start());
}

template <class Directory, class Cache>
[[gnu::always_inline]] inline bool push_here(Directory& of, const block_store& blocks, Cache& in,
                                             void* ptr, std::uint64_t bytes) noexcept {
  heap::extent* const block = blocks.find(reinterpret_cast<std::uintptr_t>(ptr));
  if (__builtin_expect(block == nullptr, 0)) return false;
  if (__builtin_expect(!in.lock.owner_lock(), 0)) return false;
  // Asked under the lock: whoever begins to check frees waits for it, so that no free that was not
  // checked comes between another's question and its change.
  if (__builtin_expect(
          !Directory::may_take(in, *block) || (bytes != 0 && bytes != block->requested) ||
              (in.flags.load(std::memory_order_relaxed) != 0 && !Directory::claim(in, *block)),
          0)) {
    in.lock.owner_unlock();
    return false;
  }
  return of.take_back(in, block, bytes);
}

// A thread's cache
// ----------------------------------------------------------------------------

[[gnu::always_inline]] inline void cache_directory::mark_served(thread_cache& in,
                                                                heap::extent& block) noexcept {
  if (__builtin_expect(block.holder_number != in.number, 0)) change_hands(in, block);
  set_state(block, block_state::live);
}

[[gnu::always_inline]] inline bool cache_directory::may_take(const thread_cache&,
                                                             const heap::extent& block) noexcept {
  return state_of(block) == block_state::live;
}

// Where frees are checked: whether this call is the one that frees the block.
[[gnu::always_inline]] inline bool cache_directory::claim(const thread_cache& in,
                                                          heap::extent& block) noexcept {
  if (in.has(thread_cache::is_dead)) return false;
  // What another cache handed out is claimed by send().
  return block.holder_number != in.number ||
         change_state(block, block_state::live, block_state::cached);
}

// A freed block into its cache, whose lock is given back.
[[gnu::always_inline]] inline void cache_directory::keep(thread_cache& in,
                                                         heap::extent* block) noexcept {
  if (block->holder_class != large_class) {
    const bool within = in.push_small(block);
    in.lock.owner_unlock();
    if (__builtin_expect(!within, 0)) flush_small(in);
  } else {
    heap::extent* const out = in.push_large(block);
    in.lock.owner_unlock();
    if (out != nullptr) part_with(in, out);
  }
}

[[gnu::always_inline]] inline bool cache_directory::take_back(thread_cache& in, heap::extent* block,
                                                              std::uint64_t bytes) noexcept {
  if (__builtin_expect(block->holder_number != in.number, 0)) return send(in, block, bytes);
  in.counts.deallocations.add(1);
  in.counts.bytes_in.add(block->requested);
  set_state(*block, block_state::cached);
  keep(in, block);
  return true;
}

// The audit build looks at the record first.
[[gnu::always_inline]] inline bool cache_directory::posted(
    [[maybe_unused]] thread_cache& in, [[maybe_unused]] void* ptr,
    [[maybe_unused]] std::uint64_t bytes) noexcept {
#if defined(MILLPOND_AUDIT)
  return false;
#else
  return __builtin_expect(in.sends.load(std::memory_order_relaxed), 0) &&
         post(in, reinterpret_cast<std::uintptr_t>(ptr), bytes);
#endif
}

// A capture's cache
// ----------------------------------------------------------------------------

[[gnu::always_inline]] inline void capture_directory::mark_served(captured_cache&,
                                                                  heap::extent& block) noexcept {
  set_state(block, block_state::special);
}

// A small block of the plain call has no class: no request of the cache would find it here.
[[gnu::always_inline]] inline bool capture_directory::may_take(const captured_cache& in,
                                                               const heap::extent& block) noexcept {
  if (__builtin_expect(state_of(block) != block_state::special, 0)) return false;
  if (__builtin_expect(block.holder != in.arena.get() || block.holder_note != 0, 0)) return false;
  return __builtin_expect(block.holder_class != large_class || block.bytes > small_limit, 1);
}

[[gnu::always_inline]] inline bool capture_directory::claim(const captured_cache& in,
                                                            heap::extent& block) noexcept {
  return !in.has(thread_cache::is_dead) &&
         change_state(block, block_state::special, block_state::cached);
}

[[gnu::always_inline]] inline bool capture_directory::take_back(captured_cache& in,
                                                                heap::extent* block,
                                                                std::uint64_t) noexcept {
  in.counts.deallocations.add(1);
  in.counts.bytes_in.add(block->requested);
  heap::extent* out = nullptr;
  if (block->holder_class != large_class) {
    if (!in.push_small(block)) out = in.empty();
  } else {
    out = in.push_large(block);
    if (out != nullptr) out->link = nullptr;
  }
  in.lock.owner_unlock();
  if (__builtin_expect(out != nullptr, 0)) flush(in, out);
  return true;
}

// Which cache
// ----------------------------------------------------------------------------

[[gnu::always_inline]] inline thread_cache* pool::core::usual_cache(stream_handle stream) noexcept {
  thread_cache* const in = thread_caches::find(this, stream);
  if (__builtin_expect(in == nullptr, 0)) return nullptr;
  if (__builtin_expect(watch_.may_capture(stream), 0)) return nullptr;
  std::uint64_t id = 0;
  return gpu_->id_outside_capture(stream, &id) && id == in->stream_id ? in : nullptr;
}

// A free asks nobody who its stream is, but for the handles 0, 1 and 2, which name another stream
// where another context is current. Caches are made for streams of the pool's own context alone,
// and there such a handle names one stream for a thread.
[[gnu::always_inline]] inline thread_cache* pool::core::cache_of_free(
    stream_handle stream) noexcept {
  thread_cache* const in = thread_caches::find(this, stream);
  return __builtin_expect(names_many(stream), 0) && !gpu_->in_own_context() ? nullptr : in;
}

[[gnu::always_inline]] inline void* pool::core::pop_here(thread_cache& in,
                                                         std::uint64_t bytes) noexcept {
  return millpond::pop_here(caches_, in, bytes);
}
[[gnu::always_inline]] inline void* pool::core::pop_here(captured_cache& in,
                                                         std::uint64_t bytes) noexcept {
  return millpond::pop_here(captures_, in, bytes);
}
[[gnu::always_inline]] inline bool pool::core::push_here(thread_cache& in, void* ptr,
                                                         std::uint64_t bytes) noexcept {
  return millpond::push_here(caches_, blocks_, in, ptr, bytes);
}
[[gnu::always_inline]] inline bool pool::core::push_here(captured_cache& in, void* ptr,
                                                         std::uint64_t bytes) noexcept {
  return millpond::push_here(captures_, blocks_, in, ptr, bytes);
}
[[gnu::always_inline]] inline bool pool::core::posted(thread_cache& in, void* ptr,
                                                      std::uint64_t bytes) noexcept {
  return caches_.posted(in, ptr, bytes);
}

}  // namespace millpond
