#include "pool/capture/capture_watch.hpp"

#include <algorithm>
#include <new>

#include "pool/cache/thread_cache.hpp"

namespace millpond {

void capture_watch::note(stream_handle stream, std::uint64_t capture_id) noexcept {
  const std::uint64_t key = key_of(stream);
  const mutex_lock lock(mutex_);
  const auto known = std::find_if(capturing_.begin(), capturing_.end(),
                                  [&](const capturing& c) { return c.key == key; });
  if (known != capturing_.end()) {
    if (capture_id != 0) known->capture_id = capture_id;
    return;
  }
  try {
    capturing_.push_back({key, capture_id});
  } catch (const std::bad_alloc&) {
    missed_ = true;
  }
  changed();
}

void capture_watch::note_end(stream_handle stream) noexcept {
  if (!may_capture(stream)) return;
  const std::uint64_t key = key_of(stream);
  const mutex_lock lock(mutex_);
  const auto found = std::find_if(capturing_.begin(), capturing_.end(),
                                  [&](const capturing& c) { return c.key == key; });
  if (found == capturing_.end()) return;
  const std::uint64_t ended = found->capture_id;
  std::erase_if(capturing_, [&](const capturing& c) {
    return c.key == key || (ended != 0 && c.capture_id == ended);
  });
  changed();
}

void capture_watch::look_for_end(stream_handle stream) noexcept {
  if (!may_capture(stream)) return;
  capture_info capture;
  if (!gpu_.stream_capture(stream, &capture).ok() || capture.status != capture_status::none) return;
  note_end(stream);
}

void capture_watch::forget(std::uint64_t capture_id) noexcept {
  const mutex_lock lock(mutex_);
  std::erase_if(capturing_, [&](const capturing& c) { return c.capture_id == capture_id; });
  changed();
}

bool capture_watch::may_run() noexcept {
  capture_info capture;
  if (!gpu_.stream_capture(legacy_stream, &capture).ok()) return true;
  return count() != 0;
}

std::uint64_t capture_watch::key_of(stream_handle stream) noexcept {
  static thread_local const char here = 0;
  const auto value = reinterpret_cast<std::uintptr_t>(stream);
  return names_many(stream) ? (reinterpret_cast<std::uintptr_t>(&here) << 2) + value : value;
}

void capture_watch::changed() noexcept {
  std::uint64_t bits = missed_ ? ~std::uint64_t{0} : 0;
  for (const capturing& c : capturing_) bits |= bit_of(c.key);
  bits_.store(bits, std::memory_order_relaxed);
  count_.store(capturing_.size() + (missed_ ? 1 : 0), std::memory_order_relaxed);
}

}  // namespace millpond
