// The pool asleep: what goes away, what is kept, and what is still answered meanwhile. How memory
// goes and comes back is reported in sleeping_memory.hpp; what a call may do while the pool sleeps,
// in pool.hpp.
#include <algorithm>

#include "driver/relaxed_capture.hpp"
#include "millpond/base/units.hpp"
#include "pool/core.hpp"

namespace millpond {

error pool::core::not_serving() const {
  return asleep() ? error{error_code::not_permitted,
                          "the pool sleeps: wake it before allocating from it"}
                  : error{error_code::not_permitted, "the pool is closed"};
}

result<void> pool::core::set_tag(void* ptr, std::string_view tag) {
  heap::extent* const block = heap_.find(reinterpret_cast<std::uintptr_t>(ptr));
  const auto state =
      block == nullptr
          ? block_state::none
          : static_cast<block_state>(block->holder_state.load(std::memory_order_relaxed));
  if (state != block_state::live && state != block_state::special) {
    return error{error_code::foreign_pointer,
                 "set_tag: the pointer is not a live block of this pool"};
  }
  const std::lock_guard lock(guarded_mutex_);
  tags_[block] = std::string(tag);
  block_owners_.forget(block->start());  // whoever frees it looks at its state
  block->holder_state.store(static_cast<std::uint8_t>(block_state::special),
                            std::memory_order_relaxed);
  return {};
}

result<sleep_outcome> pool::core::sleep(const sleep_options& options) {
  const std::lock_guard sleep_lock(sleep_mutex_);
  if (!serving())
    return error{error_code::not_permitted,
                 asleep() ? "the pool sleeps already" : "the pool is closed"};
  if (granularity_ == 0 || options_.kind != memory_kind::device) {
    return error{error_code::not_supported,
                 std::string("sleep: a ") + to_string(options_.kind) +
                     " pool whose addresses cannot outlive their memory; expected a device pool "
                     "over virtual memory"};
  }
  const relaxed_capture_scope relaxed(*gpu_);
  // As captures_running(), with the driver's words.
  capture_info capture;
  if (const call_result asked = gpu_->stream_capture(legacy_stream, &capture); !asked.ok()) {
    return error{error_code::not_permitted,
                 "sleep, with nothing changed: a capture runs or may run, and waiting for the "
                 "device would break it: " +
                     to_string(asked)};
  }
  if (capturing_count_.load(std::memory_order_relaxed) != 0) {
    return error{error_code::not_permitted,
                 "sleep, with nothing changed: a capture runs that allocated from this pool, and "
                 "waiting for the device would break it"};
  }
  // From here on calls are refused; who was in one has left it, or finds the growth lock taken.
  phase_.store(phase::asleep, std::memory_order_release);
  const auto stay = [&](error why) -> error {
    phase_.store(phase::serving, std::memory_order_release);
    return {why.code, "sleep, with nothing changed: " + why.message};
  };
  flush_caches_of(nullptr);
  if (const call_result answer = gpu_->context_synchronize(); !answer.ok())
    return stay(to_error(answer, "waiting for the device"));
  seal_context();
  poll_fences();
  give_back(0);  // what nobody uses need not come back

  std::unordered_map<const heap::extent*, bool> dropped;
  {
    const std::lock_guard lock(guarded_mutex_);
    for (const auto& [block, tag] : tags_) {
      dropped[block] =
          std::find(options.drop.begin(), options.drop.end(), tag) != options.drop.end();
    }
  }
  const std::lock_guard growing(growth_mutex_);
  sleep_outcome out;
  std::vector<sleeping_memory::span> spans;
  {
    const std::lock_guard lock(heap_mutex_);
    constexpr std::size_t nowhere = ~std::size_t{0};
    std::vector<std::size_t> memory_side_of(heap_.handles().size(),
                                            nowhere);  // in `spans`, by handle
    for (heap::handle_id id = 0; id < heap_.handles().size(); ++id) {
      const auto& handle = heap_.handles()[id];
      if (!handle.present) continue;
      sleeping_memory::span s{
          id,   handle.bytes, {}, handle.mappings.size(), handle.mappings.size(), handle.name,
          true, false,        {}};
      for (const auto& m : handle.mappings) s.addresses.push_back(m.at);
      spans.push_back(std::move(s));
    }
    // By their primary ranges, so that what lies side by side is copied one behind the other.
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
      return (a.addresses.empty() ? 0 : a.addresses.front()) <
             (b.addresses.empty() ? 0 : b.addresses.front());
    });
    for (std::size_t i = 0; i < spans.size(); ++i) memory_side_of[spans[i].key] = i;
    for (const auto& view : heap_.views()) {
      for (const auto& slot : view.slots) {
        if (slot.span == heap::no_span || !slot.active) continue;
        sleeping_memory::span& s = spans[memory_side_of[heap_.spans()[slot.span].handle]];
        const std::uint64_t end = slot.at + slot.bytes;
        for (const heap::extent* x = heap_.extent_at(slot.at); x != nullptr && x->start() < end;
             x = x->after) {
          if (x->state != heap::extent_state::used) continue;
          const auto state = state_of(*x);
          if (state != block_state::live && state != block_state::special) continue;
          const std::uint64_t at = std::max(slot.at, x->start());
          const std::uint64_t bytes = std::min(end, x->end()) - at;
          const auto tagged = dropped.find(x);
          if (tagged != dropped.end() ? tagged->second
                                      : options.untagged == sleep_options::untagged_blocks::drop) {
            out.dropped_bytes += bytes;
            continue;
          }
          sleeping_memory::piece* const last = s.pieces.empty() ? nullptr : &s.pieces.back();
          if (last != nullptr && last->at + last->bytes == at &&
              last->offset + last->bytes == out.kept_bytes) {
            last->bytes += bytes;
          } else {
            s.pieces.push_back({at, bytes, out.kept_bytes});
          }
          out.kept_bytes += bytes;
        }
      }
    }
  }
  std::shared_ptr<pinned_store> store = options.host;
  if (out.kept_bytes > 0) {
    if (store == nullptr) {
      auto made = pinned_store::create(gpu_, out.kept_bytes);
      if (!made) return stay(made.error());
      store = std::move(made).value();
      out.pinned_bytes = store->bytes();
    }
    if (store->bytes() < out.kept_bytes) {
      return stay({error_code::invalid_argument,
                   "the host store has " + format_bytes(store->bytes()) + ", and " +
                       format_bytes(out.kept_bytes) + " are to be kept"});
    }
    if (!sleeping_memory::take_store(*store))
      return stay({error_code::not_permitted, "the host store holds another pool's contents"});
  } else {
    store = nullptr;
  }
  sleeping_memory::failure why;
  if (!sleeping_.put_away(sleeping_ways(), std::move(spans), std::move(store), &why) &&
      !why.stuck) {
    woken();
    return stay(why.what);
  }
  const std::uint64_t bytes = sleeping_.bytes();
  asleep_bytes_.store(bytes, std::memory_order_relaxed);
  {
    const std::lock_guard lock(heap_mutex_);
    reserved_ -= bytes;
  }
  if (why.stuck)
    return error{
        why.what.code,
        "sleep, half done, with all contents kept; the pool sleeps until wake() succeeds: " +
            why.what.message};
  counts_.given_back_bytes.fetch_add(bytes, std::memory_order_relaxed);
  out.released_bytes = bytes;
  return out;
}

