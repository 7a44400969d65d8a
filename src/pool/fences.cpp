// Fences: sealing batches, asking which have passed, and what to do where a stream's own event
// cannot tell.
#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "pool/cache/thread_cache.hpp"
#include "pool/stream_directory.hpp"

namespace millpond {

template <class Work>
void stream_directory::when_free(Work&& work) noexcept {
  if (at_fences_.load(std::memory_order_relaxed) ||
      at_fences_.exchange(true, std::memory_order_acquire))
    return;
  struct leave {
    std::atomic<bool>& at;
    ~leave() { at.store(false, std::memory_order_release); }
  } const when_done{at_fences_};
  work();
}

void stream_directory::note_failure(call_result answer, const char* doing) noexcept {
  try {
    error what = to_error(answer, doing);
    const mutex_lock lock(failure_mutex_);
    last_failure_ = std::move(what);
  } catch (const std::bad_alloc&) {  // no memory for the words
  }
}
error stream_directory::last_failure() const {
  const mutex_lock lock(failure_mutex_);
  return last_failure_;
}

// Sealing
// ----------------------------------------------------------------------------

bool stream_directory::seal_if_due(stream_state& stream) noexcept {
  if (!blocks_.many_streams() || !stream.batches->dirty()) return false;
  const std::uint64_t wish = seal_wish_.load(std::memory_order_relaxed);
  const bool asked = stream.seals_seen.load(std::memory_order_relaxed) != wish;
  if (!asked && stream.batches->dirty_bytes() <
                    std::min<std::uint64_t>(blocks_.reserved_lately() / 128, 4 * MiB))
    return false;
  bool gone = false;
  when_free([&] { gone = seal(stream); });
  return gone;
}

bool stream_directory::seal(stream_state& stream) noexcept {
  const std::uint64_t wish = seal_wish_.load(std::memory_order_relaxed);
  const own_calls_scope own_calls(gpu_);
  const stream_handle handle = stream.batches->handle();
  call_result failure;
  switch (stream.batches->seal(gpu_, events_, &failure)) {
    case order::seal_outcome::sealed:
      seals_.fetch_add(1, std::memory_order_relaxed);
      stream.seals_seen.store(wish, std::memory_order_relaxed);
      captures_.note_end(handle);
      break;
    case order::seal_outcome::gone: return !names_many(handle);
    case order::seal_outcome::capturing: captures_.note(handle, 0); break;
    case order::seal_outcome::beside_a_capture:
    case order::seal_outcome::nothing: break;
    case order::seal_outcome::failed: note_failure(failure, "sealing a batch of frees"); break;
  }
  return false;
}

bool stream_directory::worth_a_context_fence(unsealed which, const stream_state* named) const {
  const shared_mutex_lock lock(mutex_);
  if (which == unsealed::of_gone) {
    return limbo_.batches->dirty() ||
           std::any_of(streams_.begin(), streams_.end(), [](const auto& entry) {
             return entry.second->batches->gone() && entry.second->batches->dirty();
           });
  }
  // A stream that makes calls seals a few MiB. One that has fallen silent may have had most of the
  // pool by its streak; and as long as there was one stream nothing was sealed at all, and what was
  // idle was joined with what was freed: more than was lately freed.
  std::uint64_t bytes = 0;
  const block_store::locked books(blocks_);
  for (const auto& [id, stream] : streams_) {
    if (stream.get() == named || !stream->batches->dirty()) continue;
    if (which == unsealed::left_uncached && stream->holders.load(std::memory_order_relaxed) != 0)
      continue;
    bytes += which == unsealed::lately_freed ? stream->batches->dirty_bytes()
                                             : books.heap().free_bytes(stream->owner);
  }
  return bytes >= std::max<std::uint64_t>(8 * MiB, books.reserved() / 8);
}

bool stream_directory::fence_context() noexcept {
  try {
    return seal_context();
  } catch (const std::bad_alloc&) {  // later, then
    return false;
  }
}

bool stream_directory::seal_context() {
  std::vector<std::shared_ptr<order::stream_batches>> lines;
  if (limbo_.batches->dirty()) lines.push_back(limbo_.batches);
  each([&](const stream_state& stream) {
    if (stream.batches->dirty()) lines.push_back(stream.batches);
  });
  if (lines.empty()) return true;
  if (options_.fences == context_fences::never) return false;
  const own_calls_scope own_calls(gpu_);
  if (captures_.may_run()) {
    const mutex_lock lock(failure_mutex_);
    last_failure_ = {
        error_code::not_permitted,
        "frees whose stream makes no call wait for a capture to end that this pool has seen"};
    return false;
  }
  call_result failure;
  if (!context_fence_.seal(gpu_, events_, lines, &failure)) {
    note_failure(failure, "a fence over the whole context");
    return false;
  }
  seals_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Asking
// ----------------------------------------------------------------------------

bool stream_directory::poll() noexcept {
  try {
    return poll_all();
  } catch (const std::bad_alloc&) {  // no words for what failed; the batches stand
    return true;
  }
}

bool stream_directory::poll_all() {
  std::uint64_t queries = 0;
  call_result failure;
  bool progress = context_fence_.poll(gpu_, events_, &queries, &failure);
  each([&](stream_state& stream) {
    const bool passed = stream.batches->poll(gpu_, events_, &queries, &failure);
    blocks_.retire(stream);
    progress = progress || passed;
  });
  blocks_.retire(limbo_);
  if (!failure.ok()) note_failure(failure, "asking whether a fence has passed");
  queries_.fetch_add(queries, std::memory_order_relaxed);
  return poll_uses() || progress;
}

bool stream_directory::poll_uses() noexcept {
  const std::list<cross_stream_uses::waiting> passed = uses_.poll(gpu_, events_);
  for (const cross_stream_uses::waiting& w : passed) {
    w.block->link = nullptr;
    blocks_.release(*w.freed_on, w.block);
    w.freed_on->holders.fetch_sub(1, std::memory_order_acq_rel);
  }
  return !passed.empty();
}

void stream_directory::poll_when_free() noexcept {
  when_free([&] {
    const own_calls_scope own_calls(gpu_);
    poll();
  });
}

// The event of some batch that has not been seen to pass, or nullptr.
event_handle stream_directory::nearest() {
  if (const event_handle wide = context_fence_.nearest(); wide != nullptr) return wide;
  {
    const shared_mutex_lock lock(mutex_);
    for (const auto& [id, stream] : streams_) {
      if (const event_handle own = stream->batches->nearest(); own != nullptr) return own;
    }
  }
  return uses_.nearest();
}

// The event may be given back and recorded anew by another thread's poll meanwhile; then this waits
// for a later fence of the pool, which is still one, and what the other thread found counts as
// found.
bool stream_directory::wait_for_one(std::uint64_t deadline_ns) {
  const own_calls_scope own_calls(gpu_);
  const event_handle first = nearest();
  if (first == nullptr) return false;
  host_waits_.fetch_add(1, std::memory_order_relaxed);
  for (;;) {
    if (poll() || nearest() != first) return true;
    if (options_.clock && options_.clock() >= deadline_ns) return false;
    if (!options_.clock || gpu_.simulated()) {  // virtual time moves by waiting only
      if (const call_result answer = gpu_.event_synchronize(first); !answer.ok()) {
        note_failure(answer, "waiting for a fence");
        return false;
      }
      return poll() || nearest() != first;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

heap::extent* stream_directory::block_by_asking(const block_request& what) {
  miss_budget& budget = blocks_.misses();
  std::uint64_t left = budget.questions();
  while (left > 0 && any_pending()) {
    const std::uint64_t asked = queries_.load(std::memory_order_relaxed);
    const bool passed = poll();
    left -= std::min(left,
                     std::max<std::uint64_t>(1, queries_.load(std::memory_order_relaxed) - asked));
    if (!passed) continue;
    if (heap::extent* const block = blocks_.carve(what)) {
      budget.asked(true);
      return block;
    }
  }
  if (left == 0) budget.asked(false);
  return nullptr;
}

heap::extent* stream_directory::block_behind_a_wait(const block_request& what) {
  const shared_mutex_lock lock(mutex_);
  for (const auto& [id, other] : streams_) {
    if (other.get() == what.stream) continue;
    {
      const block_store::locked books(blocks_);
      if (books.heap().largest_free(other->owner) < what.size) continue;
    }
    call_result failure;
    const std::uint64_t batch = other->batches->make_wait(gpu_, what.handle, &failure);
    if (batch == 0) continue;
    stream_waits_.fetch_add(1, std::memory_order_relaxed);
    // Behind the wait the frees up to this batch are in this stream's order: they are its own now.
    const block_store::locked books(blocks_);
    books.heap().reassign(other->owner, batch, what.owner, what.stream->batches->join(0));
    if (heap::extent* const block = books.carve(what, true)) return block;
  }
  return nullptr;
}

// What is freed before its batch is closed here is behind the wait; later frees join the next
// batch.
result<void> stream_directory::synchronize() {
  if (captures_.may_run()) {
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
    const shared_mutex_lock lock(mutex_);
    closed.reserve(streams_.size() + 1);  // a batch that is closed must be known below
    closed.push_back({limbo_.batches, limbo_.batches->close_open()});
    for (const auto& [id, stream] : streams_)
      closed.push_back({stream->batches, stream->batches->close_open()});
  }
  if (const call_result waited = gpu_.context_synchronize(); !waited.ok()) {
    for (const closed_batch& c : closed) {
      if (c.batch != 0) c.batches->join(0);  // dirty again: a later fence covers it
    }
    return to_error(waited, "waiting for the device");
  }
  for (const closed_batch& c : closed) c.batches->complete(c.batch);
  poll();
  each([&](stream_state& stream) { blocks_.retire(stream); });
  return {};
}

void stream_directory::drain() {
  each([&](const stream_state& stream) { stream.batches->drain(events_); });
  context_fence_.drain(events_);
  uses_.drain(events_);
}

}  // namespace millpond
