#include "order/stream_batches.hpp"

#include <new>

#include "base/raise_to.hpp"

namespace millpond::order {

seal_outcome stream_batches::seal(driver& gpu, event_cache& events, call_result* failure) {
  const std::lock_guard lock(mutex_);
  if (!dirty_.load(std::memory_order_acquire)) return seal_outcome::nothing;
  // The capture first: a capturing stream's identity cannot be asked for.
  capture_info capture;
  const call_result asked = gpu.stream_capture(handle_, &capture);
  if (asked.ok() && capture.status != capture_status::none) return seal_outcome::capturing;
  // Where the question itself failed, for another reason than that the stream is gone, the stream
  // may be part of a capture (the default stream beside a blocking one that captures): asking its
  // identity would break that.
  if (!asked.ok() && asked.status != driver_status::invalid_handle &&
      asked.status != driver_status::invalid_context)
    return seal_outcome::beside_a_capture;
  std::uint64_t id = 0;
  if (!gpu.stream_id(handle_, &id).ok() || id != id_) {
    gone_.store(true, std::memory_order_relaxed);
    return seal_outcome::gone;
  }
  if (!asked.ok()) return seal_outcome::capturing;
  event_handle event = nullptr;
  if (call_result got = events.get(&event); !got.ok()) {
    if (failure != nullptr) *failure = got;
    return seal_outcome::failed;
  }
  // Its place before anything is changed: no host memory is a failure like another.
  try {
    sealed_.push_back({0, event});
  } catch (const std::bad_alloc&) {
    events.put(event);
    if (failure != nullptr)
      *failure = {driver_status::out_of_memory, "host memory for a sealed batch"};
    return seal_outcome::failed;
  }
  // The order of these three is the proof that the event covers the batch: clean, next number,
  // event.
  const std::uint64_t bytes = dirty_bytes_.exchange(0, std::memory_order_relaxed);
  dirty_.exchange(false, std::memory_order_acq_rel);
  const std::uint64_t batch = open_.fetch_add(1, std::memory_order_acq_rel);
  if (call_result recorded = gpu.event_record(event, handle_); !recorded.ok()) {
    sealed_.pop_back();
    events.put(event);
    dirty_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    dirty_.store(true, std::memory_order_release);
    if (failure != nullptr) *failure = recorded;
    return seal_outcome::failed;  // the next sealed batch covers this one too
  }
  sealed_.back().batch = batch;
  return seal_outcome::sealed;
}

std::uint64_t stream_batches::close_open() {
  const std::lock_guard lock(mutex_);
  if (!dirty_.load(std::memory_order_acquire)) return 0;
  dirty_bytes_.store(0, std::memory_order_relaxed);
  dirty_.exchange(false, std::memory_order_acq_rel);
  return open_.fetch_add(1, std::memory_order_acq_rel);
}

void stream_batches::complete(std::uint64_t batch) noexcept {
  raise_to(completed_, batch, std::memory_order_release);
}

bool stream_batches::poll(driver& gpu, event_cache& events, std::uint64_t* queries,
                          call_result* failure) {
  const std::lock_guard lock(mutex_);
  // Behind an event that the driver refuses to answer for, a later one of the stream tells of both.
  std::size_t passed = 0;
  for (std::size_t i = 0; i < sealed_.size(); ++i) {
    const call_result answer = gpu.event_query(sealed_[i].event);
    ++*queries;
    if (answer.status == driver_status::not_ready) break;
    sealed_[i].refused = !answer.ok();
    if (answer.ok()) {
      passed = i + 1;
    } else if (failure != nullptr) {
      *failure = answer;
    }
  }
  if (passed == 0) return false;
  complete(sealed_[passed - 1].batch);
  for (; passed > 0; --passed) {
    if (sealed_.front().refused)
      events.discard(sealed_.front().event);
    else
      events.put(sealed_.front().event);
    sealed_.pop_front();
  }
  return true;
}

event_handle stream_batches::nearest() const {
  const std::lock_guard lock(mutex_);
  return sealed_.empty() ? nullptr : sealed_.front().event;
}

std::uint64_t stream_batches::make_wait(driver& gpu, stream_handle stream, call_result* failure) {
  const std::lock_guard lock(mutex_);
  if (sealed_.empty()) return 0;
  const call_result answer = gpu.stream_wait_event(stream, sealed_.back().event);
  if (!answer.ok()) {
    if (failure != nullptr) *failure = answer;
    return 0;
  }
  return sealed_.back().batch;
}

void stream_batches::drain(event_cache& events) {
  const std::lock_guard lock(mutex_);
  for (const sealed_batch& s : sealed_) events.put(s.event);
  if (!sealed_.empty()) complete(sealed_.back().batch);
  sealed_.clear();
}

}  // namespace millpond::order
