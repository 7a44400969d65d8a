// The streams that a pool knows, by identity, and the fences behind which their frees lie: sealing,
// asking, waiting.
//
// One lock over the table. No stream handle is named here that the user's own call does not name: a
// destroyed stream's handle crashes the driver now and then (H200, driver 580.159).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "base/mutex.hpp"
#include "order/context_fence.hpp"
#include "order/event_cache.hpp"
#include "pool/block_store.hpp"
#include "pool/capture/capture_watch.hpp"
#include "pool/cross_stream_uses.hpp"
#include "pool/stream_state.hpp"

namespace millpond {

// Any thread. Takes its own lock, then those of batches, uses, events and blocks.
class stream_directory {
 public:
  stream_directory(driver& gpu, const pool_options& options, block_store& blocks,
                   capture_watch& captures, cross_stream_uses& uses);

  [[nodiscard]] driver& gpu() const noexcept { return gpu_; }

  // Who they are
  // --------------------------------------------------------------------------

  struct met {
    stream_state* stream = nullptr;  // with one more holder, so that nobody collects it meanwhile
    // The handle came back for a new stream: the old one was destroyed, perhaps with work pending.
    // With one more holder, for the caller to retire.
    stream_state* gone = nullptr;
    bool fresh = false;   // met for the first time
    bool second = false;  // and the first besides another
    bool looks = false;   // for a newcomer: what silent streams left is looked at
    bool many = false;    // so many are known that dead ones are to be looked for
  };
  // Throws bad_alloc with nothing changed.
  result<met> meet(stream_handle handle, std::uint64_t id);
  // Refuses a stream of another context of the device, whose work no event of the pool covers. The
  // stream captures nothing, and has been asked its identity.
  result<void> of_own_context(stream_handle stream, std::uint64_t id, const char* call);
  [[nodiscard]] heap::owner_id owner_of(std::uint64_t id) const;  // heap::anyone: not known
  // Forgets streams that no cache holds and nothing of whose is left. One that lives is met anew
  // when it next calls.
  void collect_dead();
  // Frees that only a fence over the context can cover.
  [[nodiscard]] stream_state& limbo() noexcept { return limbo_; }
  // visit(stream_state&) for each stream that is known, under the lock.
  template <class Visit>
  void each(Visit&& visit) const {
    const shared_mutex_lock lock(mutex_);
    for (const auto& [id, stream] : streams_) visit(*stream);
  }
  [[nodiscard]] std::uint64_t count() const {
    const shared_mutex_lock lock(mutex_);
    return streams_.size();
  }

  // What they keep for all their caches
  // --------------------------------------------------------------------------

  // Back into the heap: all of it, or the large blocks.
  void empty_cache(stream_state& stream) noexcept;
  void empty_large_cache(stream_state& stream) noexcept;
  void empty_caches(const stream_state* only) noexcept;  // nullptr: of all
  // What others than this one keep by their streaks. The streaks stay: with them gone, two streams
  // whose large blocks come through stitched ranges, which the heap never serves at once, would
  // take each other's away for ever.
  void reclaim_streaks(const stream_state* but) noexcept;

  // Fences
  // --------------------------------------------------------------------------

  // The stream's open batch behind an event on it, where the user's own call names it. True where
  // the stream is gone: the caller retires it. if_due: where it is asked for or worth it, and no
  // other thread is at the fences.
  [[nodiscard]] bool seal(stream_state& stream) noexcept;
  [[nodiscard]] bool seal_if_due(stream_state& stream) noexcept;
  // Some stream finds nothing idle: each seals at its next call.
  void wish_for_seals() noexcept { seal_wish_.fetch_add(1, std::memory_order_relaxed); }

