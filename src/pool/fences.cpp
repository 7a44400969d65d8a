// Fences: asking which batches have passed, and what to do where a stream's own event cannot tell.
#include <chrono>
#include <new>
#include <thread>

#include "driver/relaxed_capture.hpp"
#include "pool/core.hpp"

namespace millpond {
namespace {

// One of 64 for a key of capturing_.
constexpr std::uint64_t bit_of(std::uint64_t key) noexcept {
  return std::uint64_t{1} << ((key * 0x9e3779b97f4a7c15ULL) >> 58);
}

}  // namespace

// Nothing where the heap knows already: with many streams the heap's lock would be taken for each
// of them.
void pool::core::retire_in_heap(stream_state& stream) {
  const std::uint64_t completed = stream.batches->completed();
  if (stream.retired.load(std::memory_order_relaxed) >= completed) return;
  const std::lock_guard lock(heap_mutex_);
  heap_.retire(stream.owner, completed);
  stream.retired.store(completed, std::memory_order_relaxed);
}

// Callers hold a relaxed_capture_scope: a capture in global mode forbids cuEventQuery to all
// threads.
bool pool::core::poll_fences() noexcept {
  try {
    return poll_all_fences();
  } catch (const std::bad_alloc&) {  // no words for what failed; the batches stand
    return true;
  }
}

bool pool::core::poll_all_fences() {
  std::uint64_t queries = 0;
  call_result failure;
  bool progress = context_fence_.poll(*gpu_, events_, &queries, &failure);
  {
    const std::shared_lock lock(streams_mutex_);
    for (const auto& [id, stream] : streams_) {
      const bool passed = stream->batches->poll(*gpu_, events_, &queries, &failure);
      retire_in_heap(*stream);
      progress = progress || passed;
    }
  }
  retire_in_heap(limbo_);
  if (!failure.ok()) note_fence_failure(to_error(failure, "asking whether a fence has passed"));
  counts_.fence_queries.fetch_add(queries, std::memory_order_relaxed);
  return poll_guarded() || progress;
}

bool pool::core::poll_guarded() noexcept {
  const std::list<cross_stream_uses::waiting> passed = uses_.poll(*gpu_, events_);
  for (const cross_stream_uses::waiting& g : passed) {
    {
      const std::lock_guard lock(heap_mutex_);
      guarded_bytes_ -= g.block->bytes;
    }
    g.block->link = nullptr;
    flush_chain(*g.freed_on, g.block);
    g.freed_on->holders.fetch_sub(1, std::memory_order_acq_rel);
  }
  return !passed.empty();
}

// Whether a capture may run: cuCtxRecordEvent would break it. No stream handle but the one in the
// caller's hand may be asked (every driver call on a destroyed stream's handle ends the process:
// seen on an H200, driver 580.159), so a capture counts as running until its stream is seen not
// capturing or its graph is gone. Captures that never asked this pool for memory are known only
// where the legacy stream tells of them, which it does for blocking streams.
bool pool::core::captures_running() {
  capture_info capture;
  if (!gpu_->stream_capture(legacy_stream, &capture).ok()) return true;
  return capturing_count_.load(std::memory_order_relaxed) != 0;
}

// The capture's number is kept where it is known, so that the end of its graph tells too.
void pool::core::note_capturing(stream_handle stream, std::uint64_t capture_id) {
  const std::lock_guard lock(captures_mutex_);
  auto& known = capturing_[capture_key(stream)];
  if (capture_id != 0) known = capture_id;
  capturing_changed();
}

// Under the captures mutex.
void pool::core::capturing_changed() noexcept {
  std::uint64_t bits = 0;
  for (const auto& [key, id] : capturing_) bits |= bit_of(key);
  capturing_bits_.store(bits, std::memory_order_relaxed);
  capturing_count_.store(capturing_.size(), std::memory_order_relaxed);
}

bool pool::core::may_capture(stream_handle stream) const noexcept {
  const std::uint64_t bits = capturing_bits_.load(std::memory_order_relaxed);
  return bits != 0 && (bits & bit_of(capture_key(stream))) != 0;
}

// Called where the user's own call names the stream.
void pool::core::look_for_capture_end(stream_handle stream) {
  if (!may_capture(stream)) return;
  capture_info capture;
  if (!gpu_->stream_capture(stream, &capture).ok() || capture.status != capture_status::none)
    return;
  note_not_capturing(stream);
}

// 0, 1 and 2 are other streams on other threads, so there the thread is part of the key.
std::uint64_t pool::core::capture_key(stream_handle stream) noexcept {
  static thread_local const char here = 0;
  const auto value = reinterpret_cast<std::uintptr_t>(stream);
  return names_many(stream) ? (reinterpret_cast<std::uintptr_t>(&here) << 2) + value : value;
}

// A stream seen outside: whatever capture it was in has ended, for all of the capture's streams.
void pool::core::note_not_capturing(stream_handle stream) {
  if (!may_capture(stream)) return;
  const std::lock_guard lock(captures_mutex_);
  const std::uint64_t key = capture_key(stream);
  const auto found = capturing_.find(key);
  if (found == capturing_.end()) return;
  const std::uint64_t ended = found->second;
  std::erase_if(capturing_,
                [&](const auto& c) { return c.first == key || (ended != 0 && c.second == ended); });
  capturing_changed();
}

bool pool::core::any_gone() const {
  if (limbo_.batches->dirty()) return true;
  const std::shared_lock lock(streams_mutex_);
  for (const auto& [id, stream] : streams_) {
    if (stream->batches->gone() && stream->batches->dirty()) return true;
  }
  return false;
}

// One context event behind everything that is freed and not sealed. False where it could not be.
bool pool::core::seal_context() noexcept {
  try {
    return seal_over_context();
  } catch (const std::bad_alloc&) {  // later, then
    return false;
  }
}

bool pool::core::seal_over_context() {
  std::vector<std::shared_ptr<order::stream_batches>> lines;
  if (limbo_.batches->dirty()) lines.push_back(limbo_.batches);
  {
    const std::shared_lock lock(streams_mutex_);
    for (const auto& [id, stream] : streams_) {
      if (stream->batches->dirty()) lines.push_back(stream->batches);
    }
  }
  if (lines.empty()) return true;
  if (options_.fences == context_fences::never) return false;
  const relaxed_capture_scope relaxed(*gpu_);
  if (captures_running()) {
    note_fence_failure(
        {error_code::not_permitted,
         "frees whose stream makes no call wait for a capture to end that this pool has seen"});
    return false;
  }
  call_result failure;
  if (!context_fence_.seal(*gpu_, events_, lines, &failure)) {
    note_fence_failure(to_error(failure, "a fence over the whole context"));
    return false;
  }
  counts_.seals.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// What is freed before its batch is closed here is behind the wait; later frees join the next
// batch.
result<void> pool::core::synchronize() {
  const relaxed_capture_scope relaxed(*gpu_);
  drain_released();
  empty_arenas();
  flush_caches_of(nullptr);
  if (captures_running()) {
    return error{
        error_code::not_permitted,
        "synchronize: a capture runs or may run, and waiting for the device would break it"};
  }
  struct closed_batch {
    std::shared_ptr<order::stream_batches> batches;
    std::uint64_t batch;
  };
  std::vector<closed_batch> closed;
  {
    const std::shared_lock lock(streams_mutex_);
    closed.reserve(streams_.size() + 1);  // a batch that is closed must be known below
    closed.push_back({limbo_.batches, limbo_.batches->close_open()});
    for (const auto& [id, stream] : streams_)
      closed.push_back({stream->batches, stream->batches->close_open()});
  }
  if (const call_result waited = gpu_->context_synchronize(); !waited.ok()) {
    for (const closed_batch& c : closed) {
      if (c.batch != 0) c.batches->join(0);  // dirty again: a later fence covers it
    }
    return to_error(waited, "waiting for the device");
  }
  for (const closed_batch& c : closed) c.batches->complete(c.batch);
  poll_fences();
  const std::shared_lock lock(streams_mutex_);
  for (const auto& [id, stream] : streams_) retire_in_heap(*stream);
  return {};
}

// The event of some batch that has not been seen to pass, or nullptr.
event_handle pool::core::nearest_fence() {
  if (const event_handle wide = context_fence_.nearest(); wide != nullptr) return wide;
  {
    const std::shared_lock lock(streams_mutex_);
    for (const auto& [id, stream] : streams_) {
      if (const event_handle own = stream->batches->nearest(); own != nullptr) return own;
    }
  }
  return uses_.nearest();
}

// Waits for the nearest fence, at most until the deadline. False where there is nothing to wait
// for. The event may be given back and recorded anew by another thread's poll meanwhile; then this
// waits for a later fence of the pool, which is still one, and what the other thread found counts
// as found.
bool pool::core::wait_for_a_fence(std::uint64_t deadline_ns) {
  const relaxed_capture_scope relaxed(*gpu_);
  const event_handle nearest = nearest_fence();
  if (nearest == nullptr) return false;
  counts_.host_waits.fetch_add(1, std::memory_order_relaxed);
  for (;;) {
    if (poll_fences() || nearest_fence() != nearest) return true;
    if (options_.clock && options_.clock() >= deadline_ns) return false;
    if (!options_.clock || gpu_->simulated()) {  // virtual time moves by waiting only
      if (const call_result answer = gpu_->event_synchronize(nearest); !answer.ok()) {
        note_fence_failure(to_error(answer, "waiting for a fence"));
        return false;
      }
      return poll_fences() || nearest_fence() != nearest;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace millpond
