// Frees that a cache does not take, uses by other streams that a free has to wait for, and which
// block an address lies in.
//
// A free ends in one change of the block's state, made by compare and exchange after everything
// that has to be asked was asked: another thread may free the block, or end its graph, at any time
// before. Nothing here needs host memory that it cannot do without.
#include <list>
#include <new>

#include "base/quote.hpp"
#include "driver/own_calls.hpp"
#include "pool/fast_path.hpp"
#include "resource/quiet_stream.hpp"

namespace millpond {

error pool::core::refuse_free(const void* ptr, std::uint64_t bytes, stream_handle stream) noexcept {
  try {
    return explain_bad_free(ptr, bytes, stream);
  } catch (const std::bad_alloc&) {  // no memory for the words
    return error{error_code::invalid_argument, {}};
  }
}

// A stream whose identity cannot be asked is as one that is gone: only something wider can tell
// when its work has ended.
result<pool::core::freer> pool::core::who_frees(stream_handle stream, thread_cache* in,
                                                passing_cache& passing) noexcept {
  if (in != nullptr && !in->has(thread_cache::is_dead)) return freer{in->stream, in};
  try {
    capture_info capture;
    const call_result asked = gpu_->stream_capture(stream, &capture);
    // Where the question failed the stream may capture, and asking its identity would break that. A
    // thread without a context looks the same otherwise.
    const bool may_capture = asked.ok() ? capture.status != capture_status::none
                                        : asked.status != driver_status::invalid_context;
    if (!may_capture) {
      if (const auto id = identity(stream)) {
        auto made = caches_.make(stream, *id);
        if (!made) return made.error();
        thread_cache* const counted = made->get();
        passing.cache = attach(stream, std::move(*made));
        return freer{counted->stream, counted};
      }
    }
    // The pool's fences cover its own context alone.
    if (detail::of_another_context(*gpu_, stream)) {
      return error{error_code::not_permitted,
                   "pool::deallocate on the stream " +
                       in_hex(reinterpret_cast<const void*>(stream)) +
                       " of another context than the pool's, while it captures: the block stays "
                       "allocated; free it on a stream of the pool's context"};
    }
  } catch (const std::bad_alloc&) {
    if (detail::of_another_context(*gpu_, stream)) return no_host_memory();
  }
  return freer{&streams_.limbo(), nullptr};
}

result<void> pool::core::deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept {
  if (__builtin_expect(!serving(), 0)) return free_unserved(ptr, bytes, stream);
  thread_cache* in = cache_of_free(stream);
  if (in != nullptr && caches_.push(*in, ptr, bytes)) return {};
  return slow_free(ptr, bytes, stream, in);
}

result<void> pool::core::deallocate_to(thread_cache& in, void* ptr, std::uint64_t bytes) noexcept {
  if (__builtin_expect(!serving(), 0)) return free_unserved(ptr, bytes, in.handle);
  if (caches_.push(in, ptr, bytes)) return {};
  return slow_free(ptr, bytes, in.handle, &in);
}

result<void> pool::core::deallocate_to(captured_cache& in, void* ptr,
                                       std::uint64_t bytes) noexcept {
  if (serving() && push_here(in, ptr, bytes)) return {};
  // Another arena's block, the program's own, or one that another stream uses too: as by the plain
  // call.
  return deallocate(ptr, bytes, in.handle);
}

result<void> pool::core::slow_free(void* ptr, std::uint64_t bytes, stream_handle stream,
                                   thread_cache* in) noexcept {
  watch_.look_for_end(stream);
  captures_.drain_released();
  heap::extent* const block = blocks_.find(reinterpret_cast<std::uintptr_t>(ptr));
  const auto may_be_freed = [&] {
    return user_has(block) && (bytes == 0 || bytes == block->requested);
  };
  if (!may_be_freed()) return refuse_free(ptr, bytes, stream);
  passing_cache passing{*this, nullptr};
  const auto who = who_frees(stream, in, passing);
  if (!who) {
    try {
      return who.error();
    } catch (const std::bad_alloc&) {
      return no_host_memory();
    }
  }
  const auto [freed_on, counted] = *who;
  if (counted != nullptr && counted != in && caches_.push(*counted, ptr, bytes)) return {};
  if (!may_be_freed()) return refuse_free(ptr, bytes, stream);
  const std::uint64_t freed = block->requested;
  if (state_of(*block) == block_state::special) return free_special(block, bytes, stream, *who);
  // The cache was busy with a stranger, or there is none. Its own thread, which is here, is the one
  // that frees its blocks without a check.
  if (counted == nullptr || counted != in || block->holder_number != in->number)
    caches_.check_frees();
  if (!change_state(*block, block_state::live, block_state::cached))
    return refuse_free(ptr, bytes, stream);
  caches_.count_free(counted, freed);
  block->link = nullptr;
  blocks_.release(*freed_on, block);
  if (freed_on != &streams_.limbo()) caches_.seal_if_due(*freed_on);
  return {};
}

result<void> pool::core::free_special(heap::extent* block, std::uint64_t bytes,
                                      stream_handle stream, const freer& who) noexcept {
  void* const ptr = reinterpret_cast<void*>(block->start());
  const std::uint64_t freed = block->requested;
  stream_state* to_seal = nullptr;
  const capture_directory::freed was = captures_.free_special(block, stream, who.on, &to_seal);
  if (!was.claimed) return refuse_free(ptr, bytes, stream);
  caches_.count_free(who.counted, freed);
  if (was.arenas)
    captures_.seal_kept(to_seal);
  else
    free_used(block, *who.on);
  return {};
}

// A block that other streams may still use: it waits for an event on each of them.
void pool::core::free_used(heap::extent* block, stream_state& freed_on) noexcept {
  const std::vector<cross_stream_uses::recorded_use> used_on = uses_.take(block);
  std::list<cross_stream_uses::waiting> waits;
  bool covered = true;
  try {
    waits.emplace_back();
    waits.back().events.reserve(used_on.size());
  } catch (const std::bad_alloc&) {
    covered = false;
  }
  for (const auto& [other, recorded_id] : used_on) {
    std::uint64_t id = 0;
    capture_info capture;
    event_handle event = nullptr;
    covered = covered && recorded_id != cross_stream_uses::unidentified &&
              gpu_->stream_capture(other, &capture).ok() &&
              capture.status == capture_status::none && gpu_->stream_id(other, &id).ok() &&
              id == recorded_id;
    if (!covered) break;
    {
      const own_calls_scope own_calls(*gpu_);
      covered = streams_.events().get(&event).ok();
    }
    if (!covered) break;
    covered = gpu_->event_record(event, other).ok();
    if (!covered) {
      streams_.events().put(event);
      break;
    }
    waits.back().events.push_back(event);
  }
  if (!covered) {
    for (const cross_stream_uses::waiting& g : waits) {
      for (const event_handle e : g.events) streams_.events().put(e);
    }
    block->link = nullptr;
    blocks_.release(streams_.limbo(), block);
    return;
  }
  waits.back().block = block;
  waits.back().freed_on = &freed_on;
  freed_on.holders.fetch_add(1, std::memory_order_relaxed);
  uses_.wait(waits);
  const own_calls_scope own_calls(*gpu_);
  streams_.poll_uses();
}

result<void> pool::core::record_use(void* ptr, stream_handle stream) noexcept {
  const auto not_live = [] {
    return error{error_code::foreign_pointer,
                 "record_use: the pointer is not a live block of this pool"};
  };
  try {
    heap::extent* const block = blocks_.find(reinterpret_cast<std::uintptr_t>(ptr));
    if (!user_has(block)) return not_live();
    capture_info capture;
    const call_result asked = gpu_->stream_capture(stream, &capture);
    const bool captures = asked.ok() && capture.status != capture_status::none;
    if (captures_.note_use(block, captures)) return {};
    if (captures) {
      return error{
          error_code::not_permitted,
          "record_use: the stream captures; what a graph uses must live as long as the graph"};
    }
    std::uint64_t id = cross_stream_uses::unidentified;
    // A default stream that cannot be asked, beside a blocking stream that captures: asking its
    // identity would break that capture. A fence over the context covers its work.
    const bool may_ask = asked.ok() || asked.status == driver_status::invalid_handle ||
                         asked.status == driver_status::invalid_context;
    if (may_ask) {
      const auto asked_id = identity(stream);
      if (!asked_id) return asked_id.error();
      id = *asked_id;
      int device = 0;
      if (gpu_->stream_device(stream, &device).ok() && device != gpu_->info().ordinal) {
        return error{
            error_code::invalid_argument,
            "record_use: the stream is of device " + std::to_string(device) +
                ", the pool of device " + std::to_string(gpu_->info().ordinal) +
                ": no fence here covers it; make a stream of the pool's device wait for it "
                "and name that"};
      }
    }
    if (auto own = streams_.of_own_context(stream, id, "record_use"); !own) return own;
    caches_.forget_owner(*block);  // whoever frees it looks at its state
    if (!uses_.add_use(block, {stream, id}, [&] { return make_special(*block); }))
      return not_live();  // freed meanwhile
    return {};
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
}

result<pool::block_range> pool::core::find(const void* ptr) {
  const block_store::locked books(blocks_);
  const heap::extent* const block = books.heap().covering(reinterpret_cast<std::uintptr_t>(ptr));
  if (!user_has(block)) {
    return error{error_code::foreign_pointer, "the address is in no live block of this pool"};
  }
  return pool::block_range{reinterpret_cast<void*>(block->start()), block->bytes};
}

}  // namespace millpond
