// What captures own, and who holds it. All under the pool's captures mutex unless a line says
// otherwise.
#pragma once
#include <atomic>
#include <cstdint>
#include <list>
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
class release_queue {
 public:
  enum class kind : std::uint8_t { nothing, capture, arena };
  struct entry {
    kind what = kind::nothing;
    std::uint64_t number = 0;
  };
  std::atomic<bool> any{false};  // a hint that it is not empty; the mutex orders the rest

  // Room for one more, so that put() needs no host memory: a driver's callback calls it.
  void expect_one() {
    const std::lock_guard lock(mutex_);
    entries_.reserve(expected_ + 1);
    ++expected_;
  }
  void put(entry gone) noexcept {
    const std::lock_guard lock(mutex_);
    entries_.push_back(gone);
    any.store(true, std::memory_order_relaxed);
  }
  entry take() noexcept {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) return {};
    const entry out = entries_.back();
    entries_.pop_back();
    --expected_;
    any.store(!entries_.empty(), std::memory_order_relaxed);
    return out;
  }

 private:
  std::mutex mutex_;
  std::vector<entry> entries_;  // with room for expected_
  std::size_t expected_ = 0;
};

struct graph_arena::hold {
  std::shared_ptr<release_queue> queue;
  std::uint64_t number;
  hold(std::shared_ptr<release_queue> of, std::uint64_t arena)
      : queue(std::move(of)), number(arena) {
    queue->expect_one();
  }
  hold(const hold&) = delete;
  hold& operator=(const hold&) = delete;
  ~hold() { queue->put({release_queue::kind::arena, number}); }
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
  // Carved for it and live, or in a capture's cache.
  struct held_block {
    heap::extent* block = nullptr;
    std::uint64_t capture = 0;  // that it was carved for
    // Of a block that was freed where no capture of the arena ran: for later captures once the
    // batch has passed; where no stream has the batches, not before the end.
    std::shared_ptr<order::stream_batches> batches;
    std::uint64_t batch = 0;
  };
  std::list<held_block> out;
  std::list<held_block> kept;                                                // freed
  std::unordered_map<heap::extent*, std::list<held_block>::iterator> place;  // of what is out

  // All or nothing, where there is no host memory.
  void add(heap::extent* block, std::uint64_t capture_id) {
    std::list<held_block> made;
    made.push_back({block, capture_id, nullptr, 0});
    place.emplace(block, made.begin());
    out.splice(out.end(), made);
  }
  void remove(heap::extent* block) noexcept {
    const auto found = place.find(block);
    if (found == place.end()) return;
    out.erase(found->second);
    place.erase(found);
  }
  // Freed, and not for anybody yet.
  void keep(heap::extent* block, std::shared_ptr<order::stream_batches> batches,
            std::uint64_t batch) noexcept {
    const auto found = place.find(block);
    if (found == place.end()) return;
    found->second->batches = std::move(batches);
    found->second->batch = batch;
    kept.splice(kept.end(), out, found->second);
    place.erase(found);
  }
};

struct capture_state {
  std::uint64_t id = 0;
  std::shared_ptr<arena_state> arena;
  std::map<std::uint64_t, heap::owner_id>
      owners;  // free memory of the capture, by its streams' keys
  heap::owner_id untouched =
      heap::anyone;  // the owner that holds what no stream of it has used yet, if one does
  std::uint32_t allocating = 0;  // calls under way with one of its owners
  bool ended = false;            // its graph is gone: the last such call lets go of the owners
};

// extent::holder_note of an arena's block, bit by bit: who uses it besides, as record_use named
// them, and whether it has a tag. A block with any of them is freed by the slow path.
namespace block_mark {
inline constexpr std::uint32_t used_in_capture =
    1;  // by a stream of the capture: no other allocation of that capture may have it
inline constexpr std::uint32_t used_outside =
    2;  // by a stream outside: nobody may have it before the arena's end
inline constexpr std::uint32_t tagged = 4;
}  // namespace block_mark

// A cache inside a capture: a thread's few free blocks of one stream of one capture. The cache's
// own lock guards it.
struct captured_cache : thread_cache {  // its stream is nullptr, its number 0
  std::shared_ptr<arena_state> arena;
  std::uint64_t capture_id = 0;
  std::uint64_t key = 0;  // of its stream in the capture
};

}  // namespace millpond
