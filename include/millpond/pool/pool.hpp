// The stream-ordered pool: memory of one kind on one device, placed by us, ordered by streams.
//
// A block freed on a stream serves the next allocation of that stream at once, and other streams
// once the freeing stream has passed the free. The life of an allocation through caches, stream
// caches, the heap and growth is in docs/internals/life_of_an_allocation.md.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "millpond/memory/memory_budget.hpp"
#include "millpond/memory/memory_resource.hpp"
#include "millpond/pool/graph_arena.hpp"
#include "millpond/pool/memory_report.hpp"
#include "millpond/pool/sleep.hpp"

namespace millpond {

struct thread_cache;       // src/pool/cache/thread_cache.hpp
struct captured_cache;     // src/pool/capture/capture_state.hpp
class host_memory_source;  // millpond/memory/host_pinner.hpp

// When a block that another stream freed may serve an allocation.
enum class reuse_policy : std::uint8_t {
  same_stream,  // never: each stream has its own blocks until trim or pressure
  idle,         // when its fence is seen to have passed; streams never wait for each other
  may_wait,  // also by making the allocating stream wait on the GPU for the fence, where the pool
             // would otherwise grow past its slack: fewer bytes, at the price of chained streams
};

// Frees of a stream that was destroyed, and memory of released graphs, can only be fenced by an
// event over the whole context (cuCtxRecordEvent). What streams that make no call any more freed
// last is fenced so too, when a new stream comes or the pool would pass its slack, where it is an
// eighth of the pool or more. That call breaks a capture that runs in the context, and CUDA offers
// no question that finds every capture: the pool knows those that allocated from it, and those on
// blocking streams. Nor can the question and the event be one step: a capture that another thread
// begins between the two is broken. A program that cannot bear that takes context_fences::never.
enum class context_fences : std::uint8_t {
  when_no_known_capture,
  never,  // for programs that capture on non-blocking streams without allocating: such memory then
          // waits for the pool's end
};

struct pool_options {
  memory_kind kind = memory_kind::device;  // device, pinned or managed
  // kind pinned: where its memory comes from, given back when the pool ends; nullptr: the driver
  // (cuMemCreate on a host node, or cuMemHostAlloc). pinned_pool.hpp makes one that is pinned by
  // many threads.
  std::shared_ptr<host_memory_source> host_memory = {};
  std::string name = {};          // in reports and budgets
  std::uint64_t limit_bytes = 0;  // hard limit on reserved bytes; 0: the device's
  // Past it the pool first takes back what it keeps unused, and has its budget's other members do
  // so, and then grows only by what is missing; 0: none.
  std::uint64_t soft_limit_bytes = 0;
  // Limits that several pools and buffers share; its own limits hold besides limit_bytes.
  std::shared_ptr<memory_budget> budget = {};
  std::uint64_t initial_bytes = 0;  // reserved when the pool is made
  reuse_policy reuse = reuse_policy::idle;
  context_fences fences = context_fences::when_no_known_capture;
  // Reserved bytes that the pool may hold beyond the largest sum of live bytes it has seen, as a
  // share of it (at least 8 MiB; of a peak over 3 GiB the first 3 GiB count), before it prefers
  // stitching to growing. Up to there it grows unless stitching costs no more. Where several
  // threads queue for memory that is not there the slack counts once for each, at most 8 times.
  // Less slack: fewer bytes, more driver calls in the first rounds. The trade-off curve is in
  // docs/measured/fragmentation.md.
  double slack = 0.04;
  // What one cache (a thread on a stream) may keep in small blocks, and in large blocks by exact
  // size; 0 for the default: 0.5% and 0.1% of the peak of live bytes, or 1 MiB and 4 MiB where that
  // is more.
  std::uint64_t cache_small_bytes = 0;
  std::uint64_t cache_large_bytes = 0;
  // Nanoseconds that an allocation may wait for the GPU before it reports out_of_memory. Waiting is
  // the last step but one of the pressure ladder.
  std::uint64_t max_wait_ns = 1'000'000'000;
  // Host time in nanoseconds, for the bounded wait. Without one the wait is a plain synchronise.
  std::function<std::uint64_t()> clock = {};
  // Called with no lock held when nothing else helps; it may free into the pool, spill, or trim
  // another. Returns true where a retry makes sense. bytes: what is missing.
  std::function<bool(std::uint64_t bytes)> on_pressure = {};
};

// A moment's numbers. Exact when no call is in flight; otherwise off by no more than what is in
// flight.
struct pool_statistics {
  std::uint64_t live_bytes = 0;  // asked for and not freed
  std::uint64_t live_blocks = 0;
  std::uint64_t peak_out_bytes =
      0;  // largest sum of blocks out of the heap: live, or kept by a cache
  std::uint64_t reserved_bytes = 0;  // physical memory held
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t mapped_bytes = 0;    // addresses mapped: a handle counts once a mapping
  std::uint64_t cached_bytes = 0;    // in caches, on their way between caches, and in stream caches
  std::uint64_t pending_bytes = 0;   // freed, waiting for a fence before other streams may have it
  std::uint64_t idle_bytes = 0;      // free for anyone
  std::uint64_t capture_bytes = 0;   // owned by captured graphs
  std::uint64_t metadata_bytes = 0;  // host memory of the pool's own books
  std::uint64_t allocations = 0, deallocations = 0;
  std::uint64_t thread_cache_hits = 0;  // allocations served with no lock
  std::uint64_t stream_cache_hits = 0;  // what another cache of the stream had freed: through a
                                        // remote free queue or from the stream cache
  std::uint64_t heap_hits = 0;
  std::uint64_t growths = 0;        // physical handles created
  std::uint64_t stitches = 0;       // handles mapped once more, for a stitched range
  std::uint64_t stitch_reuses = 0;  // stitched ranges that were mapped already: no driver call
  std::uint64_t seals = 0;          // events recorded
  std::uint64_t fence_queries = 0;
  std::uint64_t stream_waits = 0;           // waits put on a stream, policy may_wait
  std::uint64_t host_waits = 0;             // the ladder waited for a fence
  std::uint64_t thread_caches_flushed = 0;  // other threads' caches emptied under pressure
  std::uint64_t pressure_callbacks = 0;
  std::uint64_t out_of_memory = 0;
  std::uint64_t lock_waits = 0;         // times a thread found the heap's lock taken
  std::uint64_t soft_limit_passes = 0;  // growths past the soft limit, the pool's or its budget's
  std::uint64_t given_back_bytes = 0;   // by trim, age, pressure and sleep
  std::uint64_t asleep_bytes = 0;       // physical memory that is away while the pool sleeps
  std::uint64_t streams = 0, thread_caches = 0, captures = 0;  // kept now
  std::uint64_t graph_arenas = 0;  // shared ones, made by make_graph_arena and not yet over
};

class pool final : public memory_resource {
 public:
  class core;
  template <class Cache>
  class basic_cache_handle;
  using cache_handle = basic_cache_handle<thread_cache>;
  using capture_cache_handle = basic_cache_handle<captured_cache>;

