// A full memory barrier on every running thread of the process (Linux membarrier, private
// expedited): what lets the owner of a biased lock pay none.
//
// A process may be forbidden the call later, by a sandbox that it enters. Then other means are
// taken, in this order:
// 1. On x86-64 the protection of a page of ours is lowered. The kernel makes every processor that
//    runs a thread of the process drop what it remembers of the page, by an interrupt, and an
//    interrupt is a full barrier. Not where processors do that without one (AMD's INVLPGB, which
//    Linux uses since 6.15).
// 2. Else the owners pay from then on, for ever. Whether an owner knows that already cannot be
//    asked, so that the first such call waits for 50 ms: an owner looks three instructions before
//    it acts on what it saw, and a store is seen by all processors in less than a microsecond. An
//    owner that the kernel put aside between these instructions, for longer than that, and that
//    goes on in the same moment as a stranger looks, is the one case that is not covered.
#pragma once
#include <atomic>
#include <cstdint>

namespace millpond {
namespace detail {
// Written when the process is registered, and when owners have to pay. It publishes nothing: what
// it orders is ordered by the barrier, or by waiting.
[[gnu::visibility("hidden")]] extern std::atomic<bool> barrier_reaches_all;
}  // namespace detail

// Registers the process, once; false where the kernel has no such call. The kernel is quick while
// the process has one thread, and otherwise waits for a grace period of its own: 6 to 20 ms were
// seen on a host with 16 cores (2026-11-30). So whatever starts threads (opening the CUDA driver)
// asks first, and a pool asks when it is made, never in an allocation.
bool process_barrier_available() noexcept;

// Whether process_barrier() reaches the other threads. Where it does not they pay for a barrier of
// their own.
#if defined(MILLPOND_INTERLEAVE)
[[nodiscard]] bool process_barrier_reaches_all() noexcept;
#else
[[nodiscard]] inline bool process_barrier_reaches_all() noexcept {
  return detail::barrier_reaches_all.load(std::memory_order_relaxed);
}
#endif

// Registered: the system call, about a microsecond; otherwise a fence of this thread alone. Any
// thread.
void process_barrier() noexcept;

// By which means the last process_barrier() that was refused the kernel's call did its work, for
// whoever reports on the process: one line of it is worth the reader's while, since strangers are
// slower then, and owners too where they pay.
enum class barrier_means : std::uint8_t {
  kernel,           // membarrier; none was refused
  page_protection,  // refused; every processor was interrupted by way of a page
  owners_pay,       // refused, or never there: each owner makes a barrier of its own
};
[[nodiscard]] barrier_means process_barrier_means() noexcept;

}  // namespace millpond
