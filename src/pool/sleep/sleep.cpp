// The pool asleep: what goes away, what is kept, and what is still answered meanwhile. How memory
// goes and comes back is described in sleeping_memory.hpp; what a call may do while the pool
// sleeps, in pool.hpp.
#include <algorithm>
#include <new>

#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "pool/core.hpp"

namespace millpond {
namespace {

// What goes away, by handle, and which parts of it are kept.
class sleep_plan {
 public:
  sleep_plan(const sleep_options& options,
             const std::unordered_map<const heap::extent*, bool>& dropped)
      : options_(options), dropped_(dropped) {}
  // Under the lock of blocks.
  void make(const heap::heap& of);

  std::vector<sleeping_memory::span> spans;
  std::vector<std::size_t> blocks;  // in each span: parts of blocks that are kept
  std::uint64_t kept_bytes = 0, dropped_bytes = 0;

 private:
  void list_handles(const heap::heap& of);
  void add(sleeping_memory::span& to, const heap::extent& block, std::uint64_t at,
           std::uint64_t bytes);
  const sleep_options& options_;
  const std::unordered_map<const heap::extent*, bool>& dropped_;
};

// By the lowest address of each, so that what lies side by side is copied one behind the other.
void sleep_plan::list_handles(const heap::heap& of) {
  for (heap::handle_id id = 0; id < of.handles().size(); ++id) {
    const auto& handle = of.handles()[id];
    if (!handle.present) continue;
    sleeping_memory::span away;
    away.key = id;
    away.bytes = handle.bytes;
    for (const auto& m : handle.mappings) away.addresses.push_back(m.at);
    away.mapped = away.accessible = handle.mappings.size();
    away.handle = handle.name;
    away.held = true;
    spans.push_back(std::move(away));
  }
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
    return (a.addresses.empty() ? 0 : a.addresses.front()) <
           (b.addresses.empty() ? 0 : b.addresses.front());
  });
}

void sleep_plan::make(const heap::heap& of) {
  list_handles(of);
  constexpr std::size_t nowhere = ~std::size_t{0};
  std::vector<std::size_t> place_of(of.handles().size(), nowhere);  // in `spans`, by handle
  for (std::size_t i = 0; i < spans.size(); ++i) place_of[spans[i].key] = i;
  blocks.assign(spans.size(), 0);
  for (const auto& view : of.views()) {
    for (const auto& slot : view.slots) {
      if (slot.span == heap::no_span || !slot.active) continue;
      sleeping_memory::span& to = spans[place_of[of.spans()[slot.span].handle]];
      const std::uint64_t end = slot.at + slot.bytes;
      for (const heap::extent* x = of.extent_at(slot.at); x != nullptr && x->start() < end;
           x = x->after) {
        if (x->state != heap::extent_state::used || !user_has(x)) continue;
        const std::uint64_t at = std::max(slot.at, x->start());
        add(to, *x, at, std::min(end, x->end()) - at);
        ++blocks[static_cast<std::size_t>(&to - spans.data())];
      }
    }
  }
  for (std::size_t i = 0; i < spans.size(); ++i) spans[i].pieces.reserve(blocks[i]);
}

void sleep_plan::add(sleeping_memory::span& to, const heap::extent& block, std::uint64_t at,
                     std::uint64_t bytes) {
  const auto tagged = dropped_.find(&block);
  if (tagged != dropped_.end() ? tagged->second
                               : options_.untagged == sleep_options::untagged_blocks::drop) {
    dropped_bytes += bytes;
    return;
  }
  sleeping_memory::piece* const last = to.pieces.empty() ? nullptr : &to.pieces.back();
  if (last != nullptr && last->at + last->bytes == at && last->offset + last->bytes == kept_bytes) {
    last->bytes += bytes;
  } else {
    to.pieces.push_back({at, bytes, kept_bytes});
  }
  kept_bytes += bytes;
}

}  // namespace

