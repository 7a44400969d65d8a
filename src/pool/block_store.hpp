// What the pool has by address: the heap, how much of it is reserved and out, and what the pool may
// reserve. One lock, taken last and held over no driver call.
//
// Everything that the lock guards is reached through a `locked` alone, which holds it for as long
// as it lives.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/brief_mutex.hpp"
#include "heap/heap.hpp"
#include "millpond/pool/pool.hpp"
#include "pool/block_request.hpp"
#include "pool/growth/span_ages.hpp"
#include "pool/miss_budget.hpp"
#include "pool/phase.hpp"
#include "pool/stream_state.hpp"

namespace millpond {

class block_store {
 public:
  block_store(double slack, const pool_phase& phase) noexcept : slack_(slack), phase_(phase) {}
  block_store(const block_store&) = delete;
  block_store& operator=(const block_store&) = delete;

  class locked {
   public:
    explicit locked(block_store& of) noexcept : of_(of) { of.mutex_.lock(); }
    ~locked() { of_.mutex_.unlock(); }
    locked(const locked&) = delete;
    locked& operator=(const locked&) = delete;

    [[nodiscard]] heap::heap& heap() const noexcept { return of_.heap_; }
    // The view at whose end the pool grows; heap::no_view before there is one.
    [[nodiscard]] heap::view_id primary() const noexcept { return of_.primary_; }
    void set_primary(heap::view_id to) const noexcept { of_.primary_ = to; }

    // A block out of the heap, or nullptr: also where the pool does not serve, since what is free
    // may have no memory then. runs: of neighbours of several owners too.
    [[nodiscard]] heap::extent* carve(const block_request& what, bool runs) const;
    // Counts a block that came out of the heap in another way.
    void take(heap::extent& block, const block_request& what) const noexcept;
    // A block back into the heap, of that owner's batch.
    void put_back(heap::extent& block, heap::owner_id owner, std::uint64_t batch,
                  heap::absorb_idle absorb = heap::absorb_idle::no) const noexcept;
    // Nothing is free for it any more.
    void drop_owner(heap::owner_id owner) const noexcept { of_.free_owners_.push_back(owner); }

    [[nodiscard]] std::uint64_t reserved() const noexcept { return of_.reserved_; }
    [[nodiscard]] std::uint64_t peak_reserved() const noexcept { return of_.peak_reserved_; }
    void reset_peak_reserved() const noexcept { of_.peak_reserved_ = of_.reserved_; }
    void add_reserved(std::uint64_t bytes) const noexcept;
    void remove_reserved(std::uint64_t bytes) const noexcept { of_.reserved_ -= bytes; }
    [[nodiscard]] std::uint64_t carved() const noexcept { return of_.carved_; }
    [[nodiscard]] std::uint64_t peak_carved() const noexcept { return of_.peak_carved_; }
    [[nodiscard]] std::uint64_t peak_of_all() const noexcept {
      return std::max(of_.peak_of_all_, of_.peak_carved_);
    }
    // The peak when a range of addresses was last extended by new memory, or a cache was made.
    [[nodiscard]] std::uint64_t peak_at_growth() const noexcept { return of_.peak_at_growth_; }
    void note_growth() const noexcept { of_.peak_at_growth_ = of_.peak_carved_; }
    [[nodiscard]] std::uint64_t fallen() const noexcept { return of_.fallen_; }
    // What was needed before is no measure any more.
    void forget_peak() const noexcept;

    // How much more than its peak the pool may reserve for a request of `size`, for the sake of
    // speed, where the slack counts so many times.
    [[nodiscard]] std::uint64_t slack_bytes(std::uint64_t size, std::uint32_t times) const noexcept;
    // What the pool may reserve for a request of `size` before it rather reclaims what it has.
    [[nodiscard]] std::uint64_t allowed_bytes(std::uint64_t size) const noexcept;
    // Whether so many new bytes pass that. Each time they would have is counted, and may allow it.
    [[nodiscard]] bool passes_slack(std::uint64_t size, std::uint64_t new_bytes) const noexcept;
    // Which handles have been unused for how long; noted from the first call on.
    [[nodiscard]] span_ages& ages() const;

   private:
    block_store& of_;
  };

  // Without the lock, at any time: the block that starts at the address; by its record's number.
  [[nodiscard]] heap::extent* find(std::uint64_t address) const noexcept {
    return heap_.find(address);
  }
  [[nodiscard]] heap::extent* by_id(std::uint32_t id) const noexcept { return heap_.by_id(id); }
  // As of the last carving.
  [[nodiscard]] std::uint64_t reserved_lately() const noexcept {
    return reserved_lately_.load(std::memory_order_relaxed);
  }
  // More than one stream was seen: what one freed is kept apart until its fence has passed.
  [[nodiscard]] bool many_streams() const noexcept {
    return many_streams_.load(std::memory_order_relaxed);
  }
  // Answers what was known before.
  bool set_many_streams(bool many) noexcept {
    return many_streams_.exchange(many, std::memory_order_relaxed);
  }
  // Nearly all was given back since the last time that this was asked: a hint.
  [[nodiscard]] bool take_lull() noexcept {
    return lull_.load(std::memory_order_relaxed) &&
           lull_.exchange(false, std::memory_order_relaxed);
  }
  // What a request that is not served at once may cost.
  [[nodiscard]] miss_budget& misses() noexcept { return misses_; }
  // How often a thread found the lock taken.
  [[nodiscard]] std::uint64_t lock_waits() const noexcept { return mutex_.waits(); }

  // The rest takes the lock.
  [[nodiscard]] heap::extent* carve(const block_request& what) {
    return locked(*this).carve(what, true);
  }
  // A chain of blocks of one stream, through extent::link, back into the heap as frees of its open
  // batch.
  void release(const stream_state& freed_on, heap::extent* chain) noexcept;
  // What the host has seen the stream's fences pass becomes anyone's.
  void retire(stream_state& stream) noexcept;
  // An owner of free memory. Throws bad_alloc.
  [[nodiscard]] heap::owner_id new_owner();
  void drop_owner(heap::owner_id owner) noexcept { locked(*this).drop_owner(owner); }

 private:
  const double slack_;
  const pool_phase& phase_;
  std::atomic<std::uint64_t> reserved_lately_{0};
  std::atomic<bool> many_streams_{false};
  std::atomic<bool> lull_{false};
  miss_budget misses_;

  // The rest under the lock, except that find() and by_id() of the heap take none.
  alignas(64) brief_mutex mutex_;
  heap::heap heap_;
  heap::view_id primary_ = heap::no_view;
  std::uint64_t reserved_ = 0;
  std::uint64_t peak_reserved_ = 0;
  std::uint64_t carved_ = 0;       // bytes of blocks out of the heap: live, or in some cache
  std::uint64_t peak_carved_ = 0;  // since the last trim to nothing: what slack is a share of
  std::uint64_t peak_at_growth_ = 0;
  std::uint64_t peak_of_all_ = 0;  // before that trim, for the statistics
  std::uint64_t fallen_ = 0;       // the deepest that carved_ has lain below its peak
  bool was_busy_ = false;          // more than half of the peak has been out since the last lull
  std::uint64_t carvings_ = 0;     // since the last lull
  std::vector<heap::owner_id> free_owners_;
  heap::owner_id next_owner_ = 1;
  std::unique_ptr<span_ages> ages_;
};

}  // namespace millpond
