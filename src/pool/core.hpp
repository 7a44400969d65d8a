// The pool behind its public face. Locks, in the order in which they may be taken together:
//   sleep mutex -> growth mutex -> heap mutex -> (nothing);  a cache's lock, the streams', caches',
//   captures' and batches mutexes are each taken alone, or under the growth mutex; those of
//   cross_stream_uses, refused_frees and the event cache are leaves, and the parts' own.
// No lock is held over a driver call that can wait for the device. No call names a stream that the
// user's own call does not name: a destroyed stream's handle crashes the driver now and then (H200,
// driver 580.159). The growth mutex is held over calls that create, map and unmap memory (none
// waits, measured on an H200); the heap mutex over none.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/brief_mutex.hpp"
#include "base/fork.hpp"
#include "heap/heap.hpp"
#include "heap/stitch.hpp"
#include "millpond/pool/pool.hpp"
#include "order/context_fence.hpp"
#include "order/event_cache.hpp"
#include "order/stream_batches.hpp"
#include "pool/cache/block_owners.hpp"
#include "pool/cache/reuse_streak.hpp"
#include "pool/cache/stream_cache.hpp"
#include "pool/cache/thread_cache.hpp"
#include "pool/capture/capture_state.hpp"
#include "pool/contention_estimate.hpp"
#include "pool/cross_stream_uses.hpp"
#include "pool/growth/reclaim_budget.hpp"
#include "pool/growth/span_ages.hpp"
#include "pool/refused_frees.hpp"
#include "pool/sleep/sleeping_memory.hpp"
#include "pool/stream_state.hpp"

namespace millpond {

// Where the host has no memory for the books of a call, the call changes nothing. Short enough to
// be said without any.
[[nodiscard]] inline error no_host_memory() {
  return {error_code::out_of_memory, "no host memory"};
}

class pool::core : public std::enable_shared_from_this<pool::core> {
 public:
  struct request {
    request() = default;
    // Of a class where the size is small and the alignment usual, else of whole granules.
    request(std::uint64_t asked, std::uint64_t aligned);

    std::uint64_t bytes = 0;  // asked for
    std::uint64_t size = 0;   // what is carved
    std::uint64_t alignment = heap::granule;
    std::uint16_t size_class = large_class;
    heap::owner_id owner = heap::anyone;
    stream_state* stream = nullptr;  // nullptr in a capture
    stream_handle handle = nullptr;
  };
  core(std::shared_ptr<driver> gpu, pool_options options);
  ~core();
  core(const core&) = delete;
  core& operator=(const core&) = delete;

  result<void> open();  // addresses, initial_bytes
  // Everything back; later calls are refused. Answers what went wrong: live blocks, calls that
  // failed.
  std::vector<error> close() noexcept;

