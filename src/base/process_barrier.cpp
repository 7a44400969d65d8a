#include "base/process_barrier.hpp"

#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <mutex>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace millpond {
namespace detail {
alignas(64) constinit std::atomic<bool> barrier_reaches_all{false};
}  // namespace detail

namespace {

constinit std::atomic<bool> page_was_used{false};

long membarrier(int command) noexcept {
  return ::syscall(SYS_membarrier, command, 0, 0);
}

#if defined(__x86_64__)
// INVLPGB: the processor itself tells the others what to drop, and none is interrupted.
bool processors_are_interrupted() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000008, &a, &b, &c, &d) == 0 || (b & (1u << 3)) == 0;
}

// As folly's asymmetric_thread_fence_heavy does where there is no membarrier
// (folly/synchronization/AsymmetricThreadFence.cpp).
bool barrier_by_page() noexcept {
  static std::mutex one_at_a_time;
  static void* const page =
      processors_are_interrupted()
          ? ::mmap(nullptr, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
          : MAP_FAILED;
  if (page == MAP_FAILED) return false;
  const std::lock_guard lock(one_at_a_time);
  if (::mprotect(page, 1, PROT_READ | PROT_WRITE) != 0) return false;
  *static_cast<volatile char*>(page) = 1;  // only what is there has to be dropped
  return ::mprotect(page, 1, PROT_READ) == 0;
}
#else
bool barrier_by_page() noexcept {
  return false;
}
#endif

// Until every owner knows that it pays: 50 ms, or longer. Where a sandbox does not let a thread
// sleep, or a signal wakes it, it turns round for as long: four million turns take a
// millisecond at the least.
void let_owners_see() noexcept {
  [[maybe_unused]] static const bool waited = [] {
    for (int round = 0; round < 50; ++round) {
      const timespec one_millisecond{0, 1'000'000};
      if (::nanosleep(&one_millisecond, nullptr) == 0) continue;
      for (volatile int turns = 0; turns < 4'000'000;) turns = turns + 1;
    }
    return true;
  }();
}

}  // namespace

bool process_barrier_available() noexcept {
  static const bool available = [] {
    const long commands = membarrier(MEMBARRIER_CMD_QUERY);
    if (commands < 0 || (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return false;
    if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0) return false;
    detail::barrier_reaches_all.store(true, std::memory_order_relaxed);
    return true;
  }();
  return available;
}

void process_barrier() noexcept {
  if (process_barrier_available()) {
    if (process_barrier_reaches_all()) {
      // Asked each time: a sandbox may hold for some of the threads.
      if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
      if (barrier_by_page()) return page_was_used.store(true, std::memory_order_relaxed);
      detail::barrier_reaches_all.store(false, std::memory_order_seq_cst);
    }
    let_owners_see();
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

barrier_means process_barrier_means() noexcept {
  if (!process_barrier_available() || !process_barrier_reaches_all())
    return barrier_means::owners_pay;
  return page_was_used.load(std::memory_order_relaxed) ? barrier_means::page_protection
                                                       : barrier_means::kernel;
}

}  // namespace millpond
