// The end of a pool: everything back to the driver, whatever it answers.
#include "driver/insist.hpp"
#include "driver/relaxed_capture.hpp"
#include "millpond/base/units.hpp"
#include "millpond/memory/host_pinner.hpp"
#include "pool/core.hpp"
#include "resource/wait.hpp"

namespace millpond {
namespace {

template <class Call>
bool insist(std::vector<error>& failures, const char* doing, Call&& call) {
  const call_result answer = insist(call);
  if (!answer.ok()) failures.push_back(to_error(answer, doing));
  return answer.ok();
}

}  // namespace

void pool::core::release_handles(std::vector<error>& failures) {
  for (const auto& handle : heap_.handles()) {
    if (!handle.present) continue;
    bool gone = true;  // a mapping that stays keeps the memory
    for (const auto& m : handle.mappings)
      gone = insist(failures, "unmapping", [&] { return gpu_->unmap(m.at, handle.bytes); }) && gone;
    gone = insist(failures, "giving back memory",
                  [&] { return gpu_->physical_release(handle.name); }) &&
           gone;
    if (gone) give_budget(handle.bytes);
  }
}

void pool::core::release_chunks(std::vector<error>& failures) {
  for (const auto& [start, bytes] : reservations_) {
    if (options_.host_memory) {
      auto freed = options_.host_memory->free(reinterpret_cast<void*>(start), bytes);
      if (!freed) freed = options_.host_memory->free(reinterpret_cast<void*>(start), bytes);
      if (freed)
        give_budget(bytes);
      else
        failures.push_back(freed.error());
      continue;
    }
    const bool gone = insist(failures, "giving back memory", [&] {
      return options_.kind == memory_kind::pinned ? gpu_->host_free(reinterpret_cast<void*>(start))
                                                  : gpu_->memory_free(start);
    });
    if (gone) give_budget(bytes);
  }
}

// Threads and handles may keep the core for as long as they live: they keep no driver with it.
std::vector<error> pool::core::close() noexcept {
  if (closed()) return {};
  std::vector<error> failures;
  end_everything(failures);
  gpu_.reset();
  return failures;
}

void pool::core::end_everything(std::vector<error>& failures) noexcept {
  if (!gpu_->alive()) {  // the driver is gone, and all its memory with it
    phase_.store(phase::closed, std::memory_order_release);
    return;
  }
  drain_released();
  const bool slept = asleep();
  const pool_statistics last = statistics();
  for (error& each : take_refused()) failures.push_back(std::move(each));
  if (last.live_blocks > 0) {
    failures.push_back(
        {error_code::invalid_argument, "a " + std::string(to_string(options_.kind)) +
                                           " pool ends with " + std::to_string(last.live_blocks) +
                                           " blocks (" + format_bytes(last.live_bytes) +
                                           ") not freed: their memory goes with it"});
  }
  phase_.store(phase::closed, std::memory_order_release);
  const relaxed_capture_scope relaxed(*gpu_);
  if (!insist(failures, "waiting for the device before the pool's memory goes",
              [&] { return wait_for_device(*gpu_); }) &&
      gpu_->alive()) {
    // Work may still run on the memory: it is left to the driver, which gives it back when the
    // context ends.
    failures.push_back({error_code::driver_failure,
                        "the pool leaves " + format_bytes(last.reserved_bytes) + " to the driver"});
    if (budget_ != nullptr) budget_->leave_to_driver(budget_->bytes());
    return;
  }
  {
    const std::shared_lock lock(streams_mutex_);
    for (const auto& [id, stream] : streams_) stream->batches->drain(events_);
  }
  context_fence_.drain(events_);
  uses_.drain(events_);
  if (slept) {
    const std::lock_guard sleep_lock(sleep_mutex_);
    sleeping_.abandon(sleeping_ways());
  }
  const std::lock_guard growing(growth_mutex_);
  const std::lock_guard lock(heap_mutex_);
  if (granularity_ == 0) {
    release_chunks(failures);
  } else {
    if (!slept) release_handles(failures);  // asleep, no memory is left to them
    for (const auto& [base, bytes] : reservations_) {
      insist(failures, "giving back addresses", [&] { return gpu_->address_free(base, bytes); });
    }
  }
  reservations_.clear();
  // What the driver would not take back stays counted: nobody else can have it.
  if (budget_ != nullptr) budget_->leave_to_driver(budget_->bytes());
  for (const event_handle e : events_.take_all()) {
    insist(failures, "destroying an event", [&] { return gpu_->event_destroy(e); });
  }
}

}  // namespace millpond
