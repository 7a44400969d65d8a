// A pool's life: from open to the end, what it gives back on request, and where it is asked ahead.
#include <new>

#include "driver/insist.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "pool/cache/thread_caches.hpp"
#include "pool/core.hpp"
#include "resource/wait.hpp"

namespace millpond {

pool::core::core(std::shared_ptr<driver> gpu, pool_options options)
    : gpu_(std::move(gpu)),
      options_(std::move(options)),
      blocks_(options_.slack, phase_),
      watch_(*gpu_),
      streams_(*gpu_, options_, blocks_, watch_, uses_),
      caches_(options_, phase_, blocks_, streams_, watch_),
      captures_(*gpu_, phase_, blocks_, streams_, caches_, watch_, uses_,
                [this](const block_request& what) { return acquire(what, nullptr); }),
      memory_(*gpu_, options_, phase_, blocks_) {}

pool::core::~core() = default;

result<void> pool::core::open() {
  const std::lock_guard opening(ending_mutex_);
  std::shared_ptr<memory_budget::member> member;
  if (options_.budget != nullptr) {
    const std::string name =
        options_.name.empty() ? std::string(to_string(options_.kind)) + " pool" : options_.name;
    member = options_.budget->join(
        name, [weak = weak_from_this()](std::uint64_t bytes) -> std::uint64_t {
          const auto self = weak.lock();
          if (self == nullptr) return 0;
          // Not while it opens or ends. Never waited for: two pools that open may ask each other.
          const std::shared_lock ending(self->ending_mutex_, std::try_to_lock);
          if (!ending || !self->serving()) return 0;
          const std::uint64_t reserved = block_store::locked(self->blocks_).reserved();
          return self->trim(reserved - std::min(reserved, bytes));
        });
  }
  return memory_.open(std::move(member));
}

error pool::core::not_serving() const {
  return asleep() ? error{error_code::not_permitted,
                          "the pool sleeps: wake it before allocating from it"}
                  : error{error_code::not_permitted, "the pool is closed"};
}

void pool::core::drop_cache(thread_cache& of) noexcept {
  if (!forked()) caches_.drop(of);  // the parent's locks and books are not ours to touch
}
void pool::core::drop_cache(captured_cache& of) noexcept {
  if (!forked()) captures_.drop(of);
}

// Giving back
// ----------------------------------------------------------------------------

std::uint64_t pool::core::trim(std::uint64_t keep_bytes) {
  if (!serving()) return 0;
  // To nothing, the pool is as new: streams that are not used any more do not stay apart for ever.
  if (keep_bytes == 0)
    thread_caches::drop_all(this);
  else
    thread_caches::drop_idle(this);
  captures_.drain_released();
  captures_.empty_arenas();
  caches_.flush(nullptr);
  const own_calls_scope own_calls(*gpu_);
  streams_.fence_context();
  streams_.poll();
  streams_.collect_dead();
  if (keep_bytes == 0) {
    // A program that gives everything back begins something new: what it needed before is no
    // measure of what it may hold and keep from now on.
    block_store::locked(blocks_).forget_peak();
    set_cache_limits();
  }
  return memory_.give_back(keep_bytes);
}

std::uint64_t pool::core::give_back_old(std::uint64_t older_than_ns, std::uint64_t keep_bytes) {
  if (!serving() || memory_.granularity() == 0) return 0;
  const own_calls_scope own_calls(*gpu_);
  thread_caches::drop_idle(this);
  caches_.flush(nullptr);  // a few MiB in caches would keep whole handles
  streams_.fence_context();
  streams_.poll();
  return memory_.give_back_old(older_than_ns, keep_bytes);
}

result<void> pool::core::synchronize() {
  const own_calls_scope own_calls(*gpu_);
  captures_.drain_released();
  captures_.empty_arenas();
  caches_.flush(nullptr);
  return streams_.synchronize();
}

// Asking ahead
// ----------------------------------------------------------------------------

result<void> pool::core::reserve(std::uint64_t bytes) {
  if (!serving()) return not_serving();
  if (bytes == 0) return {};
  if (bytes > max_bytes)
    return error{error_code::out_of_memory,
                 "reserve: " + std::to_string(bytes) + " bytes is more than any device has"};
  const block_request what = block_request::of_granules(bytes, heap::granule);
  const own_calls_scope own_calls(*gpu_);
  for (int tries = 0; tries < 8; ++tries) {
    if (block_store::locked(blocks_).heap().largest_free(heap::anyone) >= what.size) return {};
    // Not by stitching: a stitched range would answer a block, and here none is wanted yet.
    if (memory_.grow_for_later(what)) {
      set_cache_limits();
      continue;
    }
    if (tries == 0 && (memory_.give_back(0) > 0 || memory_.reclaim_from_others(what.size) > 0))
      continue;
    break;
  }
  return error{error_code::out_of_memory,
               "reserving " + format_bytes(bytes) + ": " + memory_.last_failure().message};
}

pool::admission pool::core::would_fit(std::uint64_t bytes, stream_handle stream) {
  pool::admission out;
  out.missing_bytes = bytes;
  if (!serving() || bytes > max_bytes) return out;
  if (bytes == 0) return {pool::fit::now, 0, 0};
  const own_calls_scope own_calls(*gpu_);
  streams_.poll();
  heap::owner_id owner = heap::anyone;
  capture_info capture;
  if (gpu_->stream_capture(stream, &capture).ok() && capture.status == capture_status::none) {
    std::uint64_t id = 0;
    if (gpu_->stream_id(stream, &id).ok()) owner = streams_.owner_of(id);
  }
  return memory_.would_fit(bytes, owner);
}

// The end
// ----------------------------------------------------------------------------

// Threads and handles may keep the core for as long as they live: they keep no driver with it.
std::vector<error> pool::core::close() noexcept {
  if (closed()) return {};
  const std::lock_guard ending(ending_mutex_);
  std::vector<error> failures;
  end_everything(failures);
  gpu_.reset();
  return failures;
}

void pool::core::end_everything(std::vector<error>& failures) noexcept {
  if (!gpu_->alive()) {  // the driver is gone, and all its memory with it
    phase_.set(pool_phase::is::closed);
    return;
  }
  captures_.drain_released();
  const bool slept = asleep();
  const pool_statistics last = statistics();
  try {
    for (error& each : take_refused()) failures.push_back(std::move(each));
    if (last.live_blocks > 0) {
      failures.push_back(
          {error_code::invalid_argument, "a " + std::string(to_string(options_.kind)) +
                                             " pool ends with " + std::to_string(last.live_blocks) +
                                             " blocks (" + format_bytes(last.live_bytes) +
                                             ") not freed: their memory goes with it"});
    }
  } catch (const std::bad_alloc&) {  // no memory for the words
  }
  phase_.set(pool_phase::is::closed);
  const own_calls_scope own_calls(*gpu_);
  if (!insist(failures, "waiting for the device before the pool's memory goes",
              [&] { return wait_for_device(*gpu_); }) &&
      gpu_->alive()) {
    failures.push_back({error_code::driver_failure,
                        "the pool leaves " + format_bytes(last.reserved_bytes) + " to the driver"});
    memory_.leave_to_driver();
    return;
  }
  streams_.drain();
  if (slept) {
    const std::lock_guard sleep_lock(sleep_mutex_);
    sleeping_.abandon(sleeping_ways());
  }
  memory_.close(!slept, failures);  // asleep, no memory is left to the handles
  for (const event_handle e : streams_.events().take_all()) {
    insist(failures, "destroying an event", [&] { return gpu_->event_destroy(e); });
  }
}

}  // namespace millpond
