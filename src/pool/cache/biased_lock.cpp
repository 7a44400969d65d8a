#include "pool/cache/biased_lock.hpp"

namespace millpond {

void biased_lock::foreign_begin() noexcept {
  std::uint32_t nobody = 0;
  while (!wanted_.compare_exchange_weak(nobody, 1, std::memory_order_seq_cst)) {
    if (nobody != 0) wanted_.wait(nobody, std::memory_order_relaxed);
    nobody = 0;
  }
}

void biased_lock::foreign_arrive() noexcept {
  while (busy_.load(std::memory_order_acquire) != 0) yield_thread();
}

void biased_lock::foreign_lock() noexcept {
  foreign_begin();
  process_barrier();
  foreign_arrive();
}

void biased_lock::foreign_unlock() noexcept {
  wanted_.store(0, std::memory_order_release);
  wanted_.notify_one();
}

}  // namespace millpond
