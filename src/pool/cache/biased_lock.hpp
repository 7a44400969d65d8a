// A lock that its owner takes for a few plain instructions and others for a system call: a cache
// belongs to one thread, which takes it millions of times a second, and under memory pressure
// another thread empties it.
//
// The owner stores `busy`, then reads `wanted`; a stranger stores `wanted`, then makes every thread
// of the process pass a full barrier (membarrier, private expedited), then reads `busy`. One of the
// two sees the other, as in Dekker's algorithm, and the owner pays no barrier. Where such a barrier
// is not to be had or is refused later, and under ThreadSanitizer, which cannot see it, the owner
// pays a sequentially consistent exchange.
#pragma once
#include <cstdint>

#include "base/atomic.hpp"
#include "base/process_barrier.hpp"

namespace millpond {

class biased_lock {
 public:
  biased_lock() noexcept { process_barrier_available(); }

  // Owner only. False where a stranger holds it: take foreign_lock instead.
  bool owner_lock() noexcept {
    std::uint32_t wanted = 0;
    if (__builtin_expect(!owner_pays(), 1)) {
      busy_.store(1, std::memory_order_relaxed);
      signal_fence(std::memory_order_seq_cst);
      wanted = wanted_.load(std::memory_order_acquire);
    } else {
      // The load belongs to the same total order as the exchange before it.
      busy_.exchange(1, std::memory_order_seq_cst);
      wanted = wanted_.load(std::memory_order_seq_cst);
    }
    if (__builtin_expect(wanted != 0, 0)) {
      busy_.store(0, std::memory_order_release);
      return false;
    }
    return true;
  }
  void owner_unlock() noexcept { busy_.store(0, std::memory_order_release); }

  // The owner, where it will wait: a slow path. Answers how it was taken, for leave().
  enum class entry : std::uint8_t { owner, stranger };
  entry enter() noexcept {
    if (owner_lock()) return entry::owner;
    foreign_lock();
    return entry::stranger;
  }
  void leave(entry how) noexcept { how == entry::owner ? owner_unlock() : foreign_unlock(); }

  // Anyone, the owner too after owner_lock said no. Waits for the owner to leave.
  void foreign_lock() noexcept;
  void foreign_unlock() noexcept;
  // The same for many locks with one barrier: begin on each, one process_barrier, then arrive on
  // each. Several are held at once only under the pool's caches mutex.
  void foreign_begin() noexcept;
  void foreign_arrive() noexcept;

 private:
  [[nodiscard]] static bool owner_pays() noexcept {
#if defined(__SANITIZE_THREAD__) && !defined(MILLPOND_INTERLEAVE)
    return true;
#else
    return !process_barrier_reaches_all();
#endif
  }

  atomic<std::uint32_t> busy_{0};  // the owner is inside
  // A stranger is inside, one at a time, or waits for the owner.
  atomic<std::uint32_t> wanted_{0};
};

}  // namespace millpond
