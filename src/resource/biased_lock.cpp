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

void biased_lock::foreign_lock() noexcept {
  strangers_.lock();
  wanted_.store(1, std::memory_order_seq_cst);
  process_barrier();
  while (busy_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
}

void biased_lock::foreign_unlock() noexcept {
  wanted_.store(0, std::memory_order_release);
  strangers_.unlock();
}

}  // namespace millpond
