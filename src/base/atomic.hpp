// The atomics of the lock-free parts, under names that a test may exchange.
//
// In every build they are the standard's own types and functions: aliases, which cost nothing. Only
// tests/interleaving compiles those parts with MILLPOND_INTERLEAVE, which names the header that
// takes their place: there every operation is a step that a scheduler may put before or after any
// step of the other threads, and a load may answer whatever the memory model allows.
#pragma once
#include <atomic>

#if defined(MILLPOND_INTERLEAVE)
#include MILLPOND_INTERLEAVE
#else
#include <sched.h>

#include <mutex>

namespace millpond {

template <class T>
using atomic = std::atomic<T>;
// A field that is no atomic and that an atomic publishes: the test looks for races on it.
template <class T>
using plain = T;
// Where a part has a mutex of the standard beside its atomics.
using usual_mutex = std::mutex;

inline void thread_fence(std::memory_order order) noexcept {
  std::atomic_thread_fence(order);
}
inline void signal_fence(std::memory_order order) noexcept {
  std::atomic_signal_fence(order);
}
// In a loop that waits for a store of another thread.
inline void yield_thread() noexcept {
  ::sched_yield();
}
// True in the test of the interleavings alone, for tables that need not be large there.
inline constexpr bool interleaved = false;

}  // namespace millpond
#endif
