// What a request that the heap does not serve at once may cost before the pool reserves more for
// it: four small rules, each a measure of what the last misses cost and whether that helped.
//
// - Who else queues. What one thread spends here all that queue wait for, so memory that spares it
//   is worth the more the longer the queue: the slack counts once for each, and fences are asked
//   less. Sixteen threads that made and dropped columns of random sizes on an H200 took 142 us an
//   operation where the pool kept to a slack of 4%, and 30 us with 30%, for 4% more memory (driver
//   580.159, 2026-11-30).
// - How often it reclaims: empties caches, fences frees, stitches. That pays for a program that
// does
//   the same work again and again, since it settles; for one that never does the same twice it goes
//   on for ever, at tens of microseconds each time. So a number of reclaims is free, and each so
//   many blocks out of the heap earn another; where that is spent the pool may grow by one slack
//   from where it is. Random sizes from 256 bytes to 64 MiB under 3 GiB went on reclaiming at 2% of
//   all calls, so that the 99th percentile of an allocation was 110 us (H200, driver 580.159,
//   2026-11-30). The recorded workloads reclaim up to 164 times in three rounds.
// - How many questions it puts to fences that are about to pass: asking is the clock, a question
//   costs about 0.2 us (H200). Where that helped the next miss gets more, where it did not less, so
//   that a program whose queue is long does not pay for it.
// - Whether it empties all caches, which makes the next requests of all threads slow. On one stream
//   that is done less often where it did not help: at once after a help, at last once in 16
//   occasions. With several streams each holds what another needs, and skipping it cost 4% of the
//   peak on a recorded trace of four: there it is not asked.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace millpond {

// Any thread, unless a line says otherwise. Heuristics: threads may overwrite each other's notes.
class miss_budget {
 public:
  // While one lives its thread is in the queue.
  class visit {
   public:
    explicit visit(miss_budget& in) noexcept : in_(in) { in_.come(); }
    ~visit() { in_.inside_.fetch_sub(1, std::memory_order_relaxed); }
    visit(const visit&) = delete;
    visit& operator=(const visit&) = delete;

   private:
    miss_budget& in_;
  };
  // The threads that one finds there besides itself, on average over the last few that came: 0
  // where they come one at a time.
  [[nodiscard]] std::uint32_t others() const noexcept {
    return sum_.load(std::memory_order_relaxed) / span;
  }
  // How many times the slack counts then.
  [[nodiscard]] std::uint32_t slack_times() const noexcept {
    return 1 + std::min(others(), most_slack_times - 1);
  }

  // A block came out of the heap. This and the next three under the lock of blocks.
  void carved() noexcept { ++carved_; }
  // A request would pass what may be reserved. `reserved` and `slack`: bytes now, and by how much
  // the pool may grow where the budget is spent.
  void reclaimed(std::uint64_t reserved, std::uint64_t slack) noexcept {
    if (++reclaimed_ <= free_ + carved_ / carvings_a_reclaim) return;
    granted_ = std::max(granted_, reserved + slack);
    reclaimed_ = 0;
    carved_ = 0;
    free_ = free_again;
  }
  // What the pool may reserve for the sake of fewer reclaims; 0: none were too many.
  [[nodiscard]] std::uint64_t granted_bytes() const noexcept { return granted_; }
  // What was needed before is no measure any more.
  void forget_reclaims() noexcept {
    reclaimed_ = carved_ = granted_ = 0;
    free_ = free_at_first;
  }

  // Questions that this miss may put to fences. Where others queue each question also costs more.
  [[nodiscard]] std::uint32_t questions() const noexcept {
    return questions_.load(std::memory_order_relaxed) / (1 + others());
  }
  // They served the request, or they were all put in vain.
  void asked(bool helped) noexcept {
    const std::uint32_t now = questions_.load(std::memory_order_relaxed);
    questions_.store(
        helped ? std::min(most_questions, 2 * now) : std::max(least_questions, now / 2),
        std::memory_order_relaxed);
  }

  // Whether this miss empties all caches.
  [[nodiscard]] bool may_flush() noexcept {
    const std::uint32_t skip = flushes_to_skip_.load(std::memory_order_relaxed);
    if (skip == 0) return true;
    flushes_to_skip_.store(skip - 1, std::memory_order_relaxed);
    return false;
  }
  void flushed(bool helped) noexcept {
    const std::uint32_t pause =
        helped
            ? 0
            : std::min(most_flushes_skipped, 2 * flush_pause_.load(std::memory_order_relaxed) + 1);
    flush_pause_.store(pause, std::memory_order_relaxed);
    flushes_to_skip_.store(pause, std::memory_order_relaxed);
  }

  static constexpr std::uint32_t most_slack_times = 8;
  static constexpr std::uint64_t free_at_first = 512;
  static constexpr std::uint64_t free_again = 64;  // it has been seen not to settle
  static constexpr std::uint64_t carvings_a_reclaim = 256;
  static constexpr std::uint32_t first_questions = 512;
  static constexpr std::uint32_t most_questions = 1024;
  static constexpr std::uint32_t least_questions = 8;
  static constexpr std::uint32_t most_flushes_skipped = 15;

 private:
  void come() noexcept {
    const std::uint32_t found = inside_.fetch_add(1, std::memory_order_relaxed);
    const std::uint32_t sum = sum_.load(std::memory_order_relaxed);
    sum_.store(sum - sum / span + found, std::memory_order_relaxed);
  }
  static constexpr std::uint32_t span = 16;  // arrivals that the average remembers
  std::atomic<std::uint32_t> inside_{0};
  std::atomic<std::uint32_t> sum_{0};
  std::atomic<std::uint32_t> questions_{first_questions};
  std::atomic<std::uint32_t> flushes_to_skip_{0}, flush_pause_{0};
  std::uint64_t reclaimed_ = 0;
  std::uint64_t carved_ = 0;
  std::uint64_t free_ = free_at_first;
  std::uint64_t granted_ = 0;
};

}  // namespace millpond
