// Caches inside captures: as a cache of a stream, but of one capture's blocks. Nothing is asked of
// the driver and nothing is shared on the fast path; what the cache keeps is the arena's all the
// while.
#include <new>

#include "pool/fast_path.hpp"

namespace millpond {
namespace {

error not_this_capture() {
  return {error_code::not_permitted,
          "a capture cache outlived its capture: the capture's graph is gone"};
}

}  // namespace

result<std::unique_ptr<captured_cache>> pool::core::make_captured_cache(stream_handle stream) {
  const auto capture = begin_capture_call(stream, "capture_cache",
                                          "; pool::cache is for streams that do not capture");
  if (!capture) return capture.error();
  auto made = std::make_unique<captured_cache>();
  made->handle = stream;
  made->capture_id = capture->id;
  made->key = capture_key(stream);
  made->set(thread_cache::checks_frees);  // a plain free of its blocks takes another lock
  set_cache_limits(*made);
  {
    const std::lock_guard lock(caches_mutex_);
    capture_caches_.reserve(capture_caches_.size() + 1);
  }
  {
    const std::lock_guard lock(captures_mutex_);
    const auto opened = open_capture(*capture, nullptr);
    if (!opened) return opened.error();
    made->arena = (*opened)->arena;
  }
  const std::lock_guard lock(caches_mutex_);
  capture_caches_.push_back(made.get());
  return made;
}

result<void*> pool::core::allocate_from(captured_cache& in, std::uint64_t bytes) {
  drain_released();
  request what(bytes, heap::granule);
  capture_info capture;
  capture.id = in.capture_id;
  {
    // The capture is known, or gone: the driver need not be asked for its graph.
    const std::lock_guard lock(captures_mutex_);
    if (!captures_.contains(in.capture_id)) return not_this_capture();
  }
  const auto found = acquire_captured(capture, in.key, what);
  if (!found) return found.error();
  heap::extent* const block = *found;
  const auto entered = in.lock.enter();
  if (in.has(thread_cache::is_dead)) {
    in.lock.leave(entered);
    return not_this_capture();  // the block went with the arena
  }
  serve(in, *block, bytes);
  in.counts.misses.add(1);
  in.lock.leave(entered);
  if (what.size_class != large_class) refill_captured(in, what);
  return reinterpret_cast<void*>(block->start());
}

result<void> pool::core::deallocate_to(captured_cache& in, void* ptr,
                                       std::uint64_t bytes) noexcept {
  if (serving() && push_here(in, ptr, bytes)) return {};
  // Another arena's block, the program's own, or one that another stream uses too: as by the plain
  // call.
  return deallocate(ptr, bytes, in.handle);
}

// A few more blocks of the class, from what the arena has free or anyone may have.
void pool::core::refill_captured(captured_cache& in, const request& what) noexcept {
  const std::uint64_t wanted = handful(what.size);
  heap::extent* chain = nullptr;
  {
    const std::lock_guard lock(captures_mutex_);
    if (in.arena->ended.load(std::memory_order_relaxed)) return;
    const auto capture = captures_.find(in.capture_id);
    if (capture == captures_.end()) return;
    for (std::uint64_t i = 1; i < wanted; ++i) {
      heap::extent* block = from_arena(what, *capture->second);
      if (block == nullptr) {
        const std::lock_guard heap_lock(heap_mutex_);
        block = carve_locked(what, false);
      }
      if (block == nullptr) break;
      try {
        in.arena->add(block, in.capture_id);
      } catch (const std::bad_alloc&) {
        const std::lock_guard heap_lock(heap_mutex_);
        put_back(*block, what.owner);
        break;
      }
      block->holder = in.arena.get();
      block_owners_.forget(block->start());
      set_state(*block, block_state::cached);
      block->link = chain;
      chain = block;
    }
  }
  const auto entered = in.lock.enter();
  const bool dead = in.has(thread_cache::is_dead);
  while (chain != nullptr && !dead) {
    heap::extent* const block = chain;
    chain = block->link;
    static_cast<void>(in.push_small(block));  // a handful is always kept
  }
  in.lock.leave(entered);
}

// What the cache keeps no longer is free for its stream of the capture, and with the graph gone for
// the arena's next.
void pool::core::flush_captured(captured_cache& of, heap::extent* chain) noexcept {
  const std::lock_guard lock(captures_mutex_);
  if (of.arena->ended.load(std::memory_order_relaxed)) return;  // it went with the arena
  const auto capture = captures_.find(of.capture_id);
  const heap::owner_id owner =
      capture == captures_.end() ? of.arena->parked : owner_in(*capture->second, of.key);
  const std::lock_guard heap_lock(heap_mutex_);
  while (chain != nullptr) {
    heap::extent* const block = chain;
    chain = block->link;
    of.arena->remove(block);
    put_back(*block, owner);
  }
}

void pool::core::drop_cache(captured_cache& of) noexcept {
  if (forked()) return;  // the parent's locks and books are not ours to touch
  if (!closed()) {
    of.lock.foreign_lock();
    heap::extent* const chain = of.empty();
    of.lock.foreign_unlock();
    if (chain != nullptr) flush_captured(of, chain);
  }
  const std::lock_guard lock(caches_mutex_);
  std::erase(capture_caches_, &of);
  past_.add(of.counts);
}

}  // namespace millpond