  // Every path of the pool's calls. `in`: the cache to use, already right for the stream.
  result<void*> allocate(std::uint64_t bytes, std::uint64_t alignment, stream_handle stream);
  result<void*> allocate_unidentified(std::uint64_t bytes, std::uint64_t alignment,
                                      stream_handle stream);
  result<void*> allocate_from(thread_cache& in, std::uint64_t bytes,
                              std::uint64_t alignment = heap::granule);
  result<void*> allocate_from(captured_cache& in, std::uint64_t bytes);
  result<void> deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept;
  result<void> deallocate_to(thread_cache& in, void* ptr, std::uint64_t bytes) noexcept;
  result<void> deallocate_to(captured_cache& in, void* ptr, std::uint64_t bytes) noexcept;
  // The two fast paths, in a thread's cache and in a capture's: nullptr and false mean "take the
  // slow one". They and the next two are written into the calls that include fast_path.hpp.
  template <class Cache>
  [[nodiscard]] void* pop_here(Cache& in, std::uint64_t bytes) noexcept;
  template <class Cache>
  [[nodiscard]] bool push_here(Cache& in, void* ptr, std::uint64_t bytes) noexcept;
  [[nodiscard]] static bool posted(const captured_cache&, void*, std::uint64_t) noexcept {
    return false;  // a capture's caches send each other nothing
  }
  // Before the block's record is looked at, which is another core's: for calls that may report an
  // error later.
  [[nodiscard]] bool posted(thread_cache& in, void* ptr, std::uint64_t bytes) noexcept;
  // The calling thread's cache for a plain allocation where nothing is unusual: the stream is the
  // one that the cache was made for, and captures nothing. Otherwise nullptr, and allocate() finds
  // out what it is.
  [[nodiscard]] thread_cache* usual_cache(stream_handle stream) noexcept;
  // The same for a plain free.
  [[nodiscard]] thread_cache* cache_of_free(stream_handle stream) noexcept;
  // The same two out of line.
  [[nodiscard]] void* pop(thread_cache& in, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool push(thread_cache& in, void* ptr, std::uint64_t bytes) noexcept;
  [[nodiscard]] void* pop_shared(thread_cache& in, std::uint64_t bytes) noexcept;
  [[nodiscard]] static void* pop_shared(const captured_cache&, std::uint64_t) noexcept {
    return nullptr;  // there is no stream cache in a capture
  }

  result<std::unique_ptr<thread_cache>> make_cache(stream_handle stream, std::uint64_t id);
  result<std::uint64_t> identity(stream_handle stream);
  // Refuses a stream of another context of the device, whose work no event of the pool covers.
  result<void> of_own_context(stream_handle stream, std::uint64_t id, const char* call);
  // A cache for the length of one call, where the thread can keep none any more.
  struct passing_cache {
    core& of;
    std::unique_ptr<thread_cache> cache;
    ~passing_cache() {
      if (cache != nullptr) of.drop_cache(*cache);
    }
  };
  // Into the calling thread's table; the cache itself where the thread can keep none.
  [[nodiscard]] std::unique_ptr<thread_cache> attach(stream_handle stream,
                                                     std::unique_ptr<thread_cache> made) noexcept;
  graph_arena make_graph_arena();
  result<void> capture_into(const graph_arena::hold& arena, stream_handle stream);
  void look_for_capture_end(stream_handle stream);
  // A capture's cache: made for the capture that runs on the stream now.
  result<std::unique_ptr<captured_cache>> make_captured_cache(stream_handle stream);

  // Frees that were refused when their remote free queue was opened, and have not been reported.
  [[nodiscard]] bool has_refused() const noexcept { return refused_.any(); }
  std::vector<error> take_refused();

  // Empties a cache for good and forgets it: its handle or its thread has ended, or its thread's
  // table has a newer one.
  void drop_cache(thread_cache& of) noexcept;
  void drop_cache(captured_cache& of) noexcept;

  result<void> record_use(void* ptr, stream_handle stream) noexcept;
  result<pool::block_range> find(const void* ptr);
  std::uint64_t trim(std::uint64_t keep_bytes);
  result<void> synchronize();
  std::uint64_t give_back_old(std::uint64_t older_than_ns, std::uint64_t keep_bytes);
  result<void> reserve(std::uint64_t bytes);
  pool::admission would_fit(std::uint64_t bytes, stream_handle stream);
  result<void> set_tag(void* ptr, std::string_view tag);
  result<sleep_outcome> sleep(const sleep_options& options);
  result<wake_outcome> wake();
  memory_report explain(const request* what = nullptr, std::vector<ladder_step> ladder = {});
  pool_statistics statistics();
  void check();  // the whole-structure walker

  [[nodiscard]] bool closed() const noexcept {
    return phase_.load(std::memory_order_acquire) == phase::closed;
  }
  [[nodiscard]] bool asleep() const noexcept {
    return phase_.load(std::memory_order_acquire) == phase::asleep;
  }
  [[nodiscard]] bool serving() const noexcept {
    return phase_.load(std::memory_order_acquire) == phase::serving;
  }
  [[nodiscard]] error not_serving() const;
  // A free while the pool does not serve: asleep it is taken, and its contents are not brought
  // back.
  result<void> free_unserved(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept;
  // Serving, and not in a forked child.
  [[nodiscard]] bool open_here() const noexcept { return serving() && !forked(); }
  // True in a child of the process that made the pool: touch no lock and no driver then.
  [[nodiscard]] bool forked() const noexcept { return fork_count() != born_in_fork_; }
  [[nodiscard]] driver& gpu() const noexcept { return *gpu_; }
  [[nodiscard]] const pool_options& options() const noexcept { return options_; }
  // The hard limit on reserved bytes; 0: the device's. A number alone: it publishes nothing.
  [[nodiscard]] std::uint64_t limit_bytes() const noexcept {
    return limit_bytes_.load(std::memory_order_relaxed);
  }
  void reset_peak_reserved() noexcept {
    const std::lock_guard lock(heap_mutex_);
    peak_reserved_ = reserved_;
  }
  void set_limit_bytes(std::uint64_t bytes) noexcept {
    limit_bytes_.store(bytes, std::memory_order_relaxed);
  }

 private:
  struct counters {
    std::atomic<std::uint64_t> growths{0}, stitches{0}, stitch_reuses{0}, seals{0},
        fence_queries{0}, stream_waits{0}, host_waits{0}, thread_caches_flushed{0},
        pressure_callbacks{0}, out_of_memory{0}, soft_limit_passes{0}, given_back_bytes{0};
  };

  // Streams and caches (streams.cpp).
  // The stream with one more holder, so that nobody collects it meanwhile.
  result<stream_state*> hold_stream(stream_handle handle, std::uint64_t id);
  std::unique_ptr<stream_state> new_stream(stream_handle handle, std::uint64_t id);
  heap::owner_id new_owner();
  void drop_owner(heap::owner_id owner) noexcept;
  void retire_stream(stream_state& gone) noexcept;
  enum class silent : std::uint8_t { all_others, without_caches };
  void fence_the_silent(const stream_state& newcomer, silent which);
  [[nodiscard]] bool much_unsealed(const stream_state& but) const;
  void collect_dead_streams();
  void empty_cache(thread_cache& of) noexcept;
  void empty_stream_cache(stream_state& stream) noexcept;
  void empty_large_stream_cache(stream_state& stream) noexcept;
  [[nodiscard]] bool flush_is_due() noexcept;
  void flush_helped(bool helped) noexcept;
  std::uint64_t flush_caches_of(const stream_state* only) noexcept;  // nullptr: all
  void flush_chain(stream_state& stream, heap::extent* chain) noexcept;
  void flush_small(thread_cache& in) noexcept;
  void seal_if_wanted(stream_state& stream) noexcept;
  void seal(stream_state& stream) noexcept;
  void set_cache_limits(thread_cache& of) noexcept;
  // Each cache (of one stream; nullptr: of all) under its lock, one barrier for all of them, their
  // remote frees sent and opened. Under the caches mutex, since a cache is deleted only after it
  // left the list. visit allocates nothing: the locks would stay taken.
  template <class Visit>
  void with_caches_locked(const stream_state* only, Visit&& visit) noexcept {
    const auto each = [&](auto&& doing) {
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

  // What a fast path does for its sort of cache (fast_path.hpp). All but the second under the
  // cache's lock; take_back gives that back.
  template <class Cache>
  void serve(Cache& in, heap::extent& block, std::uint64_t bytes) noexcept;
  [[nodiscard]] static bool may_take(const thread_cache& in, const heap::extent& block) noexcept;
  [[nodiscard]] static bool may_take(const captured_cache& in, const heap::extent& block) noexcept;
  void mark_served(thread_cache& in, heap::extent& block) noexcept;
  void mark_served(captured_cache& in, heap::extent& block) noexcept;
  [[nodiscard]] bool take_back(thread_cache& in, heap::extent* block, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool take_back(captured_cache& in, heap::extent* block,
                               std::uint64_t bytes) noexcept;
  [[nodiscard]] static bool claim(const thread_cache& in, heap::extent& block) noexcept;
  [[nodiscard]] static bool claim(const captured_cache& in, heap::extent& block) noexcept;

  // The slow paths (allocate.cpp, free.cpp).
  void hand_out(thread_cache& in, heap::extent& block, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool fell_asleep(thread_cache& in, heap::extent& block) noexcept;
  heap::extent* from_stream_cache(thread_cache& in, unsigned size_class) noexcept;
  heap::extent* large_from_stream_cache(thread_cache& in, std::uint64_t bytes) noexcept;
  void part_with(thread_cache& in, heap::extent* block) noexcept;
  [[nodiscard]] std::uint64_t stream_cache_limit(const thread_cache& in) const noexcept;
  [[nodiscard]] std::uint64_t streak_limit(const stream_state& stream) const noexcept;
  void stream_cache_missed(thread_cache& in, std::uint64_t bytes) noexcept;
  void reclaim_streaks(const stream_state* but) noexcept;
  // Not where the options say what a cache keeps, nor with one stream, whose heap nobody else
  // reads. Nor where nothing could fence what a stream kept that has fallen silent: no fence over
  // the context, and no callback that waits for the device.
  [[nodiscard]] bool streaks_count() const noexcept {
    return many_streams_.load(std::memory_order_relaxed) && options_.cache_large_bytes == 0 &&
           (options_.fences != context_fences::never || options_.on_pressure);
  }
  // A freed block into its cache, whose lock is given back.
  void keep(thread_cache& in, heap::extent* block) noexcept {
    if (block->holder_class != large_class) {
      const bool within = in.push_small(block);
      in.lock.owner_unlock();
      if (__builtin_expect(!within, 0)) flush_small(in);
    } else {
      heap::extent* const out = in.push_large(block);
      in.lock.owner_unlock();
      if (out != nullptr) part_with(in, out);
    }
  }

  // Remote frees between caches of a stream (cache/remote_frees.cpp).
  // Out of the fast paths' way: they spare registers for none of these.
  [[nodiscard, gnu::noinline]] bool post(thread_cache& in, std::uint64_t address,
                                         std::uint64_t bytes) noexcept;
  [[nodiscard, gnu::noinline]] bool send(thread_cache& in, heap::extent* block,
                                         std::uint64_t bytes) noexcept;
  void check_frees() noexcept;
  heap::extent* from_remote(thread_cache& in, std::uint64_t bytes, heap::extent** surplus) noexcept;
  heap::extent* accept(thread_cache& in, std::uint64_t address, std::uint64_t bytes) noexcept;
  void drain_remote(thread_cache& in) noexcept;
  [[gnu::cold, gnu::noinline]] void change_hands(thread_cache& to, heap::extent& block) noexcept;
  void connect(thread_cache& in, std::uint32_t number) noexcept;
  void disconnect(thread_cache& of) noexcept;
  heap::extent* carve(const request& what, thread_cache* refill);  // heap mutex taken here
  heap::extent* carve_locked(const request& what, bool runs);
  void take(heap::extent& block, const request& what);  // counts a block out of the heap
  result<heap::extent*> acquire(const request& what, thread_cache* refill);
  void ask_fences_now_and_then(const thread_cache& asking);
  heap::extent* rather_than_growing(const request& what, bool many);
  result<void> slow_free(void* ptr, std::uint64_t bytes, stream_handle stream,
                         thread_cache* in) noexcept;
  // Who frees: the stream, and the cache that counts the free where there is one.
  struct freer {
    stream_state* on = nullptr;
    thread_cache* counted = nullptr;
  };
  result<freer> who_frees(stream_handle stream, thread_cache* in, passing_cache& passing) noexcept;
  // counted: nullptr where no cache has the books.
  void count_free(thread_cache* counted, std::uint64_t bytes) noexcept;
  void count_uncached(std::uint64_t bytes) noexcept;
  result<void> free_special(heap::extent* block, std::uint64_t bytes, stream_handle stream,
                            const freer& who) noexcept;
  void free_used(heap::extent* block, stream_state& freed_on) noexcept;
  // False where the block is not live any more.
  [[nodiscard]] static bool make_special(heap::extent& block) noexcept {
    return state_of(block) == block_state::special ||
           change_state(block, block_state::live, block_state::special);
  }
  error refuse_free(const void* ptr, std::uint64_t bytes, stream_handle stream) noexcept;
  error explain_bad_free(const void* ptr, std::uint64_t bytes, stream_handle stream);
  error explain_refused(const void* ptr, std::uint64_t bytes, std::uint64_t requested,
                        stream_handle stream, block_state state);
  [[nodiscard]] bool would_pass_slack(const request& what);
  heap::extent* chained(const request& what);
  // What may as well be done later, unless another thread is at the fences.
  template <class Work>
  void when_free(Work&& work) {
    if (at_fences_.load(std::memory_order_relaxed) ||
        at_fences_.exchange(true, std::memory_order_acquire))
      return;
    struct leave {
      std::atomic<bool>& at;
      ~leave() { at.store(false, std::memory_order_release); }
    } const when_done{at_fences_};
    work();
  }
  heap::extent* settled(const request& what);

  // The ladder (pressure.cpp).
  class climb;
  result<heap::extent*> under_pressure(const request& what);
  [[nodiscard]] bool past_soft_limit(std::uint64_t more);
  void relieve(std::uint64_t bytes);
  std::uint64_t reclaim_from_others(std::uint64_t bytes);

  // Physical memory, within the budget (growth/budget.cpp). The status of a refusal by the budget
  // is out_of_memory.
  call_result create_physical(physical_handle* out, std::uint64_t bytes);
  call_result release_physical(physical_handle handle, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool take_budget(std::uint64_t bytes) noexcept;
  void give_budget(std::uint64_t bytes) noexcept;
  [[nodiscard]] error growth_error(call_result answer, std::uint64_t bytes) const;
  void join_budget();
  bool grow_for_later(const request& what);

  // Fences (fences.cpp).
  bool poll_fences() noexcept;
  bool poll_all_fences();
  bool poll_guarded() noexcept;
  bool seal_context() noexcept;
  bool seal_over_context();
  [[nodiscard]] bool captures_running();
  [[nodiscard]] bool any_gone() const;
  void note_capturing(stream_handle stream, std::uint64_t capture_id);
  [[nodiscard]] static std::uint64_t capture_key(stream_handle stream) noexcept;
  void note_not_capturing(stream_handle stream);
  // Whether a capture that was seen on this stream may still run. A look without a lock, for the
  // fast path.
  [[nodiscard]] bool may_capture(stream_handle stream) const noexcept;
  void capturing_changed() noexcept;
  void retire_in_heap(stream_state& stream);
  bool wait_for_a_fence(std::uint64_t deadline_ns);
  [[nodiscard]] event_handle nearest_fence();

  // Growth and giving back (growth/growth.cpp).
  enum class growth : std::uint8_t {
    none,
    more,   // there is room now: carve
    block,  // the block itself
  };
  growth grow(const request& what, heap::extent** block);
  [[nodiscard]] std::uint64_t slack_bytes(std::uint64_t size, std::uint32_t times) const;
  [[nodiscard]] std::uint64_t allowed_bytes(std::uint64_t size) const;
  [[nodiscard]] heap::heap::place place_for(const request& what) const;
  [[nodiscard]] std::uint64_t missing_bytes(const request& what) const {
    return place_for(what).missing;
  }
  [[nodiscard]] std::uint64_t piece_bytes(std::uint64_t reserved, std::uint64_t missing) const;
  [[nodiscard]] std::uint64_t span_bytes() const;
  [[nodiscard]] bool over_limit(std::uint64_t reserved, std::uint64_t more) const noexcept {
    return limit_bytes() != 0 && reserved + more > limit_bytes();
  }
  class extension;
  result<void> extend(std::uint64_t new_bytes);
  result<void> extend(heap::heap::place where);
  [[nodiscard]] heap::heap::place end_with_room(std::uint64_t bytes);
  result<void> add_chunk(std::uint64_t bytes);
  result<void> open_primary(std::uint64_t at_least);
  std::uint64_t give_back(std::uint64_t keep_bytes);
  void set_cache_limits() noexcept;
  void forget_peak() noexcept;
  bool give_back_handle(heap::handle_id id);
  void note_failure(error what);
  void note_fence_failure(error what);
  [[nodiscard]] memory_location location() const noexcept {
    return options_.kind == memory_kind::device ? memory_location::device : memory_location::host;
  }

  // Stitching (growth/stitch.cpp).
  struct bargain {
    std::uint64_t as_cheap_as =
        0;  // the new handles that plain growth would make; 0: whatever it costs
    std::uint64_t instead_of =
        0;  // the new bytes of plain growth, if a stitched range may take some
  };
  growth stitch(const request& what, const bargain& against, heap::extent** block);
  result<heap::heap::mapping> map_stitched(const heap::stitch_plan& plan);
  [[nodiscard]] heap::heap::mapping address_for_stitch(std::uint64_t bytes) const;
  result<heap::view_id> open_stitched_view(std::uint64_t at_least);
  [[nodiscard]] std::uint64_t most_mappings() const;

  // Captures (capture/capture.cpp).
  result<void*> allocate_in_capture(const capture_info& capture, std::uint64_t bytes,
                                    std::uint64_t alignment, stream_handle stream);
  // The capture that runs on a stream which a call about captures names, noted as running. `call`
  // begins its refusals, `instead` ends the one where nothing is captured.
  result<capture_info> begin_capture_call(stream_handle stream, const std::string& call,
                                          const char* instead);
  result<std::shared_ptr<capture_state>> open_capture(const capture_info& capture,
                                                      std::shared_ptr<arena_state> arena);
  heap::owner_id owner_in(capture_state& capture, std::uint64_t key);
  // A block for a stream of the capture, registered as the arena's.
  result<heap::extent*> acquire_captured(const capture_info& capture, std::uint64_t key,
                                         request& what);
  heap::extent* from_arena(const request& what, capture_state& capture);
  // freed_on: of the freeing stream; nullptr where nothing runs.
  // Under the captures mutex, of a block in the state guarded. Answers whose batch is to be sealed.
  stream_state* free_in_capture(heap::extent* block, stream_handle stream,
                                stream_state* freed_on) noexcept;
  void seal_kept(stream_state* freed_on) noexcept;
  void put_back(heap::extent& block, heap::owner_id owner,
                std::uint64_t batch = arena_batch::used) noexcept;
  void drain_released() noexcept;
  std::shared_ptr<arena_state> next_over() noexcept;
  // Arenas that captures share (capture/graph_arena.cpp).
  void settle_kept(arena_state& arena);
  void inherit(capture_state& capture, heap::owner_id first);
  [[nodiscard]] bool arena_over(const arena_state& arena) const noexcept {
    return !arena.held && arena.graphs.empty();
  }
  void end_capture(capture_state& gone) noexcept;
  void let_go_of_owners(capture_state& gone) noexcept;
  void end_arena(arena_state& gone) noexcept;
  void empty_arenas() noexcept;
  // A capture's caches (capture/capture_cache.cpp).
  void refill_captured(captured_cache& in, const request& what) noexcept;
  void flush_captured(captured_cache& of, heap::extent* chain) noexcept;

  // The end (close.cpp). Under the growth and heap mutexes.
  void end_everything(std::vector<error>& failures) noexcept;
  void release_handles(std::vector<error>& failures);
  void release_chunks(std::vector<error>& failures);

  // Sleep (sleep/sleep.cpp).
  result<void> refuse_captures();
  result<std::shared_ptr<pinned_store>> store_for(const sleep_options& options, sleep_outcome& out);
  sleeping_memory::ways sleeping_ways();
  void woken();

  // Words (report/statistics.cpp, report/explain.cpp, report/keepers.cpp).
  class keeper_survey;
  void count_caches(pool_statistics& out);
  void count_streams(pool_statistics& out);
  void count_captures(pool_statistics& out);
  void count_heap(pool_statistics& out);
  error out_of_memory_report(const request& what, std::vector<ladder_step> ladder);
  void find_keepers(memory_report& out);
  void explain_reason(memory_report& out) const;

  [[nodiscard]] heap::absorb_idle absorb() const noexcept {
    return many_streams_.load(std::memory_order_relaxed) ? heap::absorb_idle::no
                                                         : heap::absorb_idle::yes;
  }

  const std::uint32_t born_in_fork_ = fork_count();
  std::shared_ptr<driver> gpu_;  // nullptr once the pool is closed: nobody asks it then
  pool_options options_;
  std::atomic<std::uint64_t> limit_bytes_{options_.limit_bytes};
  std::uint64_t granularity_ = 0;  // of handles; 0: the pool grows by chunks
  // Written under sleep_mutex_, but for the end; read without it by every call.
  enum class phase : std::uint8_t { serving, asleep, closed };
  std::atomic<phase> phase_{phase::serving};
  std::shared_ptr<memory_budget::member> budget_;  // nullptr: no budget
  std::mutex sleep_mutex_;                         // over a whole sleep or wake, before all others
  sleeping_memory sleeping_;                       // under sleep_mutex_
  std::atomic<std::uint64_t> asleep_bytes_{0};
  std::atomic<std::uint64_t> looks_{0};  // calls of give_back without a clock

  std::mutex growth_mutex_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> reservations_;  // under growth_mutex_

  alignas(64) brief_mutex heap_mutex_;
  heap::heap heap_;            // under heap_mutex_, but for find()
  heap::view_id primary_ = 0;  // the rest to last_failure_ under heap_mutex_
  bool has_primary_ = false;
  std::uint64_t reserved_ = 0;
  std::uint64_t peak_reserved_ = 0;
  std::atomic<std::uint64_t> reserved_lately_{
      0};  // as of the last carving, for a look without the lock
  std::uint64_t carved_ =
      0;  // bytes of blocks out of the heap: live, or in a cache or stream cache
  std::uint64_t peak_carved_ =
      0;  // since the last trim to nothing: what slack and caches are a share of
  std::uint64_t peak_out_ = 0;  // of all time before that trim, for the statistics
  std::uint64_t fallen_ = 0;    // the deepest that carved_ has lain below its peak
  bool was_busy_ = false;       // more than half of the peak has been out since the last lull
  std::uint64_t carvings_ = 0;  // since the last lull
  reclaim_budget reclaims_;     // since the last trim to nothing
  std::uint64_t guarded_bytes_ = 0;
  std::vector<heap::owner_id> free_owners_;
  heap::owner_id next_owner_ = 1;
  error last_failure_;               // why the last growth failed
  error last_fence_failure_;         // and the last fence
  std::unique_ptr<span_ages> ages_;  // once give_back was asked for

  mutable std::shared_mutex streams_mutex_;
  std::unordered_map<std::uint64_t, std::unique_ptr<stream_state>> streams_;  // by identity
  std::unordered_map<stream_handle, std::uint64_t> identity_of_;  // last known, to notice the gone
  std::unordered_set<std::uint64_t> used_;  // identities of other streams of the pool's context,
                                            // which record_use named
  std::size_t collect_at_ = 64;             // look for dead streams when so many are known
  std::atomic<bool> many_streams_{
      false};  // more than one stream was seen: seal, and keep batches apart
  std::atomic<std::uint32_t> patience_{
      512};                    // questions to fences before memory is added beyond the slack
  contention_estimate queue_;  // threads whose requests the heap could not serve at once
  std::atomic<bool> lull_{
      false};  // nearly all was given back: a hint, the next slow request empties the caches
  std::atomic<std::uint64_t> seal_wish_{0};  // raised when a stream finds nothing idle
  // A thread seals or asks fences, where it need not at once. Threads that record and ask events
  // together wait for one lock of the driver's: a pair that seals took 184 ns on one thread, 4.2 us
  // on two and 52 us on sixteen (H200, driver 580.159, 2026-11-30).
  alignas(64) std::atomic<bool> at_fences_{false};

  std::mutex caches_mutex_;
  std::vector<thread_cache*> caches_;
  std::size_t caches_coming_ = 0;              // there is room for them in caches_
  std::atomic<std::uint64_t> cache_count_{0};  // its size, for a look without the lock
  std::uint32_t last_cache_ = 0;               // the number that the last cache got
  std::vector<captured_cache*> capture_caches_;
  bool checks_frees_ = false;  // each cache's flag of that name, for new ones
  cache_counters past_;        // of dropped caches; written under caches_mutex_
  block_owners block_owners_;  // opened under caches_mutex_
  refused_frees refused_;
  // Counts of a heuristic: threads may overwrite each other's.
  std::atomic<std::uint32_t> flushes_to_skip_{0}, flush_pause_{0};
  std::atomic<std::uint64_t> cache_small_{0}, cache_large_{0};  // the limits that new caches get
  counters counts_;

  order::event_cache events_;
  order::context_fence context_fence_;
  stream_state limbo_;  // frees that only a context fence can cover

  std::mutex captures_mutex_;
  // Streams that captured when a call last named them, and in which capture. A capture counts as
  // running until one of its streams is seen out of it or its graph is gone.
  std::unordered_map<std::uint64_t, std::uint64_t> capturing_;
  // Its size, and a bit for each of its keys, for looks without the lock: they publish nothing,
  // since a thread asks them about its own streams alone.
  std::atomic<std::uint64_t> capturing_count_{0}, capturing_bits_{0};
  std::unordered_map<std::uint64_t, std::shared_ptr<capture_state>> captures_;
  std::unordered_map<std::uint64_t, std::shared_ptr<arena_state>>
      arenas_;  // shared ones, by number
  std::uint64_t next_arena_ = 1;
  const std::shared_ptr<release_queue> released_ = std::make_shared<release_queue>();

  cross_stream_uses uses_;
};

}  // namespace millpond
