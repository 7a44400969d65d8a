// Captures: what a capture allocates belongs to its graph, or to the arena that it shares, until
// that is over.
//
// A capture has owners of its own in the heap, one a stream that it allocates on: what it frees
// serves the same capture on the same stream again, and nobody else. Its arena's free memory comes
// first, then idle memory, never pending: the graph may be launched on any stream, before or after
// whatever a pending fence stands for. The graph holds a ticket (a user object) that tells us when
// the graph and everything made from it is gone, an aborted capture's too.
#include "driver/relaxed_capture.hpp"
#include "driver/when_graph_is_gone.hpp"
#include "pool/core.hpp"

namespace millpond {

result<capture_info> pool::core::begin_capture_call(stream_handle stream, const std::string& call,
                                                    const char* instead) {
  capture_info capture;
  call_result asked = gpu_->stream_capture(stream, &capture);
  if (asked.status == driver_status::invalid_context && gpu_->bind_thread().ok())
    asked = gpu_->stream_capture(stream, &capture);
  if (!asked.ok()) {
    return error{asked.status == driver_status::invalid_handle ||
                         asked.status == driver_status::invalid_context
                     ? error_code::invalid_argument
                     : error_code::driver_failure,
                 call + ": the stream is not usable (destroyed, or of another context): " +
                     to_string(asked)};
  }
  if (capture.status != capture_status::active) {
    return error{error_code::not_permitted,
                 capture.status == capture_status::none
                     ? call + ": no capture runs on the stream" + instead
                     : call + ": the stream's capture has been invalidated: end it first"};
  }
  note_capturing(stream, capture.id);
  drain_released();
  return capture;
}

// The capture as the pool knows it, met now for the first time or known; an arena of its own where
// it was given none. Under the captures mutex.
result<capture_state*> pool::core::open_capture(const capture_info& capture,
                                                std::shared_ptr<arena_state> arena) {
  if (const auto known = captures_.find(capture.id); known != captures_.end())
    return known->second.get();
  // Bound to the graph before it owns anything, so that what it owns comes back with the graph.
  auto made = std::make_unique<capture_state>();
  made->id = capture.id;
  const auto release = [queue = released_, id = capture.id] {
    const std::lock_guard lock(queue->mutex);
    queue->captures.push_back(id);
    queue->any.store(true, std::memory_order_relaxed);
  };
  if (const call_result answer = when_graph_is_gone(*gpu_, capture.graph, release); !answer.ok())
    return to_error(answer, "binding memory to the graph being captured");
  if (arena == nullptr) {
    arena = std::make_shared<arena_state>();
    arena->parked = new_owner();
  }
  arena->graphs.insert(capture.id);
  made->arena = std::move(arena);
  return captures_.emplace(capture.id, std::move(made)).first->second.get();
}

heap::owner_id pool::core::owner_in(capture_state& capture, std::uint64_t key) {
  heap::owner_id& owner = capture.owners[key];
  if (owner == heap::anyone) owner = new_owner();
  return owner;
}

// What the arena has free: the stream's own, then what no stream of the capture has used yet, which
// is in order with all of them. Under the captures mutex.
heap::extent* pool::core::from_arena(const request& what, capture_state& capture) {
  const auto own = [&]() -> heap::extent* {
    if (heap_.free_bytes(what.owner) < what.size) return nullptr;
    heap::extent* block = heap_.allocate(what.size, what.alignment, what.owner, heap::reach::own);
    if (block == nullptr)
      block = heap_.allocate_run(what.size, what.alignment, what.owner, heap::reach::own);
    if (block != nullptr) take(*block, what);
    return block;
  };
  const std::lock_guard lock(heap_mutex_);
  heap::extent* block = own();
  if (block != nullptr || capture.untouched == heap::anyone || capture.untouched == what.owner)
    return block;
  heap_.reassign(capture.untouched, arena_batch::untouched, what.owner, arena_batch::untouched);
  capture.untouched = what.owner;
  return own();
}

result<heap::extent*> pool::core::acquire_captured(const capture_info& capture, std::uint64_t key,
                                                   request& what) {
  std::shared_ptr<arena_state> arena;
  heap::extent* block = nullptr;
  {
    const std::lock_guard lock(captures_mutex_);
    const auto opened = open_capture(capture, nullptr);
    if (!opened) return opened.error();
    arena = (*opened)->arena;
    what.owner = owner_in(**opened, key);
    block = from_arena(what, **opened);
  }
  if (block == nullptr) {
    const auto found = acquire(what, nullptr);
    if (!found) return found.error();
    block = *found;
  }
  block->holder = arena.get();
  block_owners_.forget(block->start());  // whoever frees it looks at its state
  {
    const std::lock_guard lock(captures_mutex_);
    if (!arena->ended.load(std::memory_order_relaxed)) {
      arena->out.emplace(block, capture.id);
      return block;
    }
  }
  // Another thread threw the capture away meanwhile.
  const std::lock_guard lock(heap_mutex_);
  put_back(*block, heap::anyone);
  return error{error_code::not_permitted,
               "the capture's graph is gone: nothing more can be allocated for it"};
}

result<void*> pool::core::allocate_in_capture(const capture_info& capture, std::uint64_t bytes,
                                              std::uint64_t alignment, stream_handle stream) {
  // A capturing stream has no identity to ask for, and needs none: within one capture its handle is
  // its own.
  note_capturing(stream,
                 capture.id);  // before anything that may want a fence over the whole context
  drain_released();
  request what;
  what.bytes = bytes;
  what.size = align_up(bytes, heap::granule);
  what.alignment = std::max(alignment, heap::granule);
  const auto found = acquire_captured(capture, capture_key(stream), what);
  if (!found) return found.error();
  heap::extent* const block = *found;
  block->requested = bytes;
  set_state(*block, block_state::special);
  const std::lock_guard lock(caches_mutex_);
  past_.allocations.add(1);
  past_.misses.add(1);
  past_.bytes_out.add(bytes);
  return reinterpret_cast<void*>(block->start());
}

// Under the heap mutex.
void pool::core::put_back(heap::extent& block, heap::owner_id owner) noexcept {
  carved_ -= block.bytes;
  set_state(block, block_state::none);
  heap_.release(&block, owner, arena_batch::used, heap::absorb_idle::no);
}

// Who may have the block next: the same stream of a capture of the arena that runs now; captures
// attached later; or, freed on a stream outside, those attached when that stream has passed the
// free.
void pool::core::free_in_capture(heap::extent* block, stream_handle stream,
                                 stream_state* freed_on) noexcept {
  stream_state* to_seal = nullptr;
  {
    const std::lock_guard lock(captures_mutex_);
    auto& arena = *static_cast<arena_state*>(block->holder);
    if (arena.out.erase(block) == 0) return;  // the arena ended meanwhile, and all of it went back
    const auto used = static_cast<other_use>(block->holder_note);
    capture_info now;
    const bool known = gpu_->stream_capture(stream, &now).ok();
    const auto running =
        known && now.status == capture_status::active ? captures_.find(now.id) : captures_.end();
    const bool here = running != captures_.end() && running->second->arena.get() == &arena;
    if (arena.number != 0 && used != other_use::outside && !here && freed_on != nullptr) {
      // In another arena's capture it is that graph's too, and nobody knows when that will run.
      const bool outside = known && now.status == capture_status::none;
      set_state(*block, block_state::guarded);
      arena.kept.push_back({block, outside ? freed_on->batches : nullptr,
                            outside ? freed_on->batches->join(block->bytes) : 0});
      if (outside) to_seal = freed_on;
    } else if (arena.number != 0 && used == other_use::outside) {
      set_state(*block, block_state::guarded);
      arena.kept.push_back({block, nullptr, 0});
    } else {
      const heap::owner_id owner = here && used == other_use::none
                                       ? owner_in(*running->second, capture_key(stream))
                                       : arena.parked;
      const std::lock_guard heap_lock(heap_mutex_);
      put_back(*block, owner);
    }
  }
  if (to_seal == nullptr) return;
  if (to_seal == &limbo_) {
    static_cast<void>(seal_context());
  } else {
    seal(*to_seal);
  }
}

// Graphs that are gone, and arenas that nobody holds, give their memory back, what their program
// never freed as well. The driver lets go of a graph in flight only when it has run, but says so to
// nobody, so the memory waits for a fence over the whole context.
void pool::core::drain_released() noexcept {
  // A fence that a running capture forbade is tried again each time; one that the options forbid is
  // not.
  const bool fence_due = options_.fences != context_fences::never && limbo_.batches->dirty();
  if (!released_->any.load(std::memory_order_relaxed) && !fence_due) return;
  std::vector<std::uint64_t> captures, arenas;
  {
    const std::lock_guard lock(released_->mutex);
    captures.swap(released_->captures);
    arenas.swap(released_->arenas);
    released_->any.store(false, std::memory_order_relaxed);
  }
  std::vector<std::shared_ptr<arena_state>> over;
  {
    const std::lock_guard lock(captures_mutex_);
    for (const std::uint64_t id : captures) {
      const auto found = captures_.find(id);
      if (found == captures_.end()) continue;
      const std::unique_ptr<capture_state> gone = std::move(found->second);
      captures_.erase(found);
      std::erase_if(capturing_, [id](const auto& c) { return c.second == id; });
      end_capture(*gone);
      if (arena_over(*gone->arena)) over.push_back(gone->arena);
    }
    capturing_changed();
    for (const std::uint64_t number : arenas) {
      const auto found = arenas_.find(number);
      if (found == arenas_.end()) continue;
      found->second->held = false;
      if (arena_over(*found->second)) over.push_back(found->second);
    }
    std::erase_if(over, [](const auto& arena) {
      return arena->ended.exchange(true, std::memory_order_relaxed);
    });
    for (const auto& arena : over) arenas_.erase(arena->number);
  }
  for (const auto& arena : over) end_arena(*arena);
  const relaxed_capture_scope relaxed(*gpu_);
  seal_context();
  poll_fences();
}

}  // namespace millpond
