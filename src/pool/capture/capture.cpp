// What captures own, from the first allocation to the end of their graphs.
#include <new>

#include "driver/own_calls.hpp"
#include "driver/when_graph_is_gone.hpp"
#include "pool/capture/capture_directory.hpp"

namespace millpond {

capture_directory::capture_directory(driver& gpu, const pool_phase& phase, block_store& blocks,
                                     stream_directory& streams, cache_directory& caches,
                                     capture_watch& watch, cross_stream_uses& uses,
                                     acquire_block acquire)
    : gpu_(gpu),
      phase_(phase),
      blocks_(blocks),
      streams_(streams),
      caches_(caches),
      watch_(watch),
      uses_(uses),
      acquire_(std::move(acquire)) {}

// The capture that runs on a stream which a call about captures names, noted as running. `call`
// begins its refusals, `instead` ends the one where nothing is captured.
result<capture_info> capture_directory::begin_call(stream_handle stream, const std::string& call,
                                                   const char* instead) {
  capture_info capture;
  call_result asked = gpu_.stream_capture(stream, &capture);
  if (asked.status == driver_status::invalid_context && gpu_.bind_thread().ok())
    asked = gpu_.stream_capture(stream, &capture);
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
  watch_.note(stream, capture.id);
  drain_released();
  return capture;
}

// The capture as the pool knows it, met now for the first time or known; an arena of its own where
// it was given none. Under the captures mutex.
result<std::shared_ptr<capture_state>> capture_directory::open(const capture_info& capture,
                                                               std::shared_ptr<arena_state> arena) {
  if (const auto known = captures_.find(capture.id); known != captures_.end()) return known->second;
  // Bound to the graph before it owns anything, so that what it owns comes back with the graph. All
  // that takes host memory comes before that.
  auto made = std::make_shared<capture_state>();
  made->id = capture.id;
  const bool own_arena = arena == nullptr;
  if (own_arena) {
    arena = std::make_shared<arena_state>();
    arena->parked = blocks_.new_owner();
  }
  made->arena = arena;
  const auto forget = [&]() MILLPOND_REQUIRES(mutex_) {
    arena->graphs.erase(capture.id);
    captures_.erase(capture.id);
    if (own_arena) blocks_.drop_owner(arena->parked);
  };
  call_result answer;
  try {
    released_->expect_one();
    arena->graphs.insert(capture.id);
    captures_.emplace(capture.id, made);
    const auto release = [queue = released_, id = capture.id] {
      queue->put({release_queue::kind::capture, id});
    };
    answer = when_graph_is_gone(gpu_, capture.graph, release);
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

heap::owner_id capture_directory::owner_in(capture_state& capture, std::uint64_t key) {
  if (const auto known = capture.owners.find(key); known != capture.owners.end())
    return known->second;
  const heap::owner_id owner = blocks_.new_owner();
  try {
    capture.owners.emplace(key, owner);
  } catch (const std::bad_alloc&) {
    blocks_.drop_owner(owner);
    throw;
  }
  return owner;
}

// What the arena has free: the stream's own, then what no stream of the capture has used yet, which
// is in order with all of them. Under the captures mutex.
heap::extent* capture_directory::from_arena(const block_request& what, capture_state& capture) {
  const block_store::locked books(blocks_);
  const auto own = [&]() -> heap::extent* {
    heap::heap& in = books.heap();
    if (!phase_.serving() || in.free_bytes(what.owner) < what.size) return nullptr;
    heap::extent* block = in.allocate(what.size, what.alignment, what.owner, heap::reach::own);
    if (block == nullptr)
      block = in.allocate_run(what.size, what.alignment, what.owner, heap::reach::own);
    if (block != nullptr) books.take(*block, what);
    return block;
  };
  heap::extent* block = own();
  if (block != nullptr || capture.untouched == heap::anyone || capture.untouched == what.owner)
    return block;
  books.heap().reassign(capture.untouched, arena_batch::untouched, what.owner,
                        arena_batch::untouched);
  capture.untouched = what.owner;
  return own();
}

result<heap::extent*> capture_directory::block_for(const capture_info& capture, std::uint64_t key,
                                                   block_request& what) {
  std::shared_ptr<arena_state> arena;
  heap::extent* block = nullptr;
  // The capture's owners are its own until the last call that knows one has ended, or another
  // stream might get its number meanwhile.
  struct under_way {
    capture_directory& of;
    std::shared_ptr<capture_state> in;
    ~under_way() {
      if (in == nullptr) return;
      const mutex_lock lock(of.mutex_);
      if (--in->allocating == 0 && in->ended) of.let_go_of_owners(*in);
    }
  } until_it_ends{*this, nullptr};
  {
    const mutex_lock lock(mutex_);
    const auto opened = open(capture, nullptr);
    if (!opened) return opened.error();
    arena = (*opened)->arena;
    what.owner = owner_in(**opened, key);
    block = from_arena(what, **opened);
    until_it_ends.in = *opened;
    ++until_it_ends.in->allocating;
  }
  if (block == nullptr) {
    const auto found = acquire_(what);
    if (!found) return found.error();
    block = *found;
  }
  block->holder = arena.get();
  caches_.forget_owner(*block);  // whoever frees it looks at its state
  bool noted = true;
  try {
    const mutex_lock lock(mutex_);
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
    const stream_state& limbo = streams_.limbo();
    const block_store::locked books(blocks_);
    books.put_back(*block, limbo.owner, limbo.batches->join(block->bytes));
  }
  if (!noted) return no_host_memory();
  return error{error_code::not_permitted,
               "the capture's graph is gone: nothing more can be allocated for it"};
}

// A capturing stream has no identity to ask for, and needs none: within one capture its handle is
// its own.
result<void*> capture_directory::allocate(const capture_info& capture, std::uint64_t bytes,
                                          std::uint64_t alignment, stream_handle stream) {
  // Before anything that may want a fence over the whole context.
  watch_.note(stream, capture.id);
  drain_released();
  block_request what = block_request::of_granules(bytes, alignment);
  const auto found = block_for(capture, capture_watch::key_of(stream), what);
  if (!found) return found.error();
  heap::extent* const block = *found;
  block->requested = bytes;
  set_state(*block, block_state::special);
  caches_.count_allocation(bytes);
  return reinterpret_cast<void*>(block->start());
}

capture_directory::freed capture_directory::free_special(heap::extent* block, stream_handle stream,
                                                         stream_state* freed_on,
                                                         stream_state** to_seal) noexcept {
  // The end of an arena claims its blocks under this lock too: what is claimed here has its arena
  // for as long as it is held.
  const mutex_lock lock(mutex_);
  freed out;
  out.claimed = change_state(*block, block_state::special, block_state::guarded);
  if (!out.claimed) return out;
  out.arenas = block->holder != nullptr;
  if (!out.arenas) return out;
  static_cast<void>(uses_.take(block));
  *to_seal = free_guarded(block, stream, freed_on);
  return out;
}

// Nothing of the device uses the pool's memory while it sleeps, so the block is free for anyone at
// once.
bool capture_directory::free_asleep(heap::extent* block, stream_handle stream,
                                    sleeping_memory& asleep) noexcept {
  const mutex_lock lock(mutex_);
  const block_state was = state_of(*block);
  if ((was != block_state::live && was != block_state::special) ||
      !change_state(*block, was, block_state::guarded))
    return false;
  static_cast<void>(uses_.take(block));
  asleep.forget(block->start(), block->bytes);
  if (block->holder != nullptr) {
    static_cast<void>(free_guarded(block, stream, nullptr));
  } else {
    block_store::locked(blocks_).put_back(*block, heap::anyone, 0);
  }
  return true;
}

// Others never have it before the arena's end, but its own captures might.
bool capture_directory::note_use(heap::extent* block, bool captures) noexcept {
  const mutex_lock lock(mutex_);
  if (state_of(*block) != block_state::special || block->holder == nullptr) return false;
  block->holder_note |= captures ? block_mark::used_in_capture : block_mark::used_outside;
  return true;
}

// Who may have the block next: the same stream of a capture of the arena that runs now; captures
// attached later; or, freed on a stream outside, those attached when that stream has passed the
// free.
// Of a block in the state guarded. Answers whose batch is to be sealed.
stream_state* capture_directory::free_guarded(heap::extent* block, stream_handle stream,
                                              stream_state* freed_on) noexcept {
  auto& arena = *static_cast<arena_state*>(block->holder);
  const bool used_here = (block->holder_note & block_mark::used_in_capture) != 0;
  const bool used_outside = (block->holder_note & block_mark::used_outside) != 0;
  capture_info now;
  const bool known = gpu_.stream_capture(stream, &now).ok();
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
      owner = owner_in(*running->second, capture_watch::key_of(stream));
    } catch (const std::bad_alloc&) {  // for later captures, then
    }
  }
  arena.remove(block);
  block_store::locked(blocks_).put_back(*block, owner, arena_batch::used);
  return nullptr;
}

void capture_directory::seal_kept(stream_state* freed_on) noexcept {
  if (freed_on == nullptr) return;
  if (freed_on == &streams_.limbo()) {
    streams_.fence_context();
  } else {
    caches_.seal(*freed_on);
  }
}

// The driver lets go of a graph in flight only when it has run, but says so to nobody, so the
// memory waits for a fence over the whole context. One that a running capture forbade is tried
// again each time.
void capture_directory::drain_released() noexcept {
  if (!released_->any.load(std::memory_order_relaxed) && !streams_.context_fence_due()) return;
  while (const std::shared_ptr<arena_state> over = next_over()) end_arena(*over);
  const own_calls_scope own_calls(gpu_);
  streams_.fence_context();
  streams_.poll();
}

// Takes note of graphs that are gone and of arenas that nobody holds, until one of them ends an
// arena; nullptr where none is left. What is not taken note of stays in the queue.
std::shared_ptr<arena_state> capture_directory::next_over() noexcept {
  const mutex_lock lock(mutex_);
  const auto over_now = [this](std::shared_ptr<arena_state> arena)
                            MILLPOND_REQUIRES(mutex_) -> std::shared_ptr<arena_state> {
    if (arena->held || !arena->graphs.empty() ||
        arena->ended.exchange(true, std::memory_order_relaxed))
      return nullptr;
    arenas_.erase(arena->number);
    return arena;
  };
  for (;;) {
    const release_queue::entry next = released_->take();
    if (next.what == release_queue::kind::nothing) return nullptr;
    std::shared_ptr<arena_state> arena;
    if (next.what == release_queue::kind::capture) {
      const auto found = captures_.find(next.number);
      if (found == captures_.end()) continue;
      const std::shared_ptr<capture_state> gone = std::move(found->second);
      captures_.erase(found);
      watch_.forget(next.number);
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
