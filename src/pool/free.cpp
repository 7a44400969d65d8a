// Frees that a cache does not take, uses by other streams that a free has to wait for, and which
// block an address lies in.
#include <algorithm>

#include "driver/relaxed_capture.hpp"
#include "pool/core.hpp"

namespace millpond {

result<void> pool::core::slow_free(void* ptr, std::uint64_t bytes, stream_handle stream,
                                   thread_cache* in) noexcept {
  look_for_capture_end(stream);
  drain_released();
  heap::extent* const block = heap_.find(reinterpret_cast<std::uintptr_t>(ptr));
  const auto state = block == nullptr ? block_state::none : state_of(*block);
  if ((state != block_state::live && state != block_state::special) ||
      (bytes != 0 && bytes != block->requested)) {
    return explain_bad_free(ptr, bytes, stream);
  }
  // Who frees: the cache's stream, or the one that the handle names now.
  stream_state* freed_on =
      in != nullptr && !in->dead.load(std::memory_order_relaxed) ? in->stream : nullptr;
  thread_cache* counted = in;
  passing_cache passing{*this, nullptr};
  if (freed_on == nullptr) {
    capture_info capture;
    const call_result asked = gpu_->stream_capture(stream, &capture);
    // Where the question failed the stream may capture, and asking its identity would break that. A
    // thread without a context looks the same otherwise.
    const bool may_capture = asked.ok() ? capture.status != capture_status::none
                                        : asked.status != driver_status::invalid_context;
    const auto id =
        may_capture ? result<std::uint64_t>(error{error_code::not_permitted, "the stream captures"})
                    : identity(stream);
    if (id) {
      auto made = make_cache(stream, *id);
      if (!made) return made.error();
      counted = made->get();
      freed_on = counted->stream;
      passing.cache = attach(stream, std::move(*made));
    } else {
      freed_on =
          &limbo_;  // a stream that is gone: only something wider can tell when its work has ended
      counted = nullptr;
    }
  }
  if (counted != nullptr && counted != in && push(*counted, ptr, bytes)) return {};
  if (counted != nullptr) {
    const auto entered = counted->lock.enter();
    counted->counts.deallocations.add(1);
    counted->counts.bytes_in.add(block->requested);
    counted->lock.leave(entered);
  } else {
    const std::lock_guard lock(caches_mutex_);
    past_.deallocations.add(1);
    past_.bytes_in.add(block->requested);
  }
  if (state == block_state::special) return free_special(block, stream, *freed_on);
  // The cache was busy with a stranger, or there is none.
  set_state(*block, block_state::cached);
  block->link = nullptr;
  flush_chain(*freed_on, block);
  if (freed_on != &limbo_) seal_if_wanted(*freed_on);
  return {};
}

result<void> pool::core::free_special(heap::extent* block, stream_handle stream,
                                      stream_state& freed_on) noexcept {
  if (block->holder != nullptr) {
    {
      const std::lock_guard lock(guarded_mutex_);
      tags_.erase(block);
    }
    free_in_capture(block, stream, &freed_on);
    return {};
  }
  std::vector<recorded_use> used_on;
  {
    const std::lock_guard lock(guarded_mutex_);
    if (const auto found = uses_.find(block); found != uses_.end()) {
      used_on = std::move(found->second);
      uses_.erase(found);
    }
    tags_.erase(block);
  }
  const relaxed_capture_scope relaxed(*gpu_);
  guarded_block guarded{block, &freed_on, {}};
  bool covered = true;
  for (const auto& [other, recorded_id] : used_on) {
    std::uint64_t id = 0;
    capture_info capture;
    if (!gpu_->stream_capture(other, &capture).ok() || capture.status != capture_status::none ||
        !gpu_->stream_id(other, &id).ok() || id != recorded_id) {
      covered = false;
      break;
    }
    event_handle event = nullptr;
    if (!events_.get(&event).ok()) {
      covered = false;
      break;
    }
    if (!gpu_->event_record(event, other).ok()) {
      events_.put(event);
      covered = false;
      break;
    }
    guarded.events.push_back(event);
  }
  if (!covered) {
    for (const event_handle e : guarded.events) events_.put(e);
    block->link = nullptr;
    flush_chain(limbo_, block);
    return {};
  }
  set_state(*block, block_state::guarded);
  freed_on.holders.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(heap_mutex_);
    guarded_bytes_ += block->bytes;
  }
  {
    const std::lock_guard lock(guarded_mutex_);
    guarded_.push_back(std::move(guarded));
  }
  poll_guarded();
  return {};
}

result<void> pool::core::record_use(void* ptr, stream_handle stream) noexcept {
  heap::extent* const block = heap_.find(reinterpret_cast<std::uintptr_t>(ptr));
  if (!user_has(block)) {
    return error{error_code::foreign_pointer,
                 "record_use: the pointer is not a live block of this pool"};
  }
  capture_info capture;
  const bool captures =
      gpu_->stream_capture(stream, &capture).ok() && capture.status != capture_status::none;
  if (block->holder !=
      nullptr) {  // an arena's: others never have it before the end, but its own captures might
    const auto use =
        static_cast<std::uint32_t>(captures ? other_use::in_capture : other_use::outside);
    block->holder_note = std::max(block->holder_note, use);
    return {};
  }
  if (captures) {
    return error{
        error_code::not_permitted,
        "record_use: the stream captures; what a graph uses must live as long as the graph"};
  }
  const auto id = identity(stream);
  if (!id) return id.error();
  int device = 0;
  if (gpu_->stream_device(stream, &device).ok() && device != gpu_->info().ordinal) {
    return error{error_code::invalid_argument,
                 "record_use: the stream is of device " + std::to_string(device) +
                     ", the pool of device " + std::to_string(gpu_->info().ordinal) +
                     ": no fence here covers it; make a stream of the pool's device wait for it "
                     "and name that"};
  }
  const std::lock_guard lock(guarded_mutex_);
  block_owners_.forget(block->start());  // whoever frees it looks at its state
  auto& streams = uses_[block];
  const auto same = [&](const recorded_use& u) { return u.stream_id == *id; };
  if (std::none_of(streams.begin(), streams.end(), same)) streams.push_back({stream, *id});
  set_state(*block, block_state::special);
  return {};
}

result<pool::block_range> pool::core::find(const void* ptr) {
  const std::lock_guard lock(heap_mutex_);
  const heap::extent* const block = heap_.covering(reinterpret_cast<std::uintptr_t>(ptr));
  if (!user_has(block)) {
    return error{error_code::foreign_pointer, "the address is in no live block of this pool"};
  }
  return pool::block_range{reinterpret_cast<void*>(block->start()), block->bytes};
}

}  // namespace millpond
