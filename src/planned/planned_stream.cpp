#include "planned/planned_stream.hpp"

#include <algorithm>
#include <new>
#include <string>

#include "base/bits.hpp"

namespace millpond::detail {
namespace {

// How far ahead a size is looked for when it is not the next: a program that leaves a block out is
// found again.
constexpr std::uint32_t look_ahead = 16;
// An iteration deviated when this part of its steps did.
constexpr std::uint64_t deviating_part = 20;

}  // namespace

result<void*> planned_stream_state::from_upstream(std::uint64_t bytes, std::uint64_t alignment) {
  return owner_.upstream().try_allocate(bytes, alignment, stream_);
}

void planned_stream_state::begin(std::uint64_t key) {
  if (forked()) return;
  const bool ready = stream_is_ready();  // first: what an open iteration left behind depends on it
  end();
  forget_gone_graphs();
  counts_.iterations.add(1);
  key_ = key;
  deviated_ = 0;
  const auto known = shapes_.find(key);
  if (known == shapes_.end()) {
    counts_.recorded.add(1);
    mode_ = mode::recording;
    return;
  }
  mode_ = mode::passing;
  known->second.last_begun = counts_.iterations.get();
  if (!ready) return;
  const std::uint64_t peak = known->second.peak;
  if (capture_.status == capture_status::active) {
    if (!pin_for_capture(peak)) return;
    base_ = graph_arena_.at.load(std::memory_order_relaxed);
  } else {
    const growth grown = grow_arena(peak);
    if (grown == growth::over_budget) counts_.over_budget.add(1);
    if (grown != growth::done) return;
    base_ = arena_.at.load(std::memory_order_relaxed);
    marked_ = false;  // what this iteration does is behind no event before its end
  }
  shape_ = &known->second;
  mode_ = mode::serving;
  next_ = 0;
  freed_ = 0;
  states_.assign(shape_->steps.size(), state::waiting);
  live_in_slot_.assign(shape_->slot_offset.size(), 0);
}

void planned_stream_state::remember(planned_shape&& shape) {
  if (shapes_.size() >= std::max<std::uint64_t>(owner_.options_.most_shapes, 1) &&
      !shapes_.contains(key_)) {
    shapes_.erase(std::min_element(
        shapes_.begin(), shapes_.end(),
        [](const auto& a, const auto& b) { return a.second.last_begun < b.second.last_begun; }));
    counts_.forgotten.add(1);
  }
  if (shape.peak >= planned_bytes_.load(std::memory_order_relaxed)) {
    planned_bytes_.store(shape.peak, std::memory_order_relaxed);
    lower_bound_bytes_.store(shape.lower_bound, std::memory_order_relaxed);
  }
  shape.last_begun = counts_.iterations.get();
  shapes_[key_] = std::move(shape);
}

void planned_stream_state::end() {
  if (forked()) return;
  if (mode_ == mode::recording) {
    mode_ = mode::idle;
    auto shape = recorder_.finish(owner_.options_.planning_steps);
    if (!shape) return;
    const std::uint64_t peak = shape->peak;
    remember(std::move(*shape));
    // Now, so that the next iteration may be captured. begin() asks again for what is refused here.
    if (ask_capture() && capture_.status == capture_status::none) {
      static_cast<void>(grow_arena(peak));
      mark_end();
    }
  } else if (mode_ == mode::serving) {
    mode_ = mode::idle;
    keep_live_blocks();
    const bool own = capture_.status == capture_status::none;
    if (own && ask_capture()) mark_end();
    deviated_ += shape_->steps.size() - next_;
    shape_->bad_in_a_row =
        deviated_ * deviating_part > shape_->steps.size() ? shape_->bad_in_a_row + 1 : 0;
    if (shape_->bad_in_a_row >= owner_.options_.relearn_after) shapes_.erase(key_);
    shape_ = nullptr;
  }
  mode_ = mode::idle;
}

// All of them or, where it throws bad_alloc, none.
void planned_stream_state::keep_live_blocks() {
  const auto live = std::count(states_.begin(), states_.end(), state::live);
  held_.reserve(held_.size() + static_cast<std::size_t>(live));
  for (std::size_t s = 0; s < states_.size(); ++s)
    if (states_[s] == state::live)
      held_.push_back({base_ + shape_->steps[s].offset, shape_->steps[s].bytes});
}

// Whether the stream captures what it captured at begin(), or still nothing: what is served in a
// capture is its graph's for as long as that lives, and what is served outside is not.
bool planned_stream_state::as_begun() noexcept {
  driver* const gpu = owner_.gpu();
  if (!owner_.options_.asks_each_block || gpu == nullptr) return true;
  capture_info now;
  call_result asked = gpu->stream_capture(stream_, &now);
  if (asked.status == driver_status::invalid_context && gpu->bind_thread().ok())
    asked = gpu->stream_capture(stream_, &now);
  return asked.ok() && now.status == capture_.status && now.id == capture_.id;
}

// The rest of the iteration is the upstream's.
result<void> planned_stream_state::leave_plan() noexcept {
  try {
    keep_live_blocks();
  } catch (const std::bad_alloc&) {
    return error{
        error_code::out_of_memory,
        "planned block: no host memory to keep the iteration's blocks apart from a capture "
        "that began or ended in it; all is as before"};
  }
  shape_ = nullptr;
  mode_ = mode::passing;
  return {};
}

result<void*> planned_stream_state::allocate(std::uint64_t bytes, std::uint64_t alignment,
                                             std::uint64_t site) {
  if (forked()) [[unlikely]]
    return from_upstream(bytes, alignment);  // which refuses, and says why
  if (bytes == 0) return static_cast<void*>(nullptr);
  if (mode_ == mode::serving && !as_begun()) [[unlikely]] {
    if (auto left = leave_plan(); !left) return left.error();
  }
  if (mode_ == mode::serving) {
    if (next_ < shape_->steps.size()) [[likely]] {
      const planned_step& step = shape_->steps[next_];
      if (step.bytes == bytes && step.site == site) [[likely]]
        return serve(next_, alignment);
    }
    return deviate(bytes, alignment, site);
  }
  auto made = from_upstream(bytes, alignment);
  if (made && mode_ == mode::recording)
    recorder_.allocated(*made, bytes, site, alignment <= default_alignment);
  if (made && mode_ != mode::idle) counts_.upstream.add(1);
  return made;
}

result<void*> planned_stream_state::serve(std::uint32_t step, std::uint64_t alignment) {
  const planned_step& of = shape_->steps[step];
  next_ = step + 1;
  if (of.offset == planned_step::upstream || alignment > default_alignment) {
    states_[step] = state::done;
    if (of.offset != planned_step::upstream) {
      ++deviated_;
      counts_.deviations.add(1);
      advance_freed();
    } else {
      counts_.upstream.add(1);
    }
    return from_upstream(of.bytes, alignment);
  }
  if ((freed_ < of.frees_before || !held_.empty()) && !is_clear(of)) [[unlikely]] {
    states_[step] = state::done;
    ++deviated_;
    counts_.late_frees.add(1);
    advance_freed();
    return from_upstream(of.bytes, alignment);
  }
  states_[step] = state::live;
  live_in_slot_[of.slot] = step;
  counts_.served.add(1);
  return static_cast<void*>(base_ + of.offset);
}

result<void*> planned_stream_state::deviate(std::uint64_t bytes, std::uint64_t alignment,
                                            std::uint64_t site) {
  const auto end = static_cast<std::uint32_t>(
      std::min<std::size_t>(shape_->steps.size(), std::size_t{next_} + look_ahead));
  for (std::uint32_t s = next_; s < end; ++s) {
    if (shape_->steps[s].bytes != bytes || shape_->steps[s].site != site) continue;
    for (std::uint32_t left_out = next_; left_out < s; ++left_out) states_[left_out] = state::done;
    counts_.skipped.add(s - next_);
    deviated_ += s - next_;
    advance_freed();
    return serve(s, alignment);
  }
  ++deviated_;
  counts_.deviations.add(1);
  return from_upstream(bytes, alignment);
}

bool planned_stream_state::is_clear(const planned_step& of) const {
  const auto overlaps = [&](const std::byte* at, std::uint64_t bytes) {
    return at < base_ + of.offset + align_up(of.bytes, default_alignment) &&
           base_ + of.offset < at + align_up(bytes, default_alignment);
  };
  for (const held_range& held : held_)
    if (overlaps(held.at, held.bytes)) return false;
  for (std::uint32_t f = freed_; f < of.frees_before; ++f) {
    const std::uint32_t earlier = shape_->free_order[f];
    if (states_[earlier] == state::live &&
        overlaps(base_ + shape_->steps[earlier].offset, shape_->steps[earlier].bytes))
      return false;
  }
  return true;
}

void planned_stream_state::advance_freed() {
  while (freed_ < shape_->free_order.size() && states_[shape_->free_order[freed_]] == state::done)
    ++freed_;
}

bool planned_stream_state::is_step(std::uint32_t step, std::uint64_t offset) const {
  return states_[step] == state::live && shape_->steps[step].offset == offset;
}

result<void> planned_stream_state::deallocate(void* ptr, std::uint64_t bytes) noexcept {
  if (forked()) [[unlikely]]
    return owner_.upstream().try_deallocate(ptr, bytes, stream_);
  if (mode_ == mode::serving && !as_begun()) [[unlikely]] {
    if (auto left = leave_plan(); !left) return left;
  }
  if (mode_ == mode::serving) [[likely]] {
    // Below base_ this wraps to more than any offset.
    const auto offset =
        reinterpret_cast<std::uintptr_t>(ptr) - reinterpret_cast<std::uintptr_t>(base_);
    if (freed_ < shape_->free_order.size()) {
      const std::uint32_t step = shape_->free_order[freed_];
      if (is_step(step, offset) && shape_->steps[step].bytes == bytes) [[likely]] {
        states_[step] = state::done;
        ++freed_;
        advance_freed();
        return {};
      }
    }
  }
  if (in_arena(ptr) || !held_.empty()) {
    auto answer = free_planned(static_cast<std::byte*>(ptr), bytes);
    if (answer || answer.error().code != error_code::foreign_pointer) return answer;
  }
  if (mode_ == mode::recording) recorder_.freed(ptr);
  return owner_.upstream().try_deallocate(ptr, bytes, stream_);
}

// A free out of order, of a block from an iteration before, or a wrong one. foreign_pointer: not in
// an arena of ours.
result<void> planned_stream_state::free_planned(std::byte* at, std::uint64_t bytes) noexcept {
  const auto wrong_size = [&](std::uint64_t asked) {
    return error{error_code::invalid_argument, "planned block: the free says " +
                                                   std::to_string(bytes) +
                                                   " bytes, the allocation asked for " +
                                                   std::to_string(asked) + "; the block stays"};
  };
  const auto interior = [&](std::uint64_t into) {
    return error{error_code::interior_pointer, "planned block: the free points " +
                                                   std::to_string(into) +
                                                   " bytes into it; the block stays"};
  };
  if (mode_ == mode::serving) {
    const auto offset =
        reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(base_);
    const auto slot =
        std::lower_bound(shape_->slot_offset.begin(), shape_->slot_offset.end(), offset);
    if (slot != shape_->slot_offset.end() && *slot == offset) {
      const std::uint32_t step =
          live_in_slot_[static_cast<std::size_t>(slot - shape_->slot_offset.begin())];
      if (is_step(step, offset)) {
        if (bytes != 0 && bytes != shape_->steps[step].bytes)
          return wrong_size(shape_->steps[step].bytes);
        states_[step] = state::done;
        advance_freed();
        return {};
      }
    }
  }
  for (auto held = held_.begin(); held != held_.end(); ++held) {
    if (held->freed_to != nullptr) continue;
    if (at == held->at) {
      if (bytes != 0 && bytes != held->bytes) return wrong_size(held->bytes);
      return free_held(held);
    }
    if (at > held->at && at < held->at + held->bytes)
      return interior(static_cast<std::uint64_t>(at - held->at));
  }
  if (!in_arena(at)) return error{error_code::foreign_pointer, "not a planned block"};
  if (mode_ == mode::serving)
    for (std::size_t s = 0; s < states_.size(); ++s) {
      const std::byte* const block = base_ + shape_->steps[s].offset;
      if (states_[s] == state::live && at > block && at < block + shape_->steps[s].bytes)
        return interior(static_cast<std::uint64_t>(at - block));
    }
  return error{error_code::double_free,
               "this place of the plan is not live: freed twice, or never given"};
}

result<void> planned_stream_state::free_held(std::vector<held_range>::iterator held) noexcept {
  graph_pins graph;
  if (arena_.holds(held->at)) {
    auto pinned = pin_for_free();
    if (!pinned) return pinned.error();
    graph = std::move(*pinned);
  }
  if (graph != nullptr) {
    held->freed_to = std::move(graph);
    return {};
  }
  held_.erase(held);
  marked_ = false;  // it may have been used since the last end()
  return {};
}

planned_counters planned_stream_state::counters() const {
  planned_counters out;
  out.iterations = counts_.iterations.get();
  out.recorded = counts_.recorded.get();
  out.served = counts_.served.get();
  out.upstream = counts_.upstream.get();
  out.deviations = counts_.deviations.get();
  out.late_frees = counts_.late_frees.get();
  out.skipped = counts_.skipped.get();
  out.over_budget = counts_.over_budget.get();
  out.stream_waits = counts_.stream_waits.get();
  out.forgotten = counts_.forgotten.get();
  out.arena_bytes =
      arena_.size() + graph_arena_.size() + former_added_.get() - former_removed_.get();
  out.planned_bytes = planned_bytes_.load(std::memory_order_relaxed);
  out.lower_bound_bytes = lower_bound_bytes_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace millpond::detail
