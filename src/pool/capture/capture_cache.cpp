// Caches inside captures: as a cache of a stream, but of one capture's blocks. Nothing is asked of
// the driver and nothing is shared on the fast path; what the cache keeps is the arena's all the
// while.
#include "base/check.hpp"
#include "millpond/base/units.hpp"
#include "pool/core.hpp"

namespace millpond {
namespace {

// Blocks of a small class that a cache takes at once, as many as cost little to keep.
constexpr std::uint64_t handful_bytes = std::uint64_t{16} << 10;
constexpr std::uint64_t most_at_once = 8;

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
  made->cache.handle = stream;
  made->capture_id = capture->id;
  made->key = capture_key(stream);
  set_cache_limits(made->cache);
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

// Written into the handle's calls, as the fast paths of caches are.
[[gnu::always_inline]] inline void* pool::core::pop(captured_cache& in,
                                                    std::uint64_t bytes) noexcept {
  thread_cache& cache = in.cache;
  if (__builtin_expect(!cache.lock.owner_lock(), 0)) return nullptr;
  heap::extent* const block = cache.pop(bytes);
  if (block == nullptr) {
    cache.lock.owner_unlock();
    return nullptr;
  }
  block->requested = bytes;
  set_state(*block, block_state::special);
  cache.counts.allocations.add(1);
  cache.counts.bytes_out.add(bytes);
  cache.lock.owner_unlock();
  return reinterpret_cast<void*>(block->start());
}

[[gnu::always_inline]] inline bool pool::core::push(captured_cache& in, void* ptr,
                                                    std::uint64_t bytes) noexcept {
  heap::extent* const block = heap_.find(reinterpret_cast<std::uintptr_t>(ptr));
  if (__builtin_expect(block == nullptr || state_of(*block) != block_state::special, 0))
    return false;
  if (__builtin_expect(block->holder != in.arena.get() || block->holder_note != 0, 0)) return false;
  if (__builtin_expect(bytes != 0 && bytes != block->requested, 0)) return false;
  // A small block of the plain call has no class: no request of the cache would find it here.
  if (__builtin_expect(block->holder_class == large_class && block->bytes <= small_limit, 0))
    return false;
  thread_cache& cache = in.cache;
  if (__builtin_expect(!cache.lock.owner_lock(), 0)) return false;
  if (__builtin_expect(cache.dead.load(std::memory_order_relaxed), 0)) {
    cache.lock.owner_unlock();
    return false;
  }
  cache.counts.deallocations.add(1);
  cache.counts.bytes_in.add(block->requested);
  set_state(*block, block_state::cached);
  heap::extent* out = nullptr;
  if (block->holder_class != large_class) {
    if (!cache.push_small(block)) out = cache.empty();
  } else {
    out = cache.push_large(block);
    if (out != nullptr) out->link = nullptr;
  }
  cache.lock.owner_unlock();
  if (__builtin_expect(out != nullptr, 0)) flush_captured(in, out);
  return true;
}

result<void*> pool::core::allocate_from(captured_cache& in, std::uint64_t bytes) {
  drain_released();
  request what;
  what.bytes = bytes;
  if (bytes <= small_limit) {
    what.size_class = static_cast<std::uint16_t>(class_of(bytes));
    what.size = class_bytes(what.size_class);
  } else {
    what.size = align_up(bytes, heap::granule);
  }
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
  const auto entered = in.cache.lock.enter();
  if (in.cache.dead.load(std::memory_order_relaxed)) {
    in.cache.lock.leave(entered);
    return not_this_capture();  // the block went with the arena
  }
  block->requested = bytes;
  set_state(*block, block_state::special);
  in.cache.counts.allocations.add(1);
  in.cache.counts.misses.add(1);
  in.cache.counts.bytes_out.add(bytes);
  in.cache.lock.leave(entered);
  if (what.size_class != large_class) refill_captured(in, what);
  return reinterpret_cast<void*>(block->start());
}

// A few more blocks of the class, from what the arena has free or anyone may have.
void pool::core::refill_captured(captured_cache& in, const request& what) noexcept {
  const std::uint64_t wanted = std::min(most_at_once, handful_bytes / what.size);
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
      block->holder = in.arena.get();
      block_owners_.forget(block->start());
      set_state(*block, block_state::cached);
      in.arena->out.emplace(block, in.capture_id);
      block->link = chain;
      chain = block;
    }
  }
  const auto entered = in.cache.lock.enter();
  const bool dead = in.cache.dead.load(std::memory_order_relaxed);
  while (chain != nullptr && !dead) {
    heap::extent* const block = chain;
    chain = block->link;
    static_cast<void>(in.cache.push_small(block));  // a handful is always kept
  }
  in.cache.lock.leave(entered);
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
    of.arena->out.erase(block);
    put_back(*block, owner);
  }
}

