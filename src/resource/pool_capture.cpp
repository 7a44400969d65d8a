// Captures: what a capture allocates belongs to its graph until the graph is released.
//
// A capture has owners of its own in the heap, one a stream that it allocates on: what it frees serves the
// same capture on the same stream again, and nobody else. It takes idle memory only: the graph may be launched on
// any stream, before or after whatever a pending fence stands for. The graph holds a ticket (a user object) that
// tells us when the graph and everything made from it is gone, an aborted capture's too.
#include "driver/relaxed_capture.hpp"
#include "resource/pool_core.hpp"

namespace millpond {
namespace {

struct ticket {
  std::shared_ptr<release_queue> queue;
  std::uint64_t id;
};

// Called by the driver, from any thread: makes no driver call.
void return_ticket(void* data) {
  const std::unique_ptr<ticket> held(static_cast<ticket*>(data));
  const std::lock_guard lock(held->queue->mutex);
  held->queue->ids.push_back(held->id);
  held->queue->any.store(true, std::memory_order_relaxed);
}

constexpr std::uint64_t never = ~std::uint64_t{0};

}  // namespace

result<void*> pool::core::allocate_in_capture(const capture_info& capture, std::uint64_t bytes, std::uint64_t alignment,
                                              stream_handle stream) {
  // A capturing stream has no identity to ask for, and needs none: within one capture its handle is its own.
  const std::uint64_t id = capture_key(stream);
  note_capturing(stream, capture.id);  // before anything that may want a fence over the whole context
  drain_released();
  capture_state* state = nullptr;
  request what;
  {
    const std::lock_guard lock(captures_mutex_);
    auto& entry = captures_[capture.id];
    if (entry == nullptr) {
      // Bound to the graph before it owns anything, so that what it owns comes back with the graph.
      auto held = std::make_unique<ticket>(ticket{released_, capture.id});
      if (const call_result answer = gpu_->graph_retain(capture.graph, return_ticket, held.get()); !answer.ok()) {
        captures_.erase(capture.id);
        return to_error(answer, "binding memory to the graph being captured");
      }
      static_cast<void>(held.release());
      entry = std::make_unique<capture_state>();
      entry->id = capture.id;
      entry->parked = new_owner();
    }
    state = entry.get();
    heap::owner_id& owner = state->owners[id];
    if (owner == heap::anyone) owner = new_owner();
    what.owner = owner;
  }
  what.bytes = bytes;
  what.size = align_up(bytes, heap::granule);
  what.alignment = std::max(alignment, heap::granule);
  auto found = acquire(what, nullptr);
  if (!found) return found.error();
  heap::segment* const block = *found;
  block->requested = bytes;
  block->holder = state;
  set_state(*block, block_state::special);
  {
    const std::lock_guard lock(captures_mutex_);
    state->live.insert(block);
  }
  const std::lock_guard lock(lanes_mutex_);
  past_.allocations.add(1);
  past_.misses.add(1);
  past_.bytes_out.add(bytes);
  return reinterpret_cast<void*>(block->start());
}

void pool::core::free_in_capture(heap::segment* block, stream_handle stream) noexcept {
  heap::owner_id owner = heap::anyone;
  {
    const std::lock_guard lock(captures_mutex_);
    auto* const state = static_cast<capture_state*>(block->holder);
    state->live.erase(block);
    owner = state->parked;
    capture_info now;
    if (gpu_->stream_capture(stream, &now).ok() && now.status == capture_status::active && now.id == state->id) {
      if (const auto found = state->owners.find(capture_key(stream)); found != state->owners.end()) owner = found->second;
    }
  }
  const std::lock_guard lock(heap_mutex_);
  carved_ -= block->bytes;
  set_state(*block, block_state::none);
  heap_.release(block, owner, never - 1, heap::absorb_idle::no);
}

// Graphs that are gone give their memory back, what their program never freed as well. The driver lets go of a graph
// in flight only when it has run, but says so to nobody, so the memory waits for a fence over the whole context.
void pool::core::drain_released() noexcept {
  // A fence that a running capture forbade is tried again each time.
  if (!released_->any.load(std::memory_order_relaxed) && !limbo_.line->dirty()) return;
  std::vector<std::uint64_t> ids;
  {
    const std::lock_guard lock(released_->mutex);
    ids.swap(released_->ids);
    released_->any.store(false, std::memory_order_relaxed);
  }
  for (const std::uint64_t id : ids) {
    std::unique_ptr<capture_state> state;
    {
      const std::lock_guard lock(captures_mutex_);
      const auto found = captures_.find(id);
      if (found == captures_.end()) continue;
      state = std::move(found->second);
      captures_.erase(found);
      std::erase_if(capturing_, [id](const auto& c) { return c.second == id; });
      capturing_count_.store(capturing_.size(), std::memory_order_relaxed);
    }
    std::uint64_t orphaned = 0;
    std::uint64_t orphaned_bytes = 0;
    {
      const std::lock_guard lock(guarded_mutex_);
      for (heap::segment* const block : state->live) tags_.erase(block);
    }
    {
      const std::lock_guard lock(heap_mutex_);
      const std::uint64_t batch = limbo_.line->join(0);
      for (heap::segment* const block : state->live) {
        ++orphaned;
        orphaned_bytes += block->requested;
        carved_ -= block->bytes;
        set_state(*block, block_state::none);
        heap_.release(block, limbo_.owner, batch, heap::absorb_idle::no);
      }
      state->owners[never] = state->parked;
      for (const auto& [stream, owner] : state->owners) {
        heap_.reassign(owner, never, limbo_.owner, batch);
        free_owners_.push_back(owner);
      }
    }
    const std::lock_guard lock(lanes_mutex_);
    past_.deallocations.add(orphaned);
    past_.bytes_in.add(orphaned_bytes);
  }
  const relaxed_capture_scope relaxed(*gpu_);
  wide_seal();
  poll_fences();
}

}  // namespace millpond
