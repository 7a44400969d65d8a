// All thread caches of a pool: how they come and go, what they take from and give to the stream
// caches and each other, and who empties them.
//
// One lock over the list of them. Each cache has a lock of its own, which its owner takes for next
// to nothing (biased_lock.hpp).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "base/process_barrier.hpp"
#include "pool/cache/block_owners.hpp"
#include "pool/cache/thread_cache.hpp"
#include "pool/refused_frees.hpp"
#include "pool/stream_directory.hpp"

namespace millpond {

// Any thread; what takes a thread_cache is its owner's, unless a line says otherwise. Takes the
// lock of its own, then one cache's, then of streams, uses and blocks.
class cache_directory {
 public:
  cache_directory(const pool_options& options, const pool_phase& phase, block_store& blocks,
                  stream_directory& streams, capture_watch& captures);

  // How they come and go
  // --------------------------------------------------------------------------

  result<std::unique_ptr<thread_cache>> make(stream_handle stream, std::uint64_t id);
  // Empties a cache for good and forgets it: its handle or its thread has ended, or its thread's
  // table has a newer one.
  void drop(thread_cache& of) noexcept;
  // What caches may keep, for a pool whose blocks took so many bytes at most. A cache learns it
  // when it next misses.
  void set_limits(std::uint64_t peak_bytes) noexcept;
  void limit(thread_cache& of) const noexcept {
    of.small_limit_bytes = small_limit_.load(std::memory_order_relaxed);
    of.large_limit_bytes = large_limit_.load(std::memory_order_relaxed);
  }

