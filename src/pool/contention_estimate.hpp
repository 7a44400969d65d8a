// How many threads queue in the slow path of a pool, on average over the last few that came. What
// one thread spends there all of them wait for, so memory that spares it is worth the more the
// longer the queue: sixteen threads that made and dropped columns of random sizes on an H200 took
// 142 us an operation where the pool kept to a slack of 4%, and 30 us with 30%, for 4% more memory
// (driver 580.159, 2026-11-30).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace millpond {

// Any thread. The average is a heuristic: threads may overwrite each other's.
class contention_estimate {
 public:
  // While one lives its thread is in the queue.
  class visit {
   public:
    explicit visit(contention_estimate& in) noexcept : in_(in) { in_.come(); }
    ~visit() { in_.inside_.fetch_sub(1, std::memory_order_relaxed); }
    visit(const visit&) = delete;
    visit& operator=(const visit&) = delete;

   private:
    contention_estimate& in_;
  };
  // The threads that one finds there besides itself: 0 where they come one at a time.
  [[nodiscard]] std::uint32_t others() const noexcept {
    return sum_.load(std::memory_order_relaxed) / span;
  }
  // How many times the slack holds then.
  [[nodiscard]] std::uint32_t slack_times() const noexcept {
    return 1 + std::min(others(), most_slack_times - 1);
  }

  static constexpr std::uint32_t most_slack_times = 8;

 private:
  void come() noexcept {
    const std::uint32_t found = inside_.fetch_add(1, std::memory_order_relaxed);
    const std::uint32_t sum = sum_.load(std::memory_order_relaxed);
    sum_.store(sum - sum / span + found, std::memory_order_relaxed);
  }
  static constexpr std::uint32_t span = 16;  // arrivals that the average remembers
  std::atomic<std::uint32_t> inside_{0};
  std::atomic<std::uint32_t> sum_{0};
};

}  // namespace millpond
