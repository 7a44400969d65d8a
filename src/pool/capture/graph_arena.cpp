// Arenas that several captures share (millpond/pool/graph_arena.hpp).
//
// Free memory goes one way, to the capture that was attached last: it gets all that is free in the
// arena then, and what is its own never goes back to an earlier capture. So two captures may even
// run at the same time: what one has from the other, that other does not see again, and within each
// capture memory is reused in its own streams' order alone. Between graphs no order is needed,
// since the program runs only one at a time.
#include "driver/relaxed_capture.hpp"
#include "pool/core.hpp"

namespace millpond {

graph_arena pool::core::make_graph_arena() {
  auto made = std::make_shared<arena_state>();
  made->held = true;
  made->parked = new_owner();
  const std::lock_guard lock(captures_mutex_);
  made->number = next_arena_++;
  auto held = std::make_shared<const graph_arena::hold>(released_, made->number);
  arenas_.emplace(made->number, std::move(made));
  return graph_arena(std::move(held));
}

result<void> pool::core::capture_into(const graph_arena::hold& arena, stream_handle stream) {
  if (arena.queue != released_)
    return error{error_code::invalid_argument, "capture_into: the graph arena is another pool's"};
  const auto capture = begin_capture_call(stream, "capture_into", ": begin it first");
  if (!capture) return capture.error();
  {
    const relaxed_capture_scope relaxed(*gpu_);
    poll_fences();  // what was freed outside captures may have become the arena's again
  }
  const std::lock_guard lock(captures_mutex_);
  const std::shared_ptr<arena_state> into = arenas_.at(arena.number);  // the caller holds it
  if (const auto known = captures_.find(capture->id); known != captures_.end()) {
    if (known->second->arena == into) return {};
    return error{error_code::not_permitted,
                 known->second->arena->number == 0
                     ? "capture_into: the capture has allocated already, from memory of its own: "
                       "attach it before"
                     : "capture_into: the capture is attached to another graph arena"};
  }
  const auto opened = open_capture(*capture, into);
  if (!opened) return opened.error();
  inherit(**opened, owner_in(**opened, capture_key(stream)));
  return {};
}

// Everything that is free in the arena, for the capture's first stream until another needs it.
void pool::core::inherit(capture_state& capture, heap::owner_id first) {
  arena_state& arena = *capture.arena;
  settle_kept(arena);
  const std::lock_guard lock(heap_mutex_);
  const auto hand_on = [&](heap::owner_id from) {
    heap_.reassign(from, arena_batch::all, first, arena_batch::untouched);
  };
  hand_on(arena.parked);
  for (const std::uint64_t id : arena.graphs) {
    if (id == capture.id) continue;
    capture_state& before = *captures_.at(id);
    for (const auto& [key, owner] : before.owners) hand_on(owner);
    before.untouched = heap::anyone;
  }
  capture.untouched = first;
}

// Blocks freed outside captures whose stream has passed the free.
void pool::core::settle_kept(arena_state& arena) {
  arena.kept.remove_if([&](const arena_state::held_block& k) {
    if (k.batches == nullptr || k.batches->completed() < k.batch) return false;
    const std::lock_guard lock(heap_mutex_);
    put_back(*k.block, arena.parked);
    return true;
  });
}

// Its graph is gone: what it had free waits in the arena for the next capture. Under the captures
// mutex.
void pool::core::end_capture(capture_state& gone) noexcept {
  gone.arena->graphs.erase(gone.id);
  gone.ended = true;
  if (gone.allocating == 0) let_go_of_owners(gone);
}

// Under the captures mutex, as end_capture.
void pool::core::let_go_of_owners(capture_state& gone) noexcept {
  const std::lock_guard lock(heap_mutex_);
  // Its arena may have ended before the last call did, and has no owner any more.
  const bool over = gone.arena->ended.load(std::memory_order_relaxed);
  const heap::owner_id to = over ? limbo_.owner : gone.arena->parked;
  for (const auto& [key, owner] : gone.owners) {
    heap_.reassign(owner, arena_batch::all, to, over ? limbo_.batches->join(0) : arena_batch::used);
    free_owners_.push_back(owner);
  }
}

// Free memory of arenas that are held while no graph of theirs is left: nothing can be launched on
// it. A fence over the whole context is to cover it, as in end_arena.
void pool::core::empty_arenas() noexcept {
  const std::lock_guard lock(captures_mutex_);
  for (const auto& [number, arena] : arenas_) {
    if (!arena->graphs.empty()) continue;
    settle_kept(*arena);
    const std::lock_guard heap_lock(heap_mutex_);
    if (heap_.free_bytes(arena->parked) == 0) continue;
    heap_.reassign(arena->parked, arena_batch::all, limbo_.owner, limbo_.batches->join(0));
  }
}

// Marked as ended, so that nobody adds to it. No lock is held.
void pool::core::end_arena(arena_state& gone) noexcept {
  {
    // Held over the caches' locks: a cache is deleted only after it left this list. What a cache
    // has is in `out` as well.
    const std::lock_guard lock(caches_mutex_);
    for (captured_cache* const l : capture_caches_) {
      if (l->arena.get() != &gone) continue;
      l->lock.foreign_lock();
      static_cast<void>(l->empty());
      l->set(thread_cache::is_dead);
      l->lock.foreign_unlock();
    }
  }
  // What is live is claimed here: a free of one that comes later finds it freed.
  std::list<arena_state::held_block> out;
  std::uint64_t orphaned = 0;
  std::uint64_t orphaned_bytes = 0;
  {
    const std::lock_guard lock(captures_mutex_);
    gone.place.clear();
    out.splice(out.end(), gone.out);
    out.splice(out.end(), gone.kept);
    for (const arena_state::held_block& each : out) {
      if (change_state(*each.block, block_state::special, block_state::guarded)) {
        ++orphaned;
        orphaned_bytes += each.block->requested;
      }
      static_cast<void>(uses_.take(each.block));
    }
  }
  {
    const std::lock_guard lock(heap_mutex_);
    const std::uint64_t batch = limbo_.batches->join(0);
    for (const arena_state::held_block& each : out) {
      put_back(*each.block, limbo_.owner, batch);
    }
    heap_.reassign(gone.parked, arena_batch::all, limbo_.owner, batch);
    free_owners_.push_back(gone.parked);
  }
  const std::lock_guard lock(caches_mutex_);
  past_.deallocations.add(orphaned);
  past_.bytes_in.add(orphaned_bytes);
}

}  // namespace millpond
