// A mutex for sections of some hundred nanoseconds: one exchange to take it and one to give it
// back, a short spin where it is taken, and only then the kernel. Meets the standard's Lockable,
// for std::lock_guard.
#pragma once
#include <cstdint>

#include "base/atomic.hpp"

namespace millpond {

class brief_mutex {
 public:
  brief_mutex() = default;
  brief_mutex(const brief_mutex&) = delete;
  brief_mutex& operator=(const brief_mutex&) = delete;

  void lock() noexcept {
    if (__builtin_expect(!try_lock(), 0)) wait_for_it();
  }
  [[nodiscard]] bool try_lock() noexcept {
    std::uint32_t nobody = 0;
    return state_.compare_exchange_strong(nobody, taken, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  void unlock() noexcept {
    if (__builtin_expect(state_.exchange(0, std::memory_order_release) == waited_for, 0))
      wake_one();
  }
  // How often somebody found it taken. Exact when nobody is about to take it.
  [[nodiscard]] std::uint64_t waits() const noexcept {
    return waits_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint32_t taken = 1, waited_for = 2;
  void wait_for_it() noexcept;
  void wake_one() noexcept;

  atomic<std::uint32_t> state_{0};
  atomic<std::uint64_t> waits_{0};
};

}  // namespace millpond
