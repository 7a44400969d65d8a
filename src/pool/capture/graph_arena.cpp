// Arenas that several captures share (millpond/pool/graph_arena.hpp).
//
// Free memory goes one way, to the capture that was attached last: it gets all that is free in the
// arena then, and what is its own never goes back to an earlier capture. So two captures may even
// run at the same time: what one has from the other, that other does not see again, and within each
// capture memory is reused in its own streams' order alone. Between graphs no order is needed,
// since the program runs only one at a time.
#include "driver/own_calls.hpp"
#include "pool/capture/capture_directory.hpp"

namespace millpond {

graph_arena capture_directory::make_arena() {
  auto made = std::make_shared<arena_state>();
  made->held = true;
  made->parked = blocks_.new_owner();
  const heap::owner_id parked = made->parked;
  const mutex_lock lock(mutex_);
  try {
    made->number = next_arena_++;
    auto held = std::make_shared<const graph_arena::hold>(released_, made->number);
    arenas_.emplace(made->number, std::move(made));
    return graph_arena(std::move(held));
  } catch (const std::bad_alloc&) {
    blocks_.drop_owner(parked);
    throw;
  }
}

result<void> capture_directory::capture_into(const graph_arena::hold& arena, stream_handle stream) {
  if (arena.queue != released_)
    return error{error_code::invalid_argument, "capture_into: the graph arena is another pool's"};
  const auto capture = begin_call(stream, "capture_into", ": begin it first");
  if (!capture) return capture.error();
  {
    const own_calls_scope own_calls(gpu_);
    streams_.poll();  // what was freed outside captures may have become the arena's again
  }
  const mutex_lock lock(mutex_);
  const std::shared_ptr<arena_state> into = arenas_.at(arena.number);  // the caller holds it
  if (const auto known = captures_.find(capture->id); known != captures_.end()) {
    if (known->second->arena == into) {
      // Attached before; where host memory ran out in that call, what it would have had is still
      // to be handed on.
      if (known->second->owners.empty())
        inherit(*known->second, owner_in(*known->second, capture_watch::key_of(stream)));
      return {};
    }
    return error{error_code::not_permitted,
                 known->second->arena->number == 0
                     ? "capture_into: the capture has allocated already, from memory of its own: "
                       "attach it before"
                     : "capture_into: the capture is attached to another graph arena"};
  }
  const auto opened = open(*capture, into);
  if (!opened) return opened.error();
  inherit(**opened, owner_in(**opened, capture_watch::key_of(stream)));
  return {};
}

// Everything that is free in the arena, for the capture's first stream until another needs it.
void capture_directory::inherit(capture_state& capture, heap::owner_id first) {
  arena_state& arena = *capture.arena;
  settle_kept(arena);
  const block_store::locked books(blocks_);
  const auto hand_on = [&](heap::owner_id from) {
    books.heap().reassign(from, arena_batch::all, first, arena_batch::untouched);
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
void capture_directory::settle_kept(arena_state& arena) {
  arena.kept.remove_if([&](const arena_state::held_block& k) {
    if (k.batches == nullptr || k.batches->completed() < k.batch) return false;
    block_store::locked(blocks_).put_back(*k.block, arena.parked, arena_batch::used);
    return true;
  });
}

// Its graph is gone: what it had free waits in the arena for the next capture. Under the captures
// mutex.
void capture_directory::end_capture(capture_state& gone) noexcept {
  gone.arena->graphs.erase(gone.id);
  gone.ended = true;
  if (gone.allocating == 0) let_go_of_owners(gone);
}

// Under the captures mutex, as end_capture.
void capture_directory::let_go_of_owners(capture_state& gone) noexcept {
  const stream_state& limbo = streams_.limbo();
  const block_store::locked books(blocks_);
  // Its arena may have ended before the last call did, and has no owner any more.
  const bool over = gone.arena->ended.load(std::memory_order_relaxed);
  const heap::owner_id to = over ? limbo.owner : gone.arena->parked;
  for (const auto& [key, owner] : gone.owners) {
    books.heap().reassign(owner, arena_batch::all, to,
                          over ? limbo.batches->join(0) : arena_batch::used);
    books.drop_owner(owner);
  }
}

void capture_directory::empty_arenas() noexcept {
  const stream_state& limbo = streams_.limbo();
  const mutex_lock lock(mutex_);
  for (const auto& [number, arena] : arenas_) {
    if (!arena->graphs.empty()) continue;
    settle_kept(*arena);
    const block_store::locked books(blocks_);
    if (books.heap().free_bytes(arena->parked) == 0) continue;
    books.heap().reassign(arena->parked, arena_batch::all, limbo.owner, limbo.batches->join(0));
  }
}

// Marked as ended, so that nobody adds to it.
void capture_directory::end_arena(arena_state& gone) noexcept {
  std::list<arena_state::held_block> out;
  std::uint64_t orphaned = 0;
  std::uint64_t orphaned_bytes = 0;
  {
    const mutex_lock lock(mutex_);
    // What a cache has is in `out` as well.
    for (captured_cache* const c : all_caches_) {
      if (c->arena.get() != &gone) continue;
      c->lock.foreign_lock();
      static_cast<void>(c->empty());
      c->set(thread_cache::is_dead);
      c->lock.foreign_unlock();
    }
    // What is live is claimed here: a free of one that comes later finds it freed.
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
  const stream_state& limbo = streams_.limbo();
  {
    const block_store::locked books(blocks_);
    const std::uint64_t batch = limbo.batches->join(0);
    for (const arena_state::held_block& each : out) books.put_back(*each.block, limbo.owner, batch);
    books.heap().reassign(gone.parked, arena_batch::all, limbo.owner, batch);
    books.drop_owner(gone.parked);
  }
  caches_.count_frees(orphaned, orphaned_bytes);
}

void capture_directory::count(pool_statistics& out) {
  const mutex_lock lock(mutex_);
  cache_counters sum;
  for (const captured_cache* const c : all_caches_) sum.add(c->counts);
  caches_.count(out, sum);
  out.captures = captures_.size();
  out.graph_arenas = arenas_.size();
  const block_store::locked books(blocks_);
  const auto add = [&](const arena_state& arena) {
    for (const auto& held : arena.out) out.capture_bytes += held.block->bytes;
    for (const auto& kept : arena.kept) out.capture_bytes += kept.block->bytes;
    out.capture_bytes += books.heap().free_bytes(arena.parked);
  };
  for (const auto& [number, arena] : arenas_) add(*arena);
  for (const auto& [id, capture] : captures_) {
    if (capture->arena->number == 0) add(*capture->arena);
    for (const auto& [stream, owner] : capture->owners)
      out.capture_bytes += books.heap().free_bytes(owner);
  }
}

}  // namespace millpond
