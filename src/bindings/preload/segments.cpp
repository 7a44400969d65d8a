#include "bindings/preload/segments.hpp"

#include <algorithm>

#include "base/bits.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"

namespace millpond::preload {
namespace {
// cuMemAlloc takes 2 MiB pages for what is 1 MiB or larger; below, small requests share one.
std::uint64_t segment_bytes(std::uint64_t bytes) {
  return align_up(bytes, bytes < MiB ? std::uint64_t{512} : 2 * MiB);
}
}  // namespace

segments::~segments() {
  const own_calls_scope own_calls(*gpu_);
  trim_locked();
  for (const auto& [at, bytes] : live_) static_cast<void>(gpu_->memory_free(at));
}

device_address segments::allocate(std::uint64_t bytes) {
  const std::uint64_t size = segment_bytes(bytes);
  const std::lock_guard lock(mutex_);
  // An eighth too large is near enough: less is wasted than by another segment.
  if (const auto found = kept_.lower_bound(size);
      found != kept_.end() && found->first <= size + size / 8) {
    const device_address at = found->second;
    live_[at] = found->first;
    now_.live += found->first;
    kept_.erase(found);
    return at;
  }
  if (limit_ != 0 && now_.reserved + size > limit_) trim_locked();
  if (limit_ != 0 && now_.reserved + size > limit_) return 0;
  const own_calls_scope own_calls(*gpu_);
  device_address at = 0;
  if (!gpu_->memory_allocate(&at, size).ok()) {
    trim_locked();
    if (!gpu_->memory_allocate(&at, size).ok()) return 0;
  }
  live_[at] = size;
  now_.live += size;
  now_.reserved += size;
  now_.peak_reserved = std::max(now_.peak_reserved, now_.reserved);
  return at;
}

bool segments::deallocate(device_address at) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(at);
  if (found == live_.end()) return false;
  now_.live -= found->second;
  kept_.emplace(found->second, at);
  live_.erase(found);
  return true;
}

bool segments::owns(device_address at) const {
  const std::lock_guard lock(mutex_);
  return live_.contains(at);
}

bool segments::keeps(device_address at) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(kept_.begin(), kept_.end(),
                     [at](const auto& each) { return each.second == at; });
}

void segments::trim() {
  const std::lock_guard lock(mutex_);
  trim_locked();
}

void segments::trim_locked() {
  const own_calls_scope own_calls(*gpu_);
  for (const auto& [bytes, at] : kept_) {
    if (gpu_->memory_free(at).ok()) now_.reserved -= bytes;
  }
  kept_.clear();
}

segments::numbers segments::count() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

}  // namespace millpond::preload