result<void> pool::core::set_tag(void* ptr, std::string_view tag) {
  heap::extent* const block = blocks_.find(reinterpret_cast<std::uintptr_t>(ptr));
  const auto not_live = [] {
    return error{error_code::foreign_pointer,
                 "set_tag: the pointer is not a live block of this pool"};
  };
  if (!user_has(block)) return not_live();
  caches_.forget_owner(*block);  // whoever frees it looks at its state
  try {
    const bool tagged = captures_.tag(
        block, [&] { return uses_.set_tag(block, tag, [&] { return make_special(*block); }); });
    if (!tagged) return not_live();  // freed meanwhile
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
  return {};
}

// A sleep that waits for the device breaks a capture, so it is refused where one may run. As
// capture_watch::may_run(), with the driver's words.
result<void> pool::core::refuse_captures() {
  capture_info capture;
  if (const call_result asked = gpu_->stream_capture(legacy_stream, &capture); !asked.ok()) {
    return error{error_code::not_permitted,
                 "sleep, with nothing changed: a capture runs or may run, and waiting for the "
                 "device would break it: " +
                     to_string(asked)};
  }
  if (watch_.count() != 0) {
    return error{error_code::not_permitted,
                 "sleep, with nothing changed: a capture runs that allocated from this pool, and "
                 "waiting for the device would break it"};
  }
  return {};
}

// Where the kept contents go, taken for this sleep; nullptr where nothing is kept.
result<std::shared_ptr<pinned_store>> pool::core::store_for(const sleep_options& options,
                                                            sleep_outcome& out) {
  if (out.kept_bytes == 0) return std::shared_ptr<pinned_store>();
  std::shared_ptr<pinned_store> store = options.host;
  if (store == nullptr) {
    auto made = pinned_store::create(gpu_, out.kept_bytes);
    if (!made) return made.error();
    store = std::move(made).value();
    out.pinned_bytes = store->bytes();
  }
  if (store->bytes() < out.kept_bytes) {
    return error{error_code::invalid_argument,
                 "the host store has " + format_bytes(store->bytes()) + ", and " +
                     format_bytes(out.kept_bytes) + " are to be kept"};
  }
  if (!sleeping_memory::take_store(*store))
    return error{error_code::not_permitted, "the host store holds another pool's contents"};
  return store;
}

// Whatever is thrown for want of host memory comes from the part that changes nothing of the
// memory: the pool serves on.
result<sleep_outcome> pool::core::sleep(const sleep_options& options) try {
  const std::lock_guard sleep_lock(sleep_mutex_);
  if (!serving())
    return error{error_code::not_permitted,
                 asleep() ? "the pool sleeps already" : "the pool is closed"};
  if (memory_.granularity() == 0 || options_.kind != memory_kind::device) {
    return error{error_code::not_supported,
                 std::string("sleep: a ") + to_string(options_.kind) +
                     " pool whose addresses cannot outlive their memory; expected a device pool "
                     "over virtual memory"};
  }
  const own_calls_scope own_calls(*gpu_);
  if (auto refused = refuse_captures(); !refused) return refused.error();
  // From here on calls are refused; who was in one has left it, or finds the lock of physical
  // memory taken.
  struct falling_asleep {
    pool_phase& of;
    bool serves_on = true;
    explicit falling_asleep(pool_phase& whose) noexcept : of(whose) {
      of.set(pool_phase::is::asleep);
    }
    ~falling_asleep() {
      if (serves_on) of.set(pool_phase::is::serving);
    }
  } falling(phase_);
  const auto stay = [](const error& why) -> error {
    return {why.code, "sleep, with nothing changed: " + why.message};
  };
  caches_.flush(nullptr);
  if (const call_result answer = gpu_->context_synchronize(); !answer.ok())
    return stay(to_error(answer, "waiting for the device"));
  streams_.fence_context();
  streams_.poll();
  memory_.give_back(0);  // what nobody uses need not come back

  const auto dropped = uses_.tagged(options.drop);
  const auto nothing_moves = memory_.hold();
  sleep_plan plan(options, dropped);
  plan.make(block_store::locked(blocks_).heap());
  sleep_outcome out;
  out.kept_bytes = plan.kept_bytes;
  out.dropped_bytes = plan.dropped_bytes;
  auto store = store_for(options, out);
  if (!store) return stay(store.error());
  sleeping_memory::failure why;
  if (!sleeping_.put_away(sleeping_ways(), std::move(plan.spans), std::move(store).value(), &why) &&
      !why.stuck) {
    woken();
    return stay(why.what);
  }
  falling.serves_on = false;
  const std::uint64_t bytes = sleeping_.bytes();
  memory_.fell_asleep(bytes);
  if (why.stuck)
    return error{
        why.what.code,
        "sleep, half done, with all contents kept; the pool sleeps until wake() succeeds: " +
            why.what.message};
  memory_.count_given_back(bytes);
  out.released_bytes = bytes;
  return out;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<wake_outcome> pool::core::wake() try {
  const std::lock_guard sleep_lock(sleep_mutex_);
  if (!asleep())
    return error{error_code::not_permitted, closed() ? "the pool is closed" : "the pool is awake"};
  const own_calls_scope own_calls(*gpu_);
  const auto nothing_moves = memory_.hold();
  sleeping_memory::failure why;
  if (!sleeping_.bring_back(sleeping_ways(), &why)) {
    return error{why.what.code,
                 "wake, and the pool still sleeps with all contents kept: " + why.what.message};
  }
  const wake_outcome out{sleeping_.bytes(), sleeping_.kept_bytes()};
  woken();
  memory_.woke(out.taken_bytes);
  phase_.set(pool_phase::is::serving);
  return out;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

sleeping_memory::ways pool::core::sleeping_ways() {
  return {*gpu_, memory_.location(),
          [this](physical_handle* out, std::uint64_t bytes) { return memory_.create(out, bytes); },
          [this](physical_handle handle, std::uint64_t bytes) {
            return memory_.release(handle, bytes);
          }};
}

// Spans that went and came back have new handles.
void pool::core::woken() {
  {
    const block_store::locked books(blocks_);
    for (const auto& s : sleeping_.spans())
      books.heap().rename_handle(static_cast<heap::handle_id>(s.key), s.handle);
  }
  sleeping_.clear();
}

result<void> pool::core::free_unserved(void* ptr, std::uint64_t bytes,
                                       stream_handle stream) noexcept {
  const std::lock_guard sleep_lock(sleep_mutex_);  // a sleep or wake that runs ends first
  if (closed()) {
    try {
      return not_serving();
    } catch (const std::bad_alloc&) {
      return no_host_memory();
    }
  }
  if (serving()) return slow_free(ptr, bytes, stream, nullptr);
  heap::extent* const block = blocks_.find(reinterpret_cast<std::uintptr_t>(ptr));
  if (!user_has(block) || (bytes != 0 && bytes != block->requested))
    return refuse_free(ptr, bytes, stream);
  const std::uint64_t freed = block->requested;
  caches_.check_frees();
  if (!captures_.free_asleep(block, stream, sleeping_)) return refuse_free(ptr, bytes, stream);
  caches_.count_free(nullptr, freed);
  return {};
}

}  // namespace millpond