  // What a stream freed last is not sealed before it makes another call, and nobody may ask it: it
  // may be destroyed. An event over the whole context covers it, and would break a capture that the
  // pool knows nothing of: so not for the sake of some bytes. Here alone is decided when it is
  // worth one, and whether there may be one.
  enum class unsealed : std::uint8_t {
    of_gone,         // anything of streams that are gone
    lately_freed,    // much that streams besides the one named freed since they were last sealed
    left_by_others,  // much that such streams have free, of which something is unsealed
    left_uncached,   // the same of those that no cache holds
  };
  [[nodiscard]] bool worth_a_context_fence(unsealed which, const stream_state* named) const;
  // Everything that is freed and not sealed behind one event over the context. False where there is
  // something to cover and it could not be covered.
  bool fence_context() noexcept;
  // Whether the options leave any way to reach what a silent stream has freed.
  [[nodiscard]] bool silent_can_be_reached() const noexcept {
    return options_.fences != context_fences::never || options_.on_pressure;
  }
  // A fence over the context is due that a running capture forbade.
  [[nodiscard]] bool context_fence_due() const noexcept {
    return options_.fences != context_fences::never && limbo_.batches->dirty();
  }

  // Asks which fences have passed; true where one has. Callers hold an own_calls_scope: a
  // capture in global mode forbids cuEventQuery to all threads.
  bool poll() noexcept;
  bool poll_uses() noexcept;
  // The same unless another thread is at the fences.
  void poll_when_free() noexcept;
  // Waits for the nearest fence, at most until the deadline of the options' clock. False where
  // there is nothing to wait for.
  bool wait_for_one(std::uint64_t deadline_ns);
  [[nodiscard]] bool any_pending() { return nearest() != nullptr; }
  // Makes the request's stream wait for another one that has freed what it needs, or nullptr.
  heap::extent* block_behind_a_wait(const block_request& what);
  // Asks the fences for as long as the budget of a miss allows, until the request is served.
  heap::extent* block_by_asking(const block_request& what);
  // Waits for the device; what was freed before is anyone's then.
  result<void> synchronize();
  // Gives all events back without asking: the device was synchronised.
  void drain();

  [[nodiscard]] order::event_cache& events() noexcept { return events_; }
  [[nodiscard]] error last_failure() const;  // why there was no fence when there last was none
  // Adds up what streams keep and what is pending, and the fences' counts.
  void count(pool_statistics& out) const;

 private:
  using table = std::unordered_map<std::uint64_t, std::unique_ptr<stream_state>>;
  std::unique_ptr<stream_state> make(stream_handle handle, std::uint64_t id);
  bool poll_all();
  bool seal_context();
  [[nodiscard]] event_handle nearest();
  void note_failure(call_result answer, const char* doing) noexcept;
  // What may as well be done later, unless another thread is at the fences.
  template <class Work>
  void when_free(Work&& work) noexcept;

  driver& gpu_;
  const pool_options& options_;
  block_store& blocks_;
  capture_watch& captures_;
  cross_stream_uses& uses_;
  order::event_cache events_;
  order::context_fence context_fence_;
  stream_state limbo_;

  mutable shared_mutex mutex_;
  table streams_ MILLPOND_GUARDED_BY(mutex_);  // by identity
  std::unordered_map<stream_handle, std::uint64_t> identity_of_
      MILLPOND_GUARDED_BY(mutex_);  // last known, to notice the gone
  std::unordered_set<std::uint64_t> used_ MILLPOND_GUARDED_BY(
      mutex_);  // identities of other streams of the pool's context, which record_use named
  std::size_t collect_at_ MILLPOND_GUARDED_BY(mutex_) = 64;  // look for dead ones at so many
  std::uint64_t newcomers_ MILLPOND_GUARDED_BY(mutex_) = 0;
  mutable mutex failure_mutex_;  // a leaf
  error last_failure_ MILLPOND_GUARDED_BY(failure_mutex_);

  std::atomic<std::uint64_t> seal_wish_{0};
  std::atomic<std::uint64_t> seals_{0}, queries_{0}, stream_waits_{0}, host_waits_{0};
  // A thread seals or asks fences, where it need not at once. Threads that record and ask events
  // together wait for one lock of the driver's: a pair that seals took 184 ns on one thread, 4.2 us
  // on two and 52 us on sixteen (H200, driver 580.159, 2026-11-30).
  alignas(64) std::atomic<bool> at_fences_{false};
};

}  // namespace millpond
