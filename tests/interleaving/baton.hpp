// A baton: one thread waits for it, another gives it. By the kernel's own call: std::atomic::wait
// yields the processor several times first.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace interleaving {

class baton {
 public:
  void give() noexcept {
    there_.store(1, std::memory_order_release);
    call(FUTEX_WAKE, 1);
  }
  void take() noexcept {
    while (there_.exchange(0, std::memory_order_acquire) == 0) call(FUTEX_WAIT, 0);
  }

 private:
  void call(int operation, std::uint32_t value) noexcept {
    static_cast<void>(::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&there_),
                                operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0));
  }
  std::atomic<std::uint32_t> there_{0};
};

}  // namespace interleaving
