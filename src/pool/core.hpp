// The pool behind its public face: the parts, each with a lock and members of its own, and what
// conducts them. How they may be locked together: docs/internals/fences_and_locks.md.
//
// No lock is held over a driver call that can wait for the device, but the one of a sleep and, at
// the end, that of physical memory.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/fork.hpp"
#include "millpond/pool/pool.hpp"
#include "pool/block_store.hpp"
#include "pool/cache/cache_directory.hpp"
#include "pool/capture/capture_directory.hpp"
#include "pool/capture/capture_watch.hpp"
#include "pool/cross_stream_uses.hpp"
#include "pool/growth/physical_memory.hpp"
#include "pool/phase.hpp"
#include "pool/sleep/sleeping_memory.hpp"
#include "pool/stream_directory.hpp"

namespace millpond {

class pool::core : public std::enable_shared_from_this<pool::core> {
 public:
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
  result<void*> allocate_from(thread_cache& in, std::uint64_t bytes,
                              std::uint64_t alignment = heap::granule);
  result<void*> allocate_from(captured_cache& in, std::uint64_t bytes);
  result<void> deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept;
  result<void> deallocate_to(thread_cache& in, void* ptr, std::uint64_t bytes) noexcept;
  result<void> deallocate_to(captured_cache& in, void* ptr, std::uint64_t bytes) noexcept;

