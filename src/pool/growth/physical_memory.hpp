// A pool's physical memory: what it has from the driver, within its limits and its budget; how it
// grows, stitches and gives back.
//
// One lock, held over the driver calls that create, map and unmap memory, none of which waits
// (measured on an H200).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "heap/stitch.hpp"
#include "millpond/memory/memory_budget.hpp"
#include "pool/block_store.hpp"

namespace millpond {

// Any thread. Takes its own lock, then that of blocks. What calls the driver is called inside an
// own_calls_scope, unless a line says otherwise.
class physical_memory {
 public:
  physical_memory(driver& gpu, const pool_options& options, const pool_phase& phase,
                  block_store& blocks);

  // Addresses and the options' initial_bytes. Outside a scope.
  result<void> open(std::shared_ptr<memory_budget::member> budget);
  // Everything back to the driver, whatever it answers; nothing uses it any more.
  // with_handles: not where the memory is asleep, and no handle has any.
  void close(bool with_handles, std::vector<error>& failures);
  // Work may still run on the memory: it is left to the driver, which gives it back when the
  // context ends.
  void leave_to_driver();

  // Growing
  // --------------------------------------------------------------------------

  enum class growth : std::uint8_t {
    none,
    more,   // there is room now: carve
    block,  // the block itself
  };
  // Makes room for a request: at the end of the primary range while that stays within the slack, or
  // by stitching where that costs no more; beyond the slack by stitching, which may answer the
  // block itself; else by more memory.
  growth grow(const block_request& what, heap::extent** block);
  // By stitching alone, at whatever price; nullptr.
  heap::extent* stitched(const block_request& what);
  // More memory at the end of the primary range, in one stretch with what is free there.
  bool grow_for_later(const block_request& what);
  // Whether the request would need memory beyond the slack.
  [[nodiscard]] bool would_pass_slack(const block_request& what);
  [[nodiscard]] pool::admission would_fit(std::uint64_t bytes, heap::owner_id owner);
  // Why there was no growth when there last was none.
  [[nodiscard]] error last_failure() const;

  // Giving back
  // --------------------------------------------------------------------------

  // Whole idle spans, the last mapped first, as long as keep_bytes stay. Idle means that the host
  // has seen the fence, so that nothing runs on them.
  std::uint64_t give_back(std::uint64_t keep_bytes);
  // Those that have been unused for so long.
  std::uint64_t give_back_old(std::uint64_t older_than_ns, std::uint64_t keep_bytes);
  // Past the soft limit: what is unused goes back before more is taken.
  [[nodiscard]] bool past_soft_limit(std::uint64_t more);
  void relieve(std::uint64_t bytes);
  std::uint64_t reclaim_from_others(std::uint64_t bytes);

  // Limits
  // --------------------------------------------------------------------------

  // The hard limit on reserved bytes; 0: the device's. A number alone: it publishes nothing.
  [[nodiscard]] std::uint64_t limit_bytes() const noexcept {
    return limit_bytes_.load(std::memory_order_relaxed);
  }
  void set_limit_bytes(std::uint64_t bytes) noexcept {
    limit_bytes_.store(bytes, std::memory_order_relaxed);
  }
  [[nodiscard]] const memory_budget::member* budget() const noexcept { return budget_.get(); }
  // Of handles; 0: the pool grows by chunks, and neither stitches nor gives back before its end.
  [[nodiscard]] std::uint64_t granularity() const noexcept { return granularity_; }
  [[nodiscard]] memory_location location() const noexcept {
    return options_.kind == memory_kind::device ? memory_location::device : memory_location::host;
  }

  // Sleeping
  // --------------------------------------------------------------------------

  // Nothing is created, mapped or unmapped for as long as this lives, except by its holder.
  [[nodiscard]] std::unique_lock<mutex> hold() { return std::unique_lock(mutex_); }
  // By the holder of that. Within the budget; the status of a refusal by it is out_of_memory.
  call_result create(physical_handle* out, std::uint64_t bytes);
  call_result release(physical_handle handle, std::uint64_t bytes) noexcept;
  // The memory has gone to sleep, or has come back.
  void fell_asleep(std::uint64_t bytes) noexcept;
  void woke(std::uint64_t bytes) noexcept;
  [[nodiscard]] std::uint64_t asleep_bytes() const noexcept {
    return asleep_bytes_.load(std::memory_order_relaxed);
  }
  void count_given_back(std::uint64_t bytes) noexcept {
    given_back_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }

  void count(pool_statistics& out) const;

 private:
  class extension;
  [[nodiscard]] bool over_limit(std::uint64_t reserved, std::uint64_t more) const noexcept {
    return limit_bytes() != 0 && reserved + more > limit_bytes();
  }
  [[nodiscard]] error limit_error(std::uint64_t reserved, std::uint64_t more) const;
  [[nodiscard]] bool take_budget(std::uint64_t bytes) noexcept;
  void give_budget(std::uint64_t bytes) noexcept;
  [[nodiscard]] error growth_error(call_result answer, std::uint64_t bytes) const;
  void note_failure(error what);

  [[nodiscard]] heap::heap::place place_for(const block_store::locked& books,
                                            const block_request& what) const;
  [[nodiscard]] std::uint64_t piece_bytes(const block_store::locked& books, std::uint64_t reserved,
                                          std::uint64_t missing) const;
  [[nodiscard]] std::uint64_t span_bytes(const block_store::locked& books) const;
  [[nodiscard]] static heap::heap::place end_with_room(const block_store::locked& books,
                                                       std::uint64_t bytes);
  result<void> extend(std::uint64_t new_bytes) MILLPOND_REQUIRES(mutex_);
  result<void> extend(heap::heap::place where) MILLPOND_REQUIRES(mutex_);
  result<void> add_chunk(std::uint64_t bytes) MILLPOND_REQUIRES(mutex_);
  result<device_address> chunk_from_driver(std::uint64_t bytes);
  result<void> open_primary(std::uint64_t at_least) MILLPOND_REQUIRES(mutex_);
  result<device_address> reserve_addresses(std::uint64_t* bytes, std::uint64_t least);
  bool give_back_handle(heap::handle_id id) MILLPOND_REQUIRES(mutex_);
  void release_handles(std::vector<error>& failures);
  void release_chunks(std::vector<error>& failures) MILLPOND_REQUIRES(mutex_);

  // Stitching (stitch.cpp).
  struct bargain {
    std::uint64_t as_cheap_as =
        0;  // the new handles that plain growth would make; 0: whatever it costs
    std::uint64_t instead_of =
        0;  // the new bytes of plain growth, if a stitched range may take some
  };
  growth stitch(const block_request& what, const bargain& against, heap::extent** block)
      MILLPOND_REQUIRES(mutex_);
  result<heap::heap::mapping> map_stitched(const heap::stitch_plan& plan) MILLPOND_REQUIRES(mutex_);
  [[nodiscard]] static heap::heap::mapping address_for_stitch(const block_store::locked& books,
                                                              std::uint64_t bytes);
  result<heap::view_id> open_stitched_view(std::uint64_t at_least) MILLPOND_REQUIRES(mutex_);

  driver& gpu_;
  const pool_options& options_;
  const pool_phase& phase_;
  block_store& blocks_;
  std::uint64_t granularity_ = 0;                  // from the start
  std::shared_ptr<memory_budget::member> budget_;  // nullptr: no budget; set by open
  std::atomic<std::uint64_t> limit_bytes_;
  std::atomic<std::uint64_t> asleep_bytes_{0};
  std::atomic<std::uint64_t> looks_{0};  // calls of give_back_old without a clock
  std::atomic<std::uint64_t> growths_{0}, stitches_{0}, stitch_reuses_{0}, given_back_bytes_{0},
      soft_limit_passes_{0};

  mutex mutex_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> reservations_
      MILLPOND_GUARDED_BY(mutex_);  // addresses, or chunks
  mutable mutex failure_mutex_;     // a leaf
  error last_failure_ MILLPOND_GUARDED_BY(failure_mutex_);
};

}  // namespace millpond