  [[nodiscard]] static result<std::shared_ptr<pool>> create(std::shared_ptr<driver> gpu,
                                                            pool_options options = {});
  // Gives everything back, waiting for the device if work is pending. Live blocks die with the pool
  // and are reported to the error sink. Not while a stream captures: waiting for the device breaks
  // a capture.
  ~pool() override;

  [[nodiscard]] memory_kind kind() const noexcept override;
  [[nodiscard]] driver* gpu() const noexcept override;

  // As memory_resource's, by a shorter way.
  [[nodiscard]] void* allocate(std::uint64_t bytes, std::uint64_t alignment, stream_handle stream);
  [[nodiscard]] void* allocate(std::uint64_t bytes, stream_handle stream) {
    return allocate(bytes, default_alignment, stream);
  }
  // A wrong free (other bytes, freed twice) of a block that another thread's cache of the stream
  // handed out is reported when that cache meets it, by a later call; freed twice and handed out
  // again in between, the second free takes it from its new owner. try_deallocate, and the audit
  // build, tell at once.
  void deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept;

  // A cache of its own on a stream, for callers who keep it: its calls ask the driver nothing, so
  // the caller promises that the stream lives and does not capture (pool.allocate serves captures;
  // the audit build stops a handle that is used in one). One thread at a time. Blocks may be freed
  // through any cache or the pool.
  [[nodiscard]] cache_handle cache(stream_handle stream);

