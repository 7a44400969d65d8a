#include "base/brief_mutex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millpond {
namespace {

// Longer than sixteen sections one after another take: once somebody sleeps, whoever unlocks pays
// for a call that wakes, and all queue behind that. A pause takes 40 to 140 cycles; between looks
// there are ever more of them, since a look takes the line from who works in the section.
constexpr int looks = interleaved ? 1 : 80;
constexpr int most_pauses = 8;

void pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// The kernel's own call: std::atomic::wait yields the processor several times first, which on a
// busy machine costs a time slice each.
#if defined(MILLPOND_INTERLEAVE)
void futex_wait(atomic<std::uint32_t>& at, std::uint32_t value) noexcept {
  at.wait(value, std::memory_order_relaxed);
}
void futex_wake_one(atomic<std::uint32_t>& at) noexcept {
  at.notify_one();
}
#else
void futex(atomic<std::uint32_t>& at, int operation, std::uint32_t value) noexcept {
  static_assert(sizeof(at) == sizeof(std::uint32_t));
  static_cast<void>(::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&at),
                              operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0));
}
void futex_wait(atomic<std::uint32_t>& at, std::uint32_t value) noexcept {
  futex(at, FUTEX_WAIT, value);
}
void futex_wake_one(atomic<std::uint32_t>& at) noexcept {
  futex(at, FUTEX_WAKE, 1);
}
#endif

}  // namespace

void brief_mutex::wait_for_it() noexcept {
  waits_.fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; i < looks; ++i) {
    for (int pauses = 0; pauses <= i / 8 && pauses < most_pauses; ++pauses) pause();
    if (state_.load(std::memory_order_relaxed) == 0 && try_lock()) return;
  }
  while (state_.exchange(waited_for, std::memory_order_acquire) != 0)
    futex_wait(state_, waited_for);
}

void brief_mutex::wake_one() noexcept {
  futex_wake_one(state_);
}

}  // namespace millpond
