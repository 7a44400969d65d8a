// What captures allocate: it belongs to the capture's graph, or to the arena that it shares, until
// that is over.
//
// A capture has owners of its own in the heap, one a stream that it allocates on: what it frees
// serves the same capture on the same stream again, and nobody else. Its arena's free memory comes
// first, then idle memory, never pending: the graph may be launched on any stream, before or after
// whatever a pending fence stands for. The graph holds a ticket (a user object) that tells us when
// the graph and everything made from it is gone, an aborted capture's too.
//
// One lock over captures, arenas and whose an arena's block is when it is freed or its arena ends.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "pool/cache/cache_directory.hpp"
#include "pool/capture/capture_state.hpp"
#include "pool/capture/capture_watch.hpp"
#include "pool/sleep/sleeping_memory.hpp"

namespace millpond {

// Any thread; what takes a captured_cache is its owner's. Takes the lock of its own, then of
// caches, one cache's, of uses and blocks.
class capture_directory {
 public:
  // A block from wherever the pool has one, for a request with an owner and no stream.
  using acquire_block = std::function<result<heap::extent*>(const block_request&)>;
  capture_directory(driver& gpu, const pool_phase& phase, block_store& blocks,
                    stream_directory& streams, cache_directory& caches, capture_watch& watch,
                    cross_stream_uses& uses, acquire_block acquire);

  // Plain calls
  // --------------------------------------------------------------------------

  result<void*> allocate(const capture_info& capture, std::uint64_t bytes, std::uint64_t alignment,
                         stream_handle stream);
  // The free of a block that takes the slow path: whether this call is the one that frees it.
  struct freed {
    bool claimed = false;
    bool arenas = false;  // an arena's, and done with; else the caller has it, in the state guarded
  };
  // freed_on: of the freeing stream; nullptr where nothing runs. The caller calls seal_kept with
  // to_seal afterwards.
  [[nodiscard]] freed free_special(heap::extent* block, stream_handle stream,
                                   stream_state* freed_on, stream_state** to_seal) noexcept;
  // What was freed outside captures is behind a fence soon.
  void seal_kept(stream_state* freed_on) noexcept;
  // The same while nothing runs, as the pool sleeps: any block, whose kept contents are forgotten.
  // False where this call is not the one that frees it.
  [[nodiscard]] bool free_asleep(heap::extent* block, stream_handle stream,
                                 sleeping_memory& asleep) noexcept;
  // Notes a use of an arena's block by another stream. False where the block is no arena's.
  [[nodiscard]] bool note_use(heap::extent* block, bool captures) noexcept;
  // Calls `change` where no arena's block changes hands; where that answers true the block has a
  // tag.
  template <class Change>
  [[nodiscard]] bool tag(heap::extent* block, Change&& change) {
    const mutex_lock lock(mutex_);
    if (!change()) return false;
    block->holder_note |= block_mark::tagged;
    return true;
  }

  // A capture's caches (capture_cache.cpp)
  // --------------------------------------------------------------------------

  // Made for the capture that runs on the stream now.
  result<std::unique_ptr<captured_cache>> make_cache(stream_handle stream);
  result<void*> allocate(captured_cache& in, std::uint64_t bytes);
  void drop(captured_cache& of) noexcept;
  // What fast_path.hpp does for this sort of cache, as in cache_directory.
  [[nodiscard]] static bool may_take(const captured_cache& in, const heap::extent& block) noexcept;
  [[nodiscard]] static bool claim(const captured_cache& in, heap::extent& block) noexcept;
  void mark_served(captured_cache& in, heap::extent& block) noexcept;
  [[nodiscard]] bool take_back(captured_cache& in, heap::extent* block,
                               std::uint64_t bytes) noexcept;

  // Arenas that captures share (graph_arena.cpp)
  // --------------------------------------------------------------------------

  graph_arena make_arena();
  result<void> capture_into(const graph_arena::hold& arena, stream_handle stream);
  // Free memory of arenas that are held while no graph of theirs is left: nothing can be launched
  // on it. A fence over the whole context is to cover it.
  void empty_arenas() noexcept;

  // Graphs that are gone, and arenas that nobody holds, give their memory back, what their program
  // never freed as well.
  void drain_released() noexcept;

  // Adds up what captures keep, and what all caches do: a capture's that ends is counted once.
  void count(pool_statistics& out);
  // visit(arena, id of its capture or 0) for each arena, then visit_owner(owner, capture) for what
  // captures have free.
  template <class Visit, class VisitOwner>
  void each(Visit&& visit, VisitOwner&& visit_owner) {
    const mutex_lock lock(mutex_);
    for (const auto& [number, arena] : arenas_) visit(*arena, std::uint64_t{0});
    for (const auto& [id, capture] : captures_) {
      if (capture->arena->number == 0) visit(*capture->arena, id);
      for (const auto& [stream, owner] : capture->owners) visit_owner(owner, id);
    }
  }

 private:
  result<capture_info> begin_call(stream_handle stream, const std::string& call,
                                  const char* instead);
  result<std::shared_ptr<capture_state>> open(const capture_info& capture,
                                              std::shared_ptr<arena_state> arena)
      MILLPOND_REQUIRES(mutex_);
  heap::owner_id owner_in(capture_state& capture, std::uint64_t key) MILLPOND_REQUIRES(mutex_);
  result<heap::extent*> block_for(const capture_info& capture, std::uint64_t key,
                                  block_request& what);
  heap::extent* from_arena(const block_request& what, capture_state& capture)
      MILLPOND_REQUIRES(mutex_);
  stream_state* free_guarded(heap::extent* block, stream_handle stream,
                             stream_state* freed_on) noexcept MILLPOND_REQUIRES(mutex_);
  void refill(captured_cache& in, const block_request& what) noexcept;
  void flush(captured_cache& of, heap::extent* chain) noexcept;
  std::shared_ptr<arena_state> next_over() noexcept;
  void settle_kept(arena_state& arena) MILLPOND_REQUIRES(mutex_);
  void inherit(capture_state& capture, heap::owner_id first) MILLPOND_REQUIRES(mutex_);
  void end_capture(capture_state& gone) noexcept MILLPOND_REQUIRES(mutex_);
  void let_go_of_owners(capture_state& gone) noexcept MILLPOND_REQUIRES(mutex_);
  void end_arena(arena_state& gone) noexcept;

  driver& gpu_;
  const pool_phase& phase_;
  block_store& blocks_;
  stream_directory& streams_;
  cache_directory& caches_;
  capture_watch& watch_;
  cross_stream_uses& uses_;
  const acquire_block acquire_;
  const std::shared_ptr<release_queue> released_ = std::make_shared<release_queue>();

  mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<capture_state>> captures_
      MILLPOND_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, std::shared_ptr<arena_state>> arenas_
      MILLPOND_GUARDED_BY(mutex_);  // shared ones, by number
  std::uint64_t next_arena_ MILLPOND_GUARDED_BY(mutex_) = 1;
  // A cache is deleted only after it left this list.
  std::vector<captured_cache*> all_caches_ MILLPOND_GUARDED_BY(mutex_);
};

}  // namespace millpond
