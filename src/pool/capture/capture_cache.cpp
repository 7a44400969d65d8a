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

result<std::unique_ptr<captured_cache>> capture_directory::make_cache(stream_handle stream) {
  const auto capture =
      begin_call(stream, "capture_cache", "; pool::cache is for streams that do not capture");
  if (!capture) return capture.error();
  auto made = std::make_unique<captured_cache>();
  made->handle = stream;
  made->capture_id = capture->id;
  made->key = capture_watch::key_of(stream);
  made->set(thread_cache::checks_frees);  // a plain free of its blocks takes another lock
  caches_.limit(*made);
  const mutex_lock lock(mutex_);
  all_caches_.reserve(all_caches_.size() + 1);
  const auto opened = open(*capture, nullptr);
  if (!opened) return opened.error();
  made->arena = (*opened)->arena;
  all_caches_.push_back(made.get());
  return made;
}

result<void*> capture_directory::allocate(captured_cache& in, std::uint64_t bytes) {
  drain_released();
  block_request what(bytes, heap::granule);
  capture_info capture;
  capture.id = in.capture_id;
  {
    // The capture is known, or gone: the driver need not be asked for its graph.
    const mutex_lock lock(mutex_);
    if (!captures_.contains(in.capture_id)) return not_this_capture();
  }
  const auto found = block_for(capture, in.key, what);
  if (!found) return found.error();
  heap::extent* const block = *found;
  const auto entered = in.lock.enter();
  if (in.has(thread_cache::is_dead)) {
    in.lock.leave(entered);
    return not_this_capture();  // the block went with the arena
  }
  serve(*this, in, *block, bytes);
  in.counts.misses.add(1);
  in.lock.leave(entered);
  if (what.size_class != large_class) refill(in, what);
  return reinterpret_cast<void*>(block->start());
}

// A few more blocks of the class, from what the arena has free or anyone may have.
void capture_directory::refill(captured_cache& in, const block_request& what) noexcept {
  const std::uint64_t wanted = handful(what.size);
  heap::extent* chain = nullptr;
  {
    const mutex_lock lock(mutex_);
    if (in.arena->ended.load(std::memory_order_relaxed)) return;
    const auto capture = captures_.find(in.capture_id);
    if (capture == captures_.end()) return;
    for (std::uint64_t i = 1; i < wanted; ++i) {
      heap::extent* block = from_arena(what, *capture->second);
      if (block == nullptr) block = block_store::locked(blocks_).carve(what, false);
      if (block == nullptr) break;
      try {
        in.arena->add(block, in.capture_id);
      } catch (const std::bad_alloc&) {
        block_store::locked(blocks_).put_back(*block, what.owner, arena_batch::used);
        break;
      }
      block->holder = in.arena.get();
      caches_.forget_owner(*block);
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
void capture_directory::flush(captured_cache& of, heap::extent* chain) noexcept {
  const mutex_lock lock(mutex_);
  if (of.arena->ended.load(std::memory_order_relaxed)) return;  // it went with the arena
  const auto capture = captures_.find(of.capture_id);
  heap::owner_id owner = of.arena->parked;
  if (capture != captures_.end()) {
    try {
      owner = owner_in(*capture->second, of.key);
    } catch (const std::bad_alloc&) {  // for later captures, then
    }
  }
  const block_store::locked books(blocks_);
  while (chain != nullptr) {
    heap::extent* const block = chain;
    chain = block->link;
    of.arena->remove(block);
    books.put_back(*block, owner, arena_batch::used);
  }
}

void capture_directory::drop(captured_cache& of) noexcept {
  if (!phase_.closed()) {
    of.lock.foreign_lock();
    heap::extent* const chain = of.empty();
    of.lock.foreign_unlock();
    if (chain != nullptr) flush(of, chain);
  }
  const mutex_lock lock(mutex_);
  std::erase(all_caches_, &of);
  caches_.count_past(of.counts);
}

}  // namespace millpond
