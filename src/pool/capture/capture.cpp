// Captures: what a capture allocates belongs to its graph, or to the arena that it shares, until
// that is over.
//
// A capture has owners of its own in the heap, one a stream that it allocates on: what it frees
// serves the same capture on the same stream again, and nobody else. Its arena's free memory comes
// first, then idle memory, never pending: the graph may be launched on any stream, before or after
// whatever a pending fence stands for. The graph holds a ticket (a user object) that tells us when
// the graph and everything made from it is gone, an aborted capture's too.
#include <new>

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
result<std::shared_ptr<capture_state>> pool::core::open_capture(
    const capture_info& capture, std::shared_ptr<arena_state> arena) {
  if (const auto known = captures_.find(capture.id); known != captures_.end()) return known->second;
  // Bound to the graph before it owns anything, so that what it owns comes back with the graph. All
  // that takes host memory comes before that.
  auto made = std::make_shared<capture_state>();
  made->id = capture.id;
  const bool own_arena = arena == nullptr;
  if (own_arena) {
    arena = std::make_shared<arena_state>();
    arena->parked = new_owner();
  }
  made->arena = arena;
  const auto forget = [&] {
    arena->graphs.erase(capture.id);
    captures_.erase(capture.id);
    if (own_arena) drop_owner(arena->parked);
  };
  call_result answer;
  try {
    released_->expect_one();
    arena->graphs.insert(capture.id);
    captures_.emplace(capture.id, made);
    const auto release = [queue = released_, id = capture.id] {
      queue->put({release_queue::kind::capture, id});
    };
    answer = when_graph_is_gone(*gpu_, capture.graph, release);
  } catch (const std::bad_alloc&) {
    forget();
    throw;
  }
  if (!answer.ok()) {
    forget();
    return to_error(answer, "binding memory to the graph being captured");
  }
  return made;
}

heap::owner_id pool::core::owner_in(capture_state& capture, std::uint64_t key) {
  if (const auto known = capture.owners.find(key); known != capture.owners.end())
    return known->second;
  const heap::owner_id owner = new_owner();
  try {
    capture.owners.emplace(key, owner);
  } catch (const std::bad_alloc&) {
    drop_owner(owner);
    throw;
  }
  return owner;
}