  // The two fast paths, in a thread's cache and in a capture's: nullptr and false mean "take the
  // slow one". They and the next three are written into the calls that include fast_path.hpp.
  [[nodiscard]] void* pop_here(thread_cache& in, std::uint64_t bytes) noexcept;
  [[nodiscard]] void* pop_here(captured_cache& in, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool push_here(thread_cache& in, void* ptr, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool push_here(captured_cache& in, void* ptr, std::uint64_t bytes) noexcept;
  // Before the block's record is looked at, which is another core's: for calls that may report an
  // error later.
  [[nodiscard]] bool posted(thread_cache& in, void* ptr, std::uint64_t bytes) noexcept;
  [[nodiscard]] static bool posted(const captured_cache&, void*, std::uint64_t) noexcept {
    return false;  // a capture's caches send each other nothing
  }
  // The calling thread's cache for a plain allocation where nothing is unusual: the stream is the
  // one that the cache was made for, and captures nothing. Otherwise nullptr, and allocate() finds
  // out what it is.
  [[nodiscard]] thread_cache* usual_cache(stream_handle stream) noexcept;
  // The same for a plain free.
  [[nodiscard]] thread_cache* cache_of_free(stream_handle stream) noexcept;
  [[nodiscard]] void* pop_shared(thread_cache& in, std::uint64_t bytes) noexcept {
    return caches_.pop_shared(in, bytes);
  }
  [[nodiscard]] static void* pop_shared(const captured_cache&, std::uint64_t) noexcept {
    return nullptr;  // there is no stream cache in a capture
  }

  result<std::unique_ptr<thread_cache>> make_cache(stream_handle stream);
  result<std::unique_ptr<captured_cache>> make_captured_cache(stream_handle stream) {
    return captures_.make_cache(stream);
  }
  void drop_cache(thread_cache& of) noexcept;
  void drop_cache(captured_cache& of) noexcept;
  graph_arena make_graph_arena() { return captures_.make_arena(); }
  result<void> capture_into(const graph_arena::hold& arena, stream_handle stream) {
    return captures_.capture_into(arena, stream);
  }
  void look_for_capture_end(stream_handle stream) noexcept { watch_.look_for_end(stream); }

  // Frees that were refused when their remote free queue was opened, and have not been reported.
  [[nodiscard]] bool has_refused() const noexcept { return caches_.has_refused(); }
  std::vector<error> take_refused();

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
  memory_report explain(const block_request* what = nullptr, std::vector<ladder_step> ladder = {});
  pool_statistics statistics();
  void check();  // the whole-structure walker
  void reset_peak_reserved() noexcept { block_store::locked(blocks_).reset_peak_reserved(); }
  void set_limit_bytes(std::uint64_t bytes) noexcept { memory_.set_limit_bytes(bytes); }

  [[nodiscard]] bool closed() const noexcept { return phase_.closed(); }
  [[nodiscard]] bool asleep() const noexcept { return phase_.asleep(); }
  [[nodiscard]] bool serving() const noexcept { return phase_.serving(); }
  [[nodiscard]] error not_serving() const;
  // Serving, and not in a forked child.
  [[nodiscard]] bool open_here() const noexcept { return serving() && !forked(); }
  // True in a child of the process that made the pool: touch no lock and no driver then.
  [[nodiscard]] bool forked() const noexcept { return fork_count() != born_in_fork_; }
  [[nodiscard]] driver& gpu() const noexcept { return *gpu_; }
  [[nodiscard]] const pool_options& options() const noexcept { return options_; }

 private:
  // A cache for the length of one call, where the thread can keep none any more.
  struct passing_cache {
    core& of;
    std::unique_ptr<thread_cache> cache;
    ~passing_cache() {
      if (cache != nullptr) of.drop_cache(*cache);
    }
  };

  // Allocating (allocate.cpp).
  result<std::uint64_t> identity(stream_handle stream);
  result<capture_info> capture_of(stream_handle stream, bool* unidentified);
  result<void*> allocate_unidentified(std::uint64_t bytes, std::uint64_t alignment,
                                      stream_handle stream);
  // Into the calling thread's table; the cache itself where the thread can keep none.
  [[nodiscard]] std::unique_ptr<thread_cache> attach(stream_handle stream,
                                                     std::unique_ptr<thread_cache> made) noexcept;

  // Caches keep more of a pool that has grown: by its peak when it last did.
  void set_cache_limits() noexcept {
    caches_.set_limits(block_store::locked(blocks_).peak_at_growth());
  }

  // The ladder (ladder.cpp): the ways to a block, cheapest first. refill: a cache that is filled on
  // the way; nullptr where there is none.
  class climb;
  result<heap::extent*> acquire(const block_request& what, thread_cache* refill);

  // Freeing (free.cpp).
  result<void> slow_free(void* ptr, std::uint64_t bytes, stream_handle stream,
                         thread_cache* in) noexcept;
  // A free while the pool does not serve: asleep it is taken, and its contents are not brought
  // back.
  result<void> free_unserved(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept;
  // Who frees: the stream, and the cache that counts the free where there is one.
  struct freer {
    stream_state* on = nullptr;
    thread_cache* counted = nullptr;
  };
  result<freer> who_frees(stream_handle stream, thread_cache* in, passing_cache& passing) noexcept;
  result<void> free_special(heap::extent* block, std::uint64_t bytes, stream_handle stream,
                            const freer& who) noexcept;
  void free_used(heap::extent* block, stream_state& freed_on) noexcept;
  error refuse_free(const void* ptr, std::uint64_t bytes, stream_handle stream) noexcept;
  error explain_bad_free(const void* ptr, std::uint64_t bytes, stream_handle stream);
  error explain_refused(const refused_frees::refused& one);

  // The end (life.cpp).
  void end_everything(std::vector<error>& failures) noexcept;

  // Sleep (sleep/sleep.cpp).
  result<void> refuse_captures();
  result<std::shared_ptr<pinned_store>> store_for(const sleep_options& options, sleep_outcome& out);
  sleeping_memory::ways sleeping_ways();
  void woken();

  // Words (report/statistics.cpp, report/explain.cpp, report/keepers.cpp).
  class keeper_survey;
  void count_blocks(pool_statistics& out);
  error out_of_memory_report(const block_request& what, std::vector<ladder_step> ladder);
  void find_keepers(memory_report& out);
  void explain_reason(memory_report& out) const;

  const std::uint32_t born_in_fork_ = fork_count();
  std::shared_ptr<driver> gpu_;  // nullptr once the pool is closed: nobody asks it then
  const pool_options options_;
  pool_phase phase_;
  block_store blocks_;
  cross_stream_uses uses_;
  capture_watch watch_;
  stream_directory streams_;
  cache_directory caches_;
  capture_directory captures_;
  physical_memory memory_;
  std::atomic<std::uint64_t> pressure_callbacks_{0}, out_of_memory_{0};
  // Held shared by whoever acts for another owner of the budget, alone by the pool's end.
  std::shared_mutex ending_mutex_;
  std::mutex sleep_mutex_;    // over a whole sleep or wake, before all others
  sleeping_memory sleeping_;  // under sleep_mutex_
};

}  // namespace millpond
