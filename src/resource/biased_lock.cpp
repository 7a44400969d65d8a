#include "resource/biased_lock.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace millpond {

bool process_barrier_available() noexcept {
  static const bool available = [] {
    const long commands = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    if (commands < 0 || (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return false;
    return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  }();
  return available;
}

void process_barrier() noexcept {
  if (process_barrier_available()) {
    static_cast<void>(::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}

void biased_lock::foreign_begin() noexcept {
  std::uint32_t nobody = 0;
  while (!wanted_.compare_exchange_weak(nobody, 1, std::memory_order_seq_cst)) {
    if (nobody != 0) wanted_.wait(nobody, std::memory_order_relaxed);
    nobody = 0;
  }
}

void biased_lock::foreign_arrive() noexcept {
  while (busy_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
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