  // The same inside a capture, for the capture that runs on `stream` now: what it serves is memory
  // of the capture's graph, or of its arena. Its calls ask the driver nothing, so the caller
  // promises that they are made while that capture runs (the audit build stops one that is used
  // outside). One thread at a time. Throws memory_error where no capture runs on the stream. Let it
  // go when the capture ends: what it keeps serves later captures of the arena only then.
  [[nodiscard]] capture_cache_handle capture_cache(stream_handle stream);

  // Memory that several captured graphs share (graph_arena.hpp has the rules). Asks the driver
  // nothing.
  [[nodiscard]] graph_arena make_graph_arena();
  // The capture that runs on `stream` allocates from the arena, on all its streams, from here to
  // its end. Before its first allocation: afterwards not_permitted, since it has memory of its own;
  // not_permitted too where no capture runs there. invalid_argument for an empty arena, another
  // pool's, or a destroyed stream. Attached to it already: nothing changes. Two captures of one
  // arena may run at the same time, on any threads; the later one gets what is free.
  result<void> capture_into(const graph_arena& arena, stream_handle stream);
  // The capture that ran on `stream` has ended, as far as the driver says so too: for programs that
  // know, so that synchronize and pressure need not wait until another call names the stream. The
  // stream must live.
  void look_for_capture_end(stream_handle stream) noexcept;

  // Says that work already put, or about to be put before the free, on `stream` uses the block:
  // its free then waits (on the GPU's order, not on the CPU) for that stream as well. The stream
  // must live until the free: a CUDA driver that is asked about a destroyed stream may crash.
  result<void> record_use(void* ptr, stream_handle stream) noexcept;

  // The block that an address lies in: start and usable bytes; foreign_pointer where it is not
  // ours.
  struct block_range {
    void* start = nullptr;
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] result<block_range> find(const void* ptr) const noexcept;

  // Gives back whole unused spans until at most keep_bytes are reserved; answers the bytes given
  // back. Never waits for the GPU: what is pending stays. With keep_bytes 0 the slack and the
  // caches' limits start anew, as in a new pool, and streams of which nothing is left are
  // forgotten: with one left the pool records no events again.
  std::uint64_t trim(std::uint64_t keep_bytes = 0);

  // Waits for the device (no lock is held meanwhile) and counts everything that was freed or
  // released before as done, by no fence: for programs that allow none over the whole context
  // (context_fences::never). not_permitted while a capture is known to run, since waiting for the
  // device would break it; one that the pool does not know is broken.
  result<void> synchronize();

  // A new hard limit on reserved bytes in the place of pool_options::limit_bytes; 0: the device's.
  // What is reserved beyond it stays until trim; growth is refused.
  void set_limit_bytes(std::uint64_t bytes) noexcept;
  // peak_reserved_bytes of the statistics starts anew from what is reserved now.
  void reset_peak_reserved() noexcept;

  // Makes sure that one block of so many bytes, or smaller ones of that sum, can be had without
  // asking the driver for memory, by any stream, until somebody takes it or it is trimmed.
  // out_of_memory where it cannot be; nothing else changes then. Never waits for the GPU.
  result<void> reserve(std::uint64_t bytes);

  // Whether a block of so many bytes could be had on `stream`, and how. Allocates nothing and asks
  // the driver only how much memory is free; true of this moment alone.
  enum class fit : std::uint8_t {
    now,         // free memory of the pool would serve it
    by_growing,  // the limits, the budget and the device leave room for it
    by_waiting,  // once pending frees have passed
    no,          // not before the program frees, or another owner does
  };
  struct admission {
    fit how = fit::no;
    std::uint64_t new_bytes = 0;      // physical memory that by_growing would take
    std::uint64_t missing_bytes = 0;  // where `no`: what would have to be freed at least
  };
  [[nodiscard]] admission would_fit(std::uint64_t bytes, stream_handle stream = nullptr) const;

