#include "resource/planned_lane.hpp"

#include <algorithm>

#include "base/bits.hpp"

namespace millpond::detail {
namespace {

// How far ahead a size is looked for when it is not the next: a program that leaves a block out is found again.
constexpr std::uint32_t look_ahead = 16;
// An iteration deviated when this part of its steps did.
constexpr std::uint64_t deviating_part = 20;

}  // namespace

planned_lane_state::~planned_lane_state() {
  std::byte* const arena = arena_.load(std::memory_order_relaxed);
  if (arena != nullptr) owner_.upstream().deallocate(arena, arena_bytes_.load(std::memory_order_relaxed), stream_);
}

result<void*> planned_lane_state::from_upstream(std::uint64_t bytes, std::uint64_t alignment) {
  return owner_.upstream().try_allocate(bytes, alignment, stream_);
}

bool planned_lane_state::in_arena(const void* ptr) const {
  const auto* const arena = arena_.load(std::memory_order_relaxed);
  const auto at = reinterpret_cast<std::uintptr_t>(ptr) - reinterpret_cast<std::uintptr_t>(arena);
  return arena != nullptr && at < arena_bytes_.load(std::memory_order_relaxed);
}

bool planned_lane_state::grow_arena(std::uint64_t bytes) {
  const std::uint64_t now = arena_bytes_.load(std::memory_order_relaxed);
  if (bytes <= now) return true;
  if (!held_.empty()) return false;
  const std::uint64_t before = owner_.arena_bytes_.fetch_add(bytes - now, std::memory_order_relaxed);
  const auto give_up = [&] {
    owner_.arena_bytes_.fetch_sub(bytes - now, std::memory_order_relaxed);
    return false;
  };
  if (before > owner_.options_.budget_bytes || owner_.options_.budget_bytes - before < bytes - now) {
    ++counters_.over_budget;
    return give_up();
  }
  // The old arena first: nothing of it is live, and both at once may not fit.
  if (now > 0) owner_.upstream().deallocate(arena_.load(std::memory_order_relaxed), now, stream_);
  arena_.store(nullptr, std::memory_order_relaxed);
  arena_bytes_.store(0, std::memory_order_relaxed);
  auto made = from_upstream(bytes, default_alignment);
  if (!made) {
    owner_.arena_bytes_.fetch_sub(now, std::memory_order_relaxed);
    return give_up();
  }
  arena_.store(static_cast<std::byte*>(*made), std::memory_order_relaxed);
  arena_bytes_.store(bytes, std::memory_order_relaxed);
  return true;
}

void planned_lane_state::begin(std::uint64_t key) {
  end();
  ++counters_.iterations;
  key_ = key;
  deviated_ = 0;
  const auto known = shapes_.find(key);
  if (known == shapes_.end()) {
    ++counters_.recorded;
    mode_ = mode::recording;
    return;
  }
  shape_ = &known->second;
  if (!grow_arena(shape_->peak)) {
    mode_ = mode::passing;
    return;
  }
  mode_ = mode::serving;
  next_ = 0;
  freed_ = 0;
  states_.assign(shape_->steps.size(), state::waiting);
  live_in_slot_.assign(shape_->slot_offset.size(), 0);
}

void planned_lane_state::end() {
  if (mode_ == mode::recording) {
    auto shape = recorder_.finish(owner_.options_.planning_steps);
    if (shape) {
      if (shape->peak >= counters_.planned_bytes) {
        counters_.planned_bytes = shape->peak;
        counters_.lower_bound_bytes = shape->lower_bound;
      }
      shapes_[key_] = std::move(*shape);
    }
  } else if (mode_ == mode::serving) {
    for (std::size_t s = 0; s < states_.size(); ++s)
      if (states_[s] == state::live)
        held_.push_back({shape_->steps[s].offset, align_up(shape_->steps[s].bytes, default_alignment)});
    deviated_ += shape_->steps.size() - next_;
    shape_->bad_in_a_row = deviated_ * deviating_part > shape_->steps.size() ? shape_->bad_in_a_row + 1 : 0;
    if (shape_->bad_in_a_row >= owner_.options_.relearn_after) shapes_.erase(key_);
    shape_ = nullptr;
  }
  mode_ = mode::idle;
}

result<void*> planned_lane_state::allocate(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t site) {
  if (bytes == 0) return static_cast<void*>(nullptr);
  if (mode_ == mode::serving) {
    if (next_ < shape_->steps.size()) [[likely]] {
      const planned_step& step = shape_->steps[next_];
      if (step.bytes == bytes && step.site == site) [[likely]] return serve(next_, alignment);
    }
    return deviate(bytes, alignment, site);
  }
  auto made = from_upstream(bytes, alignment);
  if (made && mode_ == mode::recording) recorder_.allocated(*made, bytes, site, alignment <= default_alignment);
  if (made && mode_ != mode::idle) ++counters_.upstream;
  return made;
}

result<void*> planned_lane_state::serve(std::uint32_t step, std::uint64_t alignment) {
  const planned_step& of = shape_->steps[step];
  next_ = step + 1;
  if (of.offset == planned_step::upstream || alignment > default_alignment) {
    states_[step] = state::done;
    if (of.offset != planned_step::upstream) {
      ++deviated_;
      ++counters_.deviations;
      advance_freed();
    } else {
      ++counters_.upstream;
    }
    return from_upstream(of.bytes, alignment);
  }
  if ((freed_ < of.frees_before || !held_.empty()) && !is_clear(of)) [[unlikely]] {
    states_[step] = state::done;
    ++deviated_;
    ++counters_.late_frees;
    advance_freed();
    return from_upstream(of.bytes, alignment);
  }
  states_[step] = state::live;
  live_in_slot_[of.slot] = step;
  ++counters_.served;
  return static_cast<void*>(arena_.load(std::memory_order_relaxed) + of.offset);
}

result<void*> planned_lane_state::deviate(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t site) {
  const auto end = static_cast<std::uint32_t>(std::min<std::size_t>(shape_->steps.size(), std::size_t{next_} + look_ahead));
  for (std::uint32_t s = next_; s < end; ++s) {
    if (shape_->steps[s].bytes != bytes || shape_->steps[s].site != site) continue;
    for (std::uint32_t left_out = next_; left_out < s; ++left_out) states_[left_out] = state::done;
    counters_.skipped += s - next_;
    deviated_ += s - next_;
    advance_freed();
    return serve(s, alignment);
  }
  ++deviated_;
  ++counters_.deviations;
  return from_upstream(bytes, alignment);
}

bool planned_lane_state::is_clear(const planned_step& of) const {
  const std::uint64_t end = of.offset + align_up(of.bytes, default_alignment);
  const auto overlaps = [&](std::uint64_t offset, std::uint64_t bytes) { return offset < end && of.offset < offset + bytes; };
  for (const held_range& held : held_)
    if (overlaps(held.offset, held.bytes)) return false;
  for (std::uint32_t f = freed_; f < of.frees_before; ++f) {
    const std::uint32_t earlier = shape_->free_order[f];
    if (states_[earlier] == state::live &&
        overlaps(shape_->steps[earlier].offset, align_up(shape_->steps[earlier].bytes, default_alignment)))
      return false;
  }
  return true;
}

void planned_lane_state::advance_freed() {
  while (freed_ < shape_->free_order.size() && states_[shape_->free_order[freed_]] == state::done) ++freed_;
}

result<void> planned_lane_state::deallocate(void* ptr, std::uint64_t bytes) noexcept {
  if (!in_arena(ptr)) {
    if (mode_ == mode::recording) recorder_.freed(ptr);
    return owner_.upstream().try_deallocate(ptr, bytes, stream_);
  }
  const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(ptr) - arena_.load(std::memory_order_relaxed));
  if (mode_ == mode::serving) {
    if (freed_ < shape_->free_order.size()) {
      const std::uint32_t step = shape_->free_order[freed_];
      if (states_[step] == state::live && shape_->steps[step].offset == offset) [[likely]] {
        states_[step] = state::done;
        ++freed_;
        advance_freed();
        return {};
      }
    }
    const auto slot = std::lower_bound(shape_->slot_offset.begin(), shape_->slot_offset.end(), offset);
    if (slot != shape_->slot_offset.end() && *slot == offset) {
      const std::uint32_t step = live_in_slot_[static_cast<std::size_t>(slot - shape_->slot_offset.begin())];
      if (states_[step] == state::live && shape_->steps[step].offset == offset) {
        states_[step] = state::done;
        advance_freed();
        return {};
      }
    }
  }
  const auto held = std::find_if(held_.begin(), held_.end(), [&](const held_range& h) { return h.offset == offset; });
  if (held != held_.end()) {
    held_.erase(held);
    return {};
  }
  return error{error_code::double_free, "this place of the plan is not live: freed twice, or never given"};
}

planned_counters planned_lane_state::counters() const {
  planned_counters out = counters_;
  out.arena_bytes = arena_bytes_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace millpond::detail