result<wake_outcome> pool::core::wake() {
  const std::lock_guard sleep_lock(sleep_mutex_);
  if (!asleep())
    return error{error_code::not_permitted, closed() ? "the pool is closed" : "the pool is awake"};
  const relaxed_capture_scope relaxed(*gpu_);
  const std::lock_guard growing(growth_mutex_);
  sleeping_memory::failure why;
  if (!sleeping_.bring_back(sleeping_ways(), &why)) {
    return error{why.what.code,
                 "wake, and the pool still sleeps with all contents kept: " + why.what.message};
  }
  const wake_outcome out{sleeping_.bytes(), sleeping_.kept_bytes()};
  {
    const std::lock_guard lock(heap_mutex_);
    reserved_ += out.taken_bytes;
    peak_reserved_ = std::max(peak_reserved_, reserved_);
  }
  woken();
  asleep_bytes_.store(0, std::memory_order_relaxed);
  phase_.store(phase::serving, std::memory_order_release);
  return out;
}

sleeping_memory::ways pool::core::sleeping_ways() {
  return {*gpu_, location(),
          [this](physical_handle* out, std::uint64_t bytes) { return create_physical(out, bytes); },
          [this](physical_handle handle, std::uint64_t bytes) {
            return release_physical(handle, bytes);
          }};
}

// Spans that went and came back have new handles.
void pool::core::woken() {
  {
    const std::lock_guard lock(heap_mutex_);
    for (const auto& s : sleeping_.spans())
      heap_.rename_handle(static_cast<heap::handle_id>(s.key), s.handle);
  }
  sleeping_.clear();
}

// Nothing of the device uses the pool's memory while it sleeps, so the block is free for anyone at
// once.
result<void> pool::core::free_unserved(void* ptr, std::uint64_t bytes,
                                       stream_handle stream) noexcept {
  const std::lock_guard sleep_lock(sleep_mutex_);  // a sleep or wake that runs ends first
  if (closed()) return not_serving();
  if (serving()) return slow_free(ptr, bytes, stream, nullptr);
  heap::extent* const block = heap_.find(reinterpret_cast<std::uintptr_t>(ptr));
  const auto state =
      block == nullptr
          ? block_state::none
          : static_cast<block_state>(block->holder_state.load(std::memory_order_relaxed));
  if ((state != block_state::live && state != block_state::special) ||
      (bytes != 0 && bytes != block->requested)) {
    return explain_bad_free(ptr, bytes, stream);
  }
  {
    const std::lock_guard lock(guarded_mutex_);
    uses_.erase(block);
    tags_.erase(block);
  }
  sleeping_.forget(block->start(), block->bytes);
  {
    const std::lock_guard lock(caches_mutex_);
    past_.deallocations.add(1);
    past_.bytes_in.add(block->requested);
  }
  if (block->holder != nullptr) {
    free_in_capture(block, stream, nullptr);
    return {};
  }
  const std::lock_guard lock(heap_mutex_);
  carved_ -= block->bytes;
  block->holder_state.store(static_cast<std::uint8_t>(block_state::none),
                            std::memory_order_relaxed);
  heap_.release(block, heap::anyone, 0, heap::absorb_idle::no);
  return {};
}

}  // namespace millpond