  // Gives back whole spans that have been unused for so many nanoseconds (of pool_options::clock),
  // as long as at least keep_bytes stay reserved; answers the bytes given back. An age counts from
  // the first call that saw the span unused, so call it now and then, from a thread that serves
  // nobody (background_give_back.hpp has one). Without a clock, what was unused at the call before
  // and has not been used since is old enough. Never waits for the GPU; takes the pool's growth
  // lock for one span at a time.
  std::uint64_t give_back(std::uint64_t older_than_ns, std::uint64_t keep_bytes = 0);

  // Gives a live block a name by which sleep can drop its contents. Ends when the block is freed.
  // Blocks that many allocations a second go through should have none: their frees leave the fast
  // path.
  result<void> set_tag(void* ptr, std::string_view tag);

  // Gives all physical memory back, while every address stays the block's. Waits for the device;
  // nothing of the program may use the pool's memory from this call until wake() has returned. Kept
  // contents are in pinned host memory meanwhile. Asleep, the pool refuses allocation
  // (not_permitted) and takes frees. All or nothing: where a driver call fails everything is as it
  // was before, and where even that is refused by the driver the pool stays asleep, loses nothing,
  // and wake() can be tried again; the message says which. Device pools over virtual memory only;
  // not while a capture is known to run.
  [[nodiscard]] result<sleep_outcome> sleep(const sleep_options& options = {});
  // The other way, at the same addresses. out_of_memory where another owner has the memory now: the
  // pool then stays asleep with all contents.
  [[nodiscard]] result<wake_outcome> wake();
  [[nodiscard]] bool asleep() const noexcept;

  // Where the memory is: who keeps it from a request. Slow (walks the heap).
  [[nodiscard]] memory_report explain() const;

  [[nodiscard]] pool_statistics statistics() const;

  // Walks every structure and stops the program at the first broken invariant. Slow; for tests.
  void check() const;

 protected:
  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) override;
  result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                             stream_handle stream) noexcept override;

 private:
  explicit pool(std::shared_ptr<core> state);
  void report_refused() noexcept;
  std::shared_ptr<core> core_;
};

// What pool::cache and pool::capture_cache give. The two differ in whose blocks they keep, not in
// their calls.
template <class Cache>
class pool::basic_cache_handle {
 public:
  basic_cache_handle(basic_cache_handle&&) noexcept;
  basic_cache_handle& operator=(basic_cache_handle&&) noexcept;
  ~basic_cache_handle();  // what the cache keeps goes back to the pool, or to its capture

  // Throws out_of_memory or memory_error, as memory_resource::allocate. alignment: the default.
  [[nodiscard]] void* allocate(std::uint64_t bytes);
  // As pool::deallocate, errors to the pool's sink; the pool must live. In a capture, a block that
  // is neither the capture's nor of its arena is freed as by pool::deallocate.
  void deallocate(void* ptr, std::uint64_t bytes) noexcept;
  // The same with the error as a result.
  [[nodiscard]] result<void> try_deallocate(void* ptr, std::uint64_t bytes) noexcept;
  [[nodiscard]] stream_handle stream() const noexcept;

 private:
  friend class pool;
  basic_cache_handle(pool& owner, std::shared_ptr<core> state, std::unique_ptr<Cache> own);
  void* allocate_slowly(std::uint64_t bytes);
  void deallocate_slowly(void* ptr, std::uint64_t bytes) noexcept;
  pool* owner_;
  std::shared_ptr<core> core_;
  std::unique_ptr<Cache> cache_;
};
extern template class pool::basic_cache_handle<thread_cache>;
extern template class pool::basic_cache_handle<captured_cache>;

}  // namespace millpond