  // The fast paths, out of line (fast_path.hpp has them). nullptr and false: take the slow one.
  [[nodiscard]] void* pop(thread_cache& in, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool push(thread_cache& in, void* ptr, std::uint64_t bytes) noexcept;

  // What fast_path.hpp does for this sort of cache. All but the last under the cache's lock;
  // take_back gives that back.
  [[nodiscard]] static bool may_take(const thread_cache& in, const heap::extent& block) noexcept;
  [[nodiscard]] static bool claim(const thread_cache& in, heap::extent& block) noexcept;
  void mark_served(thread_cache& in, heap::extent& block) noexcept;
  [[nodiscard]] bool take_back(thread_cache& in, heap::extent* block, std::uint64_t bytes) noexcept;
  // Before the block's record is looked at, which is another core's: for calls that may report an
  // error later.
  [[nodiscard]] bool posted(thread_cache& in, void* ptr, std::uint64_t bytes) noexcept;

  // The slow paths
  // --------------------------------------------------------------------------

  // From the cache after all, from what others sent to it or from the stream cache; nullptr.
  [[nodiscard]] void* pop_shared(thread_cache& in, std::uint64_t bytes) noexcept;
  // From the heap, for a cache that is filled on the way (nullptr: for none); nullptr.
  [[nodiscard]] heap::extent* carve(const block_request& what, thread_cache* refill);
  // A large request that the stream's own free blocks do not serve goes to the heap. What the
  // stream keeps by its streak goes before it: a place is chosen among all that is free.
  void missed_large(thread_cache& in, std::uint64_t bytes) noexcept;
  // A block that the heap gave to the user.
  void hand_out(thread_cache& in, heap::extent& block, std::uint64_t bytes) noexcept;
  // The pool has gone to sleep since the call began: the block is taken back.
  [[nodiscard]] bool fell_asleep(thread_cache& in, heap::extent& block) noexcept;
  // The stream's batch behind an event where that is due or, seal, at once. Called only where the
  // user's own call names the stream.
  void seal_if_due(stream_state& stream) noexcept;
  void seal(stream_state& stream) noexcept;
  // A user's block is another cache's, or no cache's: what is known of its owner is forgotten.
  void forget_owner(const heap::extent& block) noexcept { owners_.forget(block.start()); }
  // A free that the caller has found right and no cache takes. counted: nullptr where no cache has
  // the books.
  void count_free(thread_cache* counted, std::uint64_t bytes) noexcept;
  void count_frees(std::uint64_t blocks, std::uint64_t bytes) noexcept;
  // An allocation that no cache counts.
  void count_allocation(std::uint64_t bytes) noexcept;
  // The counts of a cache that this directory does not hold, which has ended.
  void count_past(const cache_counters& of) noexcept;
  // From now on each free in the pool changes its block's state by compare and exchange.
  void check_frees() noexcept;

  // Emptying
  // --------------------------------------------------------------------------

  // Of one stream or, nullptr, of all: thread caches, then stream caches. By any thread.
  void flush(const stream_state* only) noexcept;
  // The same of all, and counted: somebody needs what they keep.
  void flush_for_memory() noexcept;
  // The stream is gone: its caches are emptied for good.
  void retire(stream_state& gone) noexcept;
  // Whether streams may keep large blocks by their streaks. Not where the options say what a cache
  // keeps, nor with one stream, whose heap nobody else reads. Nor where nothing could fence what a
  // stream kept that has fallen silent.
  [[nodiscard]] bool streaks_count() const noexcept {
    return blocks_.many_streams() && options_.cache_large_bytes == 0 &&
           streams_.silent_can_be_reached();
  }

  // Words
  // --------------------------------------------------------------------------

  // Frees that were refused when their remote free queue was opened, and have not been reported.
  [[nodiscard]] bool has_refused() const noexcept { return refused_.any(); }
  [[nodiscard]] refused_frees::taken take_refused() noexcept { return refused_.take(); }
  // Adds up what caches keep and have counted, with `more` besides; and those counts in the pool's
  // words.
  void count(pool_statistics& out, const cache_counters& more);
  // visit(const thread_cache&) for each, all locked. visit allocates nothing.
  template <class Visit>
  void each_locked(Visit&& visit) {
    const mutex_lock lock(mutex_);
    with_locked(nullptr, visit);
  }
  // At least as many as each_locked visits, if none is made meanwhile: more may be.
  [[nodiscard]] std::uint64_t count() const noexcept {
    return count_.load(std::memory_order_relaxed);
  }

 private:
  result<stream_state*> hold_stream(stream_handle stream, std::uint64_t id);
  void empty(thread_cache& of) noexcept;
  void serve_missed(thread_cache& in, heap::extent& block, std::uint64_t bytes) noexcept;
  void keep(thread_cache& in, heap::extent* block) noexcept;
  void part_with(thread_cache& in, heap::extent* block) noexcept;
  void flush_small(thread_cache& in) noexcept;
  heap::extent* from_stream_cache(thread_cache& in, unsigned size_class) noexcept;
  heap::extent* large_from_stream_cache(thread_cache& in, std::uint64_t bytes) noexcept;
  [[nodiscard]] std::uint64_t stream_cache_limit(const thread_cache& in) const noexcept;
  [[nodiscard]] std::uint64_t streak_limit(const stream_state& stream) const noexcept;

  // Remote frees between caches of a stream (remote_frees.cpp). The first two out of the fast
  // paths' way: they spare registers for none of these.
  [[nodiscard, gnu::noinline]] bool post(thread_cache& in, std::uint64_t address,
                                         std::uint64_t bytes) noexcept;
  [[nodiscard, gnu::noinline]] bool send(thread_cache& in, heap::extent* block,
                                         std::uint64_t bytes) noexcept;
  heap::extent* from_remote(thread_cache& in, std::uint64_t bytes, heap::extent** surplus) noexcept;
  heap::extent* accept(thread_cache& in, std::uint64_t address, std::uint64_t bytes) noexcept;
  void drain_remote(thread_cache& in) noexcept;
  [[gnu::cold, gnu::noinline]] void change_hands(thread_cache& to, heap::extent& block) noexcept;
  void connect(thread_cache& in, std::uint32_t number) noexcept;
  void disconnect(thread_cache& of) noexcept;

  // Each cache (of one stream; nullptr: of all) under its lock, one barrier for all of them, their
  // remote frees sent and opened. A cache is deleted only after it left the list. visit allocates
  // nothing: the locks would stay taken.
  template <class Visit>
  void with_locked(const stream_state* only, Visit&& visit) noexcept MILLPOND_REQUIRES(mutex_) {
    const auto each = [&](auto&& doing) MILLPOND_REQUIRES(mutex_) {
      for (thread_cache* const l : caches_) {
        if (only == nullptr || l->stream == only) doing(*l);
      }
    };
    each([](thread_cache& l) { l.lock.foreign_begin(); });
    process_barrier();
    each([](thread_cache& l) {
      l.lock.foreign_arrive();
      l.remote.send_all();
    });
    each([&](thread_cache& l) {
      drain_remote(l);
      visit(l);
      l.lock.foreign_unlock();
    });
  }

  const pool_options& options_;
  const pool_phase& phase_;
  block_store& blocks_;
  stream_directory& streams_;
  capture_watch& captures_;
  block_owners owners_;  // opened under mutex_
  refused_frees refused_;
  std::atomic<std::uint64_t> small_limit_, large_limit_;  // that caches get
  std::atomic<std::uint64_t> flushed_{0};                 // caches, for memory
  std::atomic<std::uint64_t> count_{0};                   // of caches_, for a look without the lock

  mutex mutex_;
  std::vector<thread_cache*> caches_ MILLPOND_GUARDED_BY(mutex_);  // by their numbers
  std::size_t coming_ MILLPOND_GUARDED_BY(mutex_) = 0;  // there is room for them in caches_
  std::uint32_t last_number_ MILLPOND_GUARDED_BY(mutex_) = 0;
  bool checks_frees_ MILLPOND_GUARDED_BY(mutex_) = false;  // each cache's flag, for new ones
  cache_counters past_ MILLPOND_GUARDED_BY(mutex_);        // of dropped caches, and of none
};

}  // namespace millpond
