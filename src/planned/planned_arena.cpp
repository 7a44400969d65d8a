// The arenas of a planned stream: the blocks behind its plans, the graphs that hold one, and
// the stream that orders them.
//
// One arena serves the stream's own iterations, in stream order. Another belongs to captured
// graphs: a graph may be launched at any time, so nothing else is ever put there while a graph
// lives, and it must be idle, as the host has seen, when the first capture takes it.
#include <new>
#include <optional>

#include "driver/insist.hpp"
#include "driver/own_calls.hpp"
#include "driver/when_graph_is_gone.hpp"
#include "planned/planned_stream.hpp"
#include "resource/quiet_stream.hpp"
#include "resource/wait.hpp"

namespace millpond::detail {
namespace {

bool pinned(const graph_pins& pins) {
  return pins != nullptr && pins->load(std::memory_order_acquire) != 0;
}

}  // namespace

bool planned_arena::holds(const void* ptr) const noexcept {
  const auto* const from = at.load(std::memory_order_relaxed);
  const auto offset =
      reinterpret_cast<std::uintptr_t>(ptr) - reinterpret_cast<std::uintptr_t>(from);
  return from != nullptr && offset < bytes.load(std::memory_order_relaxed);
}

planned_arena::block planned_arena::take() noexcept {
  const block out{at.load(std::memory_order_relaxed), bytes.load(std::memory_order_relaxed)};
  put({nullptr, 0});
  return out;
}

void planned_arena::put(block of) noexcept {
  at.store(of.at, std::memory_order_relaxed);
  bytes.store(of.bytes, std::memory_order_relaxed);
}

planned_stream_state::~planned_stream_state() {
  if (forked()) return;
  driver* const gpu = owner_.gpu();
  stream_handle on = stream_;
  std::optional<own_calls_scope> own_calls;  // over the frees too: of our context's streams
  if (gpu != nullptr && gpu->alive()) {
    own_calls.emplace(*gpu);
    const call_result ordered = order_the_end(&on);
    if (served_ != nullptr) static_cast<void>(insist([&] { return gpu->event_destroy(served_); }));
    if (!ordered.ok()) {
      owner_.report(to_error(ordered,
                             "planned_resource: its arenas stay with the upstream, since "
                             "work may still use them"));
      return;
    }
  }
  const auto give_back = [&](const planned_arena::block& of) {
    owner_.upstream().deallocate(of.at, of.bytes, on);
  };
  give_back(arena_.take());
  give_back(graph_arena_.take());
  for (const former_arena& each : former_) give_back(each.of);
}

// On which stream, in the order of all work that may use them, the arenas go back. The planned
// stream may be gone, so that nothing names it but what keeps its handle.
call_result planned_stream_state::order_the_end(stream_handle* on) noexcept {
  driver& gpu = *owner_.gpu();
  const bool stays = keeps_its_handle(stream_);
  if (arena_.size() == 0 && graph_arena_.size() == 0 && former_.empty()) return {};
  // Graphs ran anywhere, what was set aside is behind no event, and neither is an iteration that
  // is still open: a moment's wait, once.
  const bool open = arena_.size() > 0 && !stays && (!marked_ || !held_.empty());
  const bool unsure = graph_arena_.size() > 0 || !former_.empty() || open;
  if (unsure) {
    if (const call_result waited = insist([&] { return wait_for_device(gpu); }); !waited.ok())
      return waited;
  }
  if (stays) return {};
  if (const call_result made = owner_.quiet_->get(gpu, on); !made.ok()) return made;
  if (unsure || gpu.event_query(served_).ok()) return {};
  return insist([&] { return gpu.stream_wait_event(*on, served_); });
}

bool planned_stream_state::in_arena(const void* ptr) const {
  return arena_.holds(ptr) || graph_arena_.holds(ptr);
}

void planned_stream_state::set_aside(planned_arena& of, graph_pins pins) {
  const planned_arena::block left = of.take();
  if (left.at == nullptr) return;
  former_.push_back({left, std::move(pins)});
  former_added_.add(left.bytes);
}

void planned_stream_state::give_back_former() {
  std::erase_if(former_, [&](const former_arena& each) {
    if (each.pins == nullptr || pinned(each.pins)) return false;
    owner_.upstream().deallocate(each.of.at, each.of.bytes, stream_);
    owner_.arena_bytes_.fetch_sub(each.of.bytes, std::memory_order_relaxed);
    former_removed_.add(each.of.bytes);
    return true;
  });
}

// The arena of the stream's own iterations, at least so large.
planned_stream_state::growth planned_stream_state::grow_arena(std::uint64_t bytes) {
  if (bytes <= arena_.size()) return growth::done;
  // For the end, when the stream may be gone.
  if (stream_handle later = nullptr;
      owner_.gpu() != nullptr && !owner_.quiet_->get(*owner_.gpu(), &later).ok())
    return growth::refused;
  // An arena made in a capture would belong to its graph; one that has live blocks stays.
  if (!held_.empty() || capture_.status != capture_status::none) return growth::refused;
  if (graph_arena_.size() > 0 && !pinned(pins_))
    set_aside(graph_arena_, std::exchange(pins_, std::make_shared<pin_count>(0)));
  give_back_former();
  const std::uint64_t now = arena_.size();
  const std::uint64_t before =
      owner_.arena_bytes_.fetch_add(bytes - now, std::memory_order_relaxed);
  if (before > owner_.options_.budget_bytes ||
      owner_.options_.budget_bytes - before < bytes - now) {
    owner_.arena_bytes_.fetch_sub(bytes - now, std::memory_order_relaxed);
    return growth::over_budget;
  }
  // The old arena first: nothing of it is live, and both at once may not fit.
  const planned_arena::block old = arena_.take();
  if (old.at != nullptr) owner_.upstream().deallocate(old.at, old.bytes, stream_);
  auto made = from_upstream(bytes, default_alignment);
  if (!made) {
    owner_.arena_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return growth::refused;
  }
  arena_.put({static_cast<std::byte*>(*made), bytes});
  return growth::done;
}

// For a capture: its graph holds the graphs' arena where it is. That is made of the stream's own,
// once it is idle.
bool planned_stream_state::pin_for_capture(std::uint64_t bytes) {
  if (graph_arena_.size() < bytes) {
    if (arena_.size() < bytes || !held_.empty()) return false;
    if (!own_work_is_done()) {
      counts_.stream_waits.add(1);
      return false;
    }
    set_aside(graph_arena_, std::exchange(pins_, std::make_shared<pin_count>(0)));
    graph_arena_.put(arena_.take());
    pinned_capture_ = 0;
  }
  if (pinned_capture_ == capture_.id) return true;
  pins_->fetch_add(1, std::memory_order_relaxed);
  // Release: the planned stream's acquire comes after all that the graph's owner did before.
  const auto unpin = [of = pins_] { of->fetch_sub(1, std::memory_order_release); };
  if (!when_graph_is_gone(*owner_.gpu(), capture_.graph, unpin).ok()) {
    pins_->fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  pinned_capture_ = capture_.id;
  return true;
}

// All that was put on the stream up to the last end(), as the host has seen.
bool planned_stream_state::own_work_is_done() noexcept {
  if (!marked_) return false;
  driver& gpu = *owner_.gpu();
  const own_calls_scope own_calls(gpu);
  return own_calls.entered().ok() && gpu.event_query(served_).ok();
}

void planned_stream_state::forget_gone_graphs() {
  std::erase_if(held_, [&](const held_range& each) {
    if (each.freed_to == nullptr || pinned(each.freed_to)) return false;
    marked_ = false;
    return true;
  });
}

result<graph_pins> planned_stream_state::pin_for_free() noexcept {
  driver* const gpu = owner_.gpu();
  capture_info now;
  if (gpu == nullptr || keeps_its_handle(stream_) || !gpu->stream_capture(stream_, &now).ok() ||
      now.status != capture_status::active)
    return graph_pins();
  if (freed_to_ != nullptr && freed_to_capture_ == now.id) return freed_to_;
  const error refused{error_code::not_permitted,
                      "planned block: it was given outside the capture that frees it, whose graph "
                      "cannot be made to keep it; the block stays: free it after the capture"};
  try {
    auto made = std::make_shared<pin_count>(1);
    const auto unpin = [made] { made->fetch_sub(1, std::memory_order_release); };
    if (!when_graph_is_gone(*gpu, now.graph, unpin).ok()) return refused;
    freed_to_ = std::move(made);
    freed_to_capture_ = now.id;
    return freed_to_;
  } catch (const std::bad_alloc&) {
    return refused;
  }
}

bool planned_stream_state::ask_capture() noexcept {
  driver* const gpu = owner_.gpu();
  capture_ = {};
  if (gpu == nullptr) return true;
  call_result answer = gpu->stream_capture(stream_, &capture_);
  if (answer.status == driver_status::invalid_context && gpu->bind_thread().ok())
    answer = gpu->stream_capture(stream_, &capture_);
  return answer.ok();
}

// Asks what the stream is now. False: no arena may serve this iteration.
bool planned_stream_state::stream_is_ready() {
  if (!ask_capture()) return false;
  driver* const gpu = owner_.gpu();
  if (gpu == nullptr) return true;
  // A capturing stream refuses to be asked for its identity; it cannot be destroyed either.
  if (capture_.status != capture_status::none) return capture_.status == capture_status::active;
  std::uint64_t id = 0;
  if (!gpu->stream_id(stream_, &id).ok()) return false;
  if (stream_id_ == 0 || keeps_its_handle(stream_)) stream_id_ = id;
  if (id == stream_id_) return true;
  if (arena_.size() > 0) {
    if (mode_ == mode::serving || !held_.empty() || !marked_) {
      // Work that no event of ours is behind.
      end();
      set_aside(arena_, nullptr);
    } else if (!own_work_is_done()) {
      counts_.stream_waits.add(1);
      return false;
    }
  }
  marked_ = false;
  stream_id_ = id;
  return true;
}

// Behind all that this iteration put on the stream.
void planned_stream_state::mark_end() noexcept {
  driver* const gpu = owner_.gpu();
  marked_ = false;
  if (gpu == nullptr || keeps_its_handle(stream_) || capture_.status != capture_status::none)
    return;
  std::uint64_t id = 0;
  if (!gpu->stream_id(stream_, &id).ok() || id != stream_id_)
    return;  // too late: the stream is gone
  if (served_ == nullptr) {
    const own_calls_scope own_calls(*gpu);
    if (!own_calls.entered().ok() || !gpu->event_create(&served_).ok()) return;
  }
  marked_ = gpu->event_record(served_, stream_).ok();
}

}  // namespace millpond::detail
