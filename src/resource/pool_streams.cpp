// Streams and lanes: who they are, and how they come and go.
#include <algorithm>

#include "driver/relaxed_capture.hpp"
#include "order/line.hpp"
#include "resource/pool_core.hpp"

namespace millpond {
namespace {

// 0, 1 and 2 are CUDA's null, legacy and per-thread streams: many streams under one value, so a new identity
// under them says nothing of the old one.
[[nodiscard]] bool names_many(stream_handle handle) noexcept { return reinterpret_cast<std::uintptr_t>(handle) <= 2; }

}  // namespace

heap::owner_id pool::core::new_owner() {
  const std::lock_guard lock(heap_mutex_);
  if (free_owners_.empty()) return next_owner_++;
  const heap::owner_id out = free_owners_.back();
  free_owners_.pop_back();
  return out;
}

std::unique_ptr<stream_state> pool::core::new_stream(stream_handle handle, std::uint64_t id) {
  auto made = std::make_unique<stream_state>();
  made->line = std::make_shared<order::line>(id, handle);
  made->owner = new_owner();
  return made;
}

result<stream_state*> pool::core::hold_stream(stream_handle handle, std::uint64_t id) {
  const auto held = [](stream_state& s) {
    s.holders.fetch_add(1, std::memory_order_relaxed);
    s.line->set_here();  // a per-thread stream counts as gone when its last lane went, but its thread has come back
    return &s;
  };
  {
    const std::shared_lock lock(streams_mutex_);
    if (const auto found = streams_.find(id); found != streams_.end()) return held(*found->second);
  }
  int device = 0;
  if (gpu_->stream_device(handle, &device).ok() && device != gpu_->info().ordinal) {
    return error{error_code::invalid_argument, "the stream is of device " + std::to_string(device) +
                                                   ", the pool of device " + std::to_string(gpu_->info().ordinal)};
  }
  auto made = new_stream(handle, id);
  stream_state* out = nullptr;
  stream_state* gone = nullptr;
  bool crowded = false;
  {
    const std::unique_lock lock(streams_mutex_);
    const auto [at, fresh] = streams_.emplace(id, std::move(made));
    out = held(*at->second);
    if (fresh && streams_.size() > 1) many_streams_.store(true, std::memory_order_relaxed);
    if (!names_many(handle)) {
      const auto [known, first] = identity_of_.emplace(handle, id);
      if (!first && known->second != id) {
        // The handle came back for a new stream: the old one was destroyed, perhaps with work pending.
        if (const auto old = streams_.find(known->second); old != streams_.end()) gone = old->second.get();
        known->second = id;
      }
    }
    if (gone != nullptr) gone->holders.fetch_add(1, std::memory_order_relaxed);
    crowded = streams_.size() >= collect_at_;
  }
  if (gone != nullptr) {
    retire_stream(*gone);
    gone->holders.fetch_sub(1, std::memory_order_acq_rel);
  }
  if (gone != nullptr || crowded) collect_dead_streams();
  return out;
}

void pool::core::retire_stream(stream_state& gone) noexcept {
  gone.line->set_gone();
  flush_lanes_of(&gone);
  if (!names_many(gone.line->handle())) note_not_capturing(gone.line->handle());
}

// Forgets streams that no lane holds and nothing of whose is left. One that lives is met anew when it next calls.
void pool::core::collect_dead_streams() {
  const relaxed_capture_scope relaxed(*gpu_);
  wide_seal();
  std::uint64_t queries = 0;
  wide_.poll(*gpu_, events_, &queries, nullptr);
  const std::unique_lock lock(streams_mutex_);
  std::erase_if(streams_, [this, &queries](auto& entry) {
    stream_state& s = *entry.second;
    if (s.holders.load(std::memory_order_acquire) != 0) return false;
    s.line->poll(*gpu_, events_, &queries, nullptr);
    if (!s.line->quiet()) return false;
    const std::lock_guard heap_lock(heap_mutex_);
    heap_.retire(s.owner, s.line->completed());
    if (heap_.free_bytes(s.owner) != 0 || s.shelf_bytes != 0 || s.large_bytes_hint.load(std::memory_order_relaxed) != 0) return false;
    free_owners_.push_back(s.owner);
    if (const auto known = identity_of_.find(s.line->handle()); known != identity_of_.end() && known->second == entry.first) {
      identity_of_.erase(known);
    }
    return true;
  });
  collect_at_ = std::max<std::size_t>(64, 2 * streams_.size());
  counts_.fence_queries.fetch_add(queries, std::memory_order_relaxed);
}

void pool::core::set_lane_limits(stream_lane& of) noexcept {
  of.small_limit_bytes = lane_small_.load(std::memory_order_relaxed);
  of.large_limit_bytes = lane_large_.load(std::memory_order_relaxed);
}

result<std::unique_ptr<stream_lane>> pool::core::make_lane(stream_handle stream, std::uint64_t id) {
  const auto home = hold_stream(stream, id);
  if (!home) return home.error();
  auto made = std::make_unique<stream_lane>();
  made->handle = stream;
  made->stream_id = id;
  made->stream = *home;
  set_lane_limits(*made);
  const std::lock_guard lock(lanes_mutex_);
  lanes_.push_back(made.get());
  return made;
}

void pool::core::drop_lane(stream_lane& of) noexcept {
  if (forked()) return;  // the parent's locks and books are not ours to touch
  if (!closed()) empty_lane(of);
  {
    const std::lock_guard lock(lanes_mutex_);
    lanes_.erase(std::remove(lanes_.begin(), lanes_.end(), &of), lanes_.end());
    past_.allocations.add(of.counts.allocations.get());
    past_.deallocations.add(of.counts.deallocations.get());
    past_.bytes_in.add(of.counts.bytes_in.get());
    past_.bytes_out.add(of.counts.bytes_out.get());
    past_.misses.add(of.counts.misses.get());
  }
  if (closed()) return;
  // A per-thread stream ends with its thread, which is where its last lane is dropped.
  if (of.handle == per_thread_stream) {
    empty_shelf(*of.stream);
    of.stream->line->set_gone();
  }
  of.stream->holders.fetch_sub(1, std::memory_order_acq_rel);  // from here on it may be collected
}

void pool::core::empty_lane(stream_lane& of) noexcept {
  of.lock.foreign_lock();
  heap::segment* const chain = of.empty();
  of.lock.foreign_unlock();
  if (chain != nullptr) flush_chain(*of.stream, chain);
}

void pool::core::empty_shelf(stream_state& stream) noexcept {
  heap::segment* chain = nullptr;
  {
    const std::lock_guard lock(stream.shelf_mutex);
    for (heap::segment*& head : stream.shelf) {
      while (head != nullptr) {
        heap::segment* const block = head;
        head = block->link;
        block->link = chain;
        chain = block;
      }
    }
    stream.shelf_bytes = 0;
    for (heap::segment*& block : stream.large) {
      if (block == nullptr) continue;
      block->link = chain;
      chain = block;
      block = nullptr;
    }
    stream.large_bytes_hint.store(0, std::memory_order_relaxed);
  }
  if (chain != nullptr) flush_chain(stream, chain);
}

std::uint64_t pool::core::flush_lanes_of(const stream_state* only) noexcept {
  std::uint64_t emptied = 0;
  {
    // Held over the lanes' locks: a lane is deleted only after it left this list.
    const std::lock_guard lock(lanes_mutex_);
    // One barrier for all of them: it costs more than all the rest.
    const auto each = [&](auto&& visit) {
      for (stream_lane* const l : lanes_) {
        if (only == nullptr || l->stream == only) visit(*l);
      }
    };
    each([](stream_lane& l) { l.lock.foreign_begin(); });
    process_barrier();
    each([&](stream_lane& l) {
      l.lock.foreign_arrive();
      heap::segment* const chain = l.empty();
      if (only != nullptr && only->line->gone()) l.dead.store(true, std::memory_order_relaxed);
      l.lock.foreign_unlock();
      if (chain != nullptr) flush_chain(*l.stream, chain);
      ++emptied;
    });
  }
  const std::shared_lock lock(streams_mutex_);
  for (const auto& [id, stream] : streams_) {
    if (only == nullptr || stream.get() == only) empty_shelf(*stream);
  }
  return emptied;
}

// A chain of blocks of one stream, through segment::link, back to the heap as frees of the open batch.
void pool::core::flush_chain(stream_state& stream, heap::segment* chain) noexcept {
  const std::lock_guard lock(heap_mutex_);
  while (chain != nullptr) {
    heap::segment* const block = chain;
    chain = block->link;
    carved_ -= block->bytes;
    block->holder_state.store(static_cast<std::uint8_t>(block_state::none), std::memory_order_relaxed);
    heap_.release(block, stream.owner, stream.line->join(block->bytes), absorb());
  }
}

// The lane has more small blocks than it may keep: half of each stack goes to the stream's shelf, and from a
// full shelf to the heap.
void pool::core::flush_small(stream_lane& in) noexcept {
  heap::segment* out = nullptr;
  std::uint64_t bytes = 0;
  const auto entered = in.lock.enter();
  const std::uint64_t target = in.small_limit_bytes / 2;
  // The largest classes first: few blocks, most bytes. One of each stays, for the next request.
  for (std::uint64_t left = in.filled; left != 0 && in.small_bytes > target;) {
    const unsigned c = floor_log2(left);
    left &= ~(std::uint64_t{1} << c);
    while (in.small_bytes > target && in.small[c]->link != nullptr) {
      heap::segment* const block = in.pop_class(c);
      block->link = out;
      out = block;
      bytes += block->bytes;
    }
  }
  // Nothing but single large ones: then the largest goes.
  if (out == nullptr && in.small_bytes > in.small_limit_bytes) {
    out = in.pop_class(floor_log2(in.filled));
    out->link = nullptr;
    bytes = out->bytes;
  }
  in.lock.leave(entered);
  stream_state& stream = *in.stream;
  heap::segment* chain = out;
  {
    const std::lock_guard lock(stream.shelf_mutex);
    if (stream.shelf_bytes + bytes <= 2 * in.small_limit_bytes) {
      stream.shelf_bytes += bytes;
      while (chain != nullptr) {
        heap::segment* const block = chain;
        chain = block->link;
        block->holder_state.store(static_cast<std::uint8_t>(block_state::shelf), std::memory_order_relaxed);
        block->link = stream.shelf[block->holder_class];
        stream.shelf[block->holder_class] = block;
      }
    }
  }
  if (chain != nullptr) {
    flush_chain(stream, chain);
    seal_if_wanted(stream);
  }
}

// Called only where the user's own call names the stream, so that its handle is alive.
void pool::core::seal_if_wanted(stream_state& stream) noexcept {
  if (!many_streams_.load(std::memory_order_relaxed) || !stream.line->dirty()) return;
  const std::uint64_t wish = seal_wish_.load(std::memory_order_relaxed);
  std::uint64_t reserved = 0;
  {
    const std::lock_guard lock(heap_mutex_);
    reserved = reserved_;
  }
  const bool asked = stream.seals_seen.load(std::memory_order_relaxed) != wish;
  if (!asked && stream.line->dirty_bytes() < std::min<std::uint64_t>(reserved / 64, std::uint64_t{1} << 20)) return;
  seal(stream);
}

// The same without asking whether it pays.
void pool::core::seal(stream_state& stream) noexcept {
  const std::uint64_t wish = seal_wish_.load(std::memory_order_relaxed);
  const relaxed_capture_scope relaxed(*gpu_);
  call_result failure;
  switch (stream.line->seal(*gpu_, events_, &failure)) {
    case order::seal_outcome::sealed:
      counts_.seals.fetch_add(1, std::memory_order_relaxed);
      stream.seals_seen.store(wish, std::memory_order_relaxed);
      note_not_capturing(stream.line->handle());
      break;
    case order::seal_outcome::gone:
      if (!names_many(stream.line->handle())) retire_stream(stream);
      break;
    case order::seal_outcome::capturing:
      note_capturing(stream.line->handle(), 0);
      break;
    case order::seal_outcome::nothing:
      break;
    case order::seal_outcome::failed:
      note_failure(to_error(failure, "sealing a batch of frees"));
      break;
  }
}

}  // namespace millpond
