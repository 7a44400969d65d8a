// A lock that its owner takes for a few plain instructions and others for a system call: a cache
// belongs to one thread, which takes it millions of times a second, and under memory pressure
// another thread empties it.
//
// The owner stores `busy`, then reads `wanted`; a stranger stores `wanted`, then makes every thread
// of the process pass a full barrier (membarrier, private expedited), then reads `busy`. One of the
// two sees the other, as in Dekker's algorithm, and the owner pays no barrier. Where the kernel
// lacks membarrier, and under ThreadSanitizer, which cannot see it, the owner pays a sequentially
// consistent exchange.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/process_barrier.hpp"

namespace millpond {

class biased_lock {
 public:
  // Owner only. False where a stranger holds it: take foreign_lock instead.
  bool owner_lock() noexcept {
#if defined(__SANITIZE_THREAD__)
    busy_.exchange(1, std::memory_order_seq_cst);
    if (wanted_.load(std::memory_order_seq_cst) != 0) {
#else
    if (fast_) {
      busy_.store(1, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      busy_.exchange(1, std::memory_order_seq_cst);
    }
    // Where the owner paid for the exchange, the load after it belongs to the same total order.
    if (__builtin_expect(
            wanted_.load(fast_ ? std::memory_order_acquire : std::memory_order_seq_cst) != 0, 0)) {
#endif
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
  std::atomic<std::uint32_t> busy_{0};  // the owner is inside
  std::atomic<std::uint32_t> wanted_{
      0};  // a stranger is inside, one at a time, or waits for the owner
  const bool fast_ = process_barrier_available();
};

}  // namespace millpond