// What the arena has free: the stream's own, then what no stream of the capture has used yet, which
// is in order with all of them. Under the captures mutex.
heap::extent* pool::core::from_arena(const request& what, capture_state& capture) {
  const auto own = [&]() -> heap::extent* {
    if (!serving() || heap_.free_bytes(what.owner) < what.size) return nullptr;
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
  // The capture's owners are its own until the last call that knows one has ended, or another
  // stream might get its number meanwhile.
  struct under_way {
    core& of;
    std::shared_ptr<capture_state> in;
    ~under_way() {
      if (in == nullptr) return;
      const std::lock_guard lock(of.captures_mutex_);
      if (--in->allocating == 0 && in->ended) of.let_go_of_owners(*in);
    }
  } until_it_ends{*this, nullptr};
  {
    const std::lock_guard lock(captures_mutex_);
    const auto opened = open_capture(capture, nullptr);
    if (!opened) return opened.error();
    arena = (*opened)->arena;
    what.owner = owner_in(**opened, key);
    block = from_arena(what, **opened);
    until_it_ends.in = *opened;
    ++until_it_ends.in->allocating;
  }
  if (block == nullptr) {
    const auto found = acquire(what, nullptr);
    if (!found) return found.error();
    block = *found;
  }
  block->holder = arena.get();
  block_owners_.forget(block->start());  // whoever frees it looks at its state
  bool noted = true;
  try {
    const std::lock_guard lock(captures_mutex_);
    if (!arena->ended.load(std::memory_order_relaxed)) {
      arena->add(block, capture.id);
      return block;
    }
  } catch (const std::bad_alloc&) {
    noted = false;
  }
  // Another thread threw the capture away meanwhile, or there is no room to note the block. It may
  // be of the arena, whose last graph may still run: a fence over the context covers that.
  {
    const std::lock_guard lock(heap_mutex_);
    put_back(*block, limbo_.owner, limbo_.batches->join(block->bytes));
  }
  if (!noted) return no_host_memory();
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
  count_uncached(bytes);
  return reinterpret_cast<void*>(block->start());
}

// Under the heap mutex.
void pool::core::put_back(heap::extent& block, heap::owner_id owner, std::uint64_t batch) noexcept {
  carved_ -= block.bytes;
  set_state(block, block_state::none);
  heap_.release(&block, owner, batch, heap::absorb_idle::no);
}

// Who may have the block next: the same stream of a capture of the arena that runs now; captures
// attached later; or, freed on a stream outside, those attached when that stream has passed the
// free.
stream_state* pool::core::free_in_capture(heap::extent* block, stream_handle stream,
                                          stream_state* freed_on) noexcept {
  auto& arena = *static_cast<arena_state*>(block->holder);
  const bool used_here = (block->holder_note & block_mark::used_in_capture) != 0;
  const bool used_outside = (block->holder_note & block_mark::used_outside) != 0;
  capture_info now;
  const bool known = gpu_->stream_capture(stream, &now).ok();
  const auto running =
      known && now.status == capture_status::active ? captures_.find(now.id) : captures_.end();
  const bool here = running != captures_.end() && running->second->arena.get() == &arena;
  if (arena.number != 0 && (used_outside || (!here && freed_on != nullptr))) {
    // In another arena's capture it is that graph's too, and nobody knows when that will run.
    if (used_outside || !known || now.status != capture_status::none) {
      arena.keep(block, nullptr, 0);
      return nullptr;
    }
    arena.keep(block, freed_on->batches, freed_on->batches->join(block->bytes));
    return freed_on;
  }
  heap::owner_id owner = arena.parked;
  if (here && !used_here && !used_outside) {
    try {
      owner = owner_in(*running->second, capture_key(stream));
    } catch (const std::bad_alloc&) {  // for later captures, then
    }
  }
  arena.remove(block);
  const std::lock_guard heap_lock(heap_mutex_);
  put_back(*block, owner);
  return nullptr;
}

// What was freed outside captures is behind a fence soon.
void pool::core::seal_kept(stream_state* freed_on) noexcept {
  if (freed_on == nullptr) return;
  if (freed_on == &limbo_) {
    static_cast<void>(seal_context());
  } else {
    seal(*freed_on);
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
  while (const std::shared_ptr<arena_state> over = next_over()) end_arena(*over);
  const relaxed_capture_scope relaxed(*gpu_);
  seal_context();
  poll_fences();
}

// Takes note of graphs that are gone and of arenas that nobody holds, until one of them ends an
// arena; nullptr where none is left. What is not taken note of stays in the queue.
std::shared_ptr<arena_state> pool::core::next_over() noexcept {
  const auto over_now = [this](std::shared_ptr<arena_state> arena) -> std::shared_ptr<arena_state> {
    if (!arena_over(*arena) || arena->ended.exchange(true, std::memory_order_relaxed))
      return nullptr;
    arenas_.erase(arena->number);
    return arena;
  };
  const std::lock_guard lock(captures_mutex_);
  for (;;) {
    const release_queue::entry next = released_->take();
    if (next.what == release_queue::kind::nothing) return nullptr;
    std::shared_ptr<arena_state> arena;
    if (next.what == release_queue::kind::capture) {
      const auto found = captures_.find(next.number);
      if (found == captures_.end()) continue;
      const std::shared_ptr<capture_state> gone = std::move(found->second);
      captures_.erase(found);
      std::erase_if(capturing_, [&](const auto& c) { return c.second == next.number; });
      capturing_changed();
      end_capture(*gone);
      arena = over_now(gone->arena);
    } else {
      const auto found = arenas_.find(next.number);
      if (found == arenas_.end()) continue;
      found->second->held = false;
      arena = over_now(found->second);
    }
    if (arena != nullptr) return arena;
  }
}

}  // namespace millpond