void pool::core::drop_captured_cache(captured_cache& of) noexcept {
  if (forked()) return;  // the parent's locks and books are not ours to touch
  if (!closed()) {
    of.cache.lock.foreign_lock();
    heap::extent* const chain = of.cache.empty();
    of.cache.lock.foreign_unlock();
    if (chain != nullptr) flush_captured(of, chain);
  }
  const std::lock_guard lock(caches_mutex_);
  std::erase(capture_caches_, &of);
  past_.add(of.cache.counts);
}

// The handle
// ----------------------------------------------------------------------------------------------

pool::capture_cache_handle::capture_cache_handle(pool& owner, std::shared_ptr<core> state,
                                                 std::unique_ptr<captured_cache> own)
    : owner_(&owner), core_(std::move(state)), cache_(std::move(own)) {}
pool::capture_cache_handle::capture_cache_handle(capture_cache_handle&&) noexcept = default;
pool::capture_cache_handle& pool::capture_cache_handle::operator=(
    capture_cache_handle&& other) noexcept {
  if (this == &other) return *this;
  if (cache_ != nullptr) core_->drop_captured_cache(*cache_);
  owner_ = other.owner_;
  core_ = std::move(other.core_);
  cache_ = std::move(other.cache_);
  return *this;
}
pool::capture_cache_handle::~capture_cache_handle() {
  if (cache_ != nullptr) core_->drop_captured_cache(*cache_);
}
stream_handle pool::capture_cache_handle::stream() const noexcept {
  return cache_->cache.handle;
}

void pool::capture_cache_handle::in_its_capture() const {
#if defined(MILLPOND_AUDIT)
  capture_info capture;
  const bool asked = core_->gpu().stream_capture(cache_->cache.handle, &capture).ok();
  MILLPOND_CHECK(!asked ||
                     (capture.status != capture_status::none && capture.id == cache_->capture_id) ||
                     capture.status == capture_status::invalidated,
                 "a capture cache was used outside its capture");
#endif
}

void* pool::capture_cache_handle::allocate(std::uint64_t bytes) {
  in_its_capture();
  if (__builtin_expect(bytes - 1 < max_bytes && core_->open_here(), 1)) {
    if (void* const ptr = core_->pop(*cache_, bytes)) return ptr;
  }
  return allocate_slowly(bytes);
}

void* pool::capture_cache_handle::allocate_slowly(std::uint64_t bytes) {
  if (bytes == 0) return nullptr;
  if (core_->forked())
    throw memory_error(
        {error_code::not_permitted, "this process was forked from the one that made the pool"});
  if (!core_->serving()) throw memory_error(core_->not_serving());
  if (bytes > max_bytes) throw out_of_memory(format_bytes(bytes) + " is more than any device has");
  auto got = core_->allocate_from(*cache_, bytes);
  if (got) return *got;
  if (got.error().code == error_code::out_of_memory) throw out_of_memory(got.error());
  throw memory_error(got.error());
}

void pool::capture_cache_handle::deallocate(void* ptr, std::uint64_t bytes) noexcept {
  in_its_capture();
  if (__builtin_expect(ptr != nullptr && core_->open_here(), 1)) {
    if (core_->push(*cache_, ptr, bytes)) return;
  }
  deallocate_slowly(ptr, bytes);
}

void pool::capture_cache_handle::deallocate_slowly(void* ptr, std::uint64_t bytes) noexcept {
  const auto freed = try_deallocate(ptr, bytes);
  if (freed) return;
  if (core_->closed())
    return default_error_sink()(freed.error());  // the pool is gone, and its sink with it
  owner_->report(freed.error());
}

result<void> pool::capture_cache_handle::try_deallocate(void* ptr, std::uint64_t bytes) noexcept {
  if (ptr == nullptr) return {};
  if (core_->closed())
    return error{error_code::not_permitted,
                 "a block was freed through a cache of a pool that is closed"};
  if (core_->forked())
    return error{error_code::not_permitted,
                 "this process was forked from the one that made the pool"};
  in_its_capture();
  if (core_->serving() && core_->push(*cache_, ptr, bytes)) return {};
  // Another arena's block, the program's own, or one that another stream uses too: as by the plain
  // call.
  return core_->deallocate(ptr, bytes, cache_->cache.handle);
}

}  // namespace millpond
