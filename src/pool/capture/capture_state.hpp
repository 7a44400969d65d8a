// What captures own, and who holds it. All under the pool's captures mutex unless a line says
// otherwise.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "heap/extent.hpp"
#include "millpond/pool/graph_arena.hpp"
#include "order/stream_batches.hpp"
#include "pool/cache/thread_cache.hpp"

namespace millpond {

// Captures whose graphs are gone, and arenas that nobody holds any more. It outlives the pool,
// since a graph may.
struct release_queue {
  std::mutex mutex;
  std::vector<std::uint64_t> captures, arenas;
  std::atomic<bool> any{false};  // a hint that they are not empty; the mutex orders the rest
};

struct graph_arena::hold {
  std::shared_ptr<release_queue> queue;
  std::uint64_t number;
  hold(std::shared_ptr<release_queue> of, std::uint64_t arena)
      : queue(std::move(of)), number(arena) {}
  hold(const hold&) = delete;
  hold& operator=(const hold&) = delete;
  ~hold() {
    const std::lock_guard lock(queue->mutex);
    queue->arenas.push_back(number);
    queue->any.store(true, std::memory_order_relaxed);
  }
};

// No batch of an arena ever passes; they only tell which free memory is joined, and which a stream
// of a capture may take from another: what no stream of it has used yet. Where a stretch has both,
// it counts as used.
namespace arena_batch {
inline constexpr std::uint64_t all = ~std::uint64_t{0};
inline constexpr std::uint64_t used = all - 1;
inline constexpr std::uint64_t untouched = all - 2;
}  // namespace arena_batch

// The memory of one capture, or of several that share it. extent::holder of its blocks points
// here.
struct arena_state {
  std::uint64_t number = 0;                  // of its graph_arena; 0: one capture's own
  bool held = false;                         // by a graph_arena
  std::atomic<bool> ended{false};            // nothing here is the arena's any more
  std::unordered_set<std::uint64_t> graphs;  // captures whose graphs are not gone
  heap::owner_id parked = heap::anyone;      // free for captures that are attached from now on
  std::unordered_map<heap::extent*, std::uint64_t>
      out;  // carved for it: live, or in a capture's cache; by which capture
  // Freed where no capture of the arena ran: for later captures once the batch has passed; where
  // no stream has the batches, not before the end.
  struct kept_block {
    heap::extent* block;
    std::shared_ptr<order::stream_batches> batches;
    std::uint64_t batch;
  };
  std::vector<kept_block> kept;
};

struct capture_state {
  std::uint64_t id = 0;
  std::shared_ptr<arena_state> arena;
  std::map<std::uint64_t, heap::owner_id>
      owners;  // free memory of the capture, by its streams' keys
  heap::owner_id untouched =
      heap::anyone;  // the owner that holds what no stream of it has used yet, if one does
};

// extent::holder_note of an arena's block: who uses it besides, as record_use named them.
enum class other_use : std::uint32_t {
  none,
  in_capture,  // a stream of the capture: no other allocation of that capture may have it
  outside,     // a stream outside: nobody may have it before the arena's end
};

// A cache inside a capture: a thread's few free blocks of one stream of one capture. The cache's
// own lock guards it.
struct captured_cache : thread_cache {  // its stream is nullptr, its number 0
  std::shared_ptr<arena_state> arena;
  std::uint64_t capture_id = 0;
  std::uint64_t key = 0;  // of its stream in the capture
};

}  // namespace millpond
