// Frees that were found wrong after their call had ended, when a remote free queue was opened: kept
// until the next call of the pool that is not quick reports them.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "base/mutex.hpp"
#include "millpond/driver/driver.hpp"
#include "pool/cache/thread_cache.hpp"

namespace millpond {

// Any thread; its lock is a leaf.
class refused_frees {
 public:
  struct refused {
    const void* ptr = nullptr;
    std::uint64_t bytes = 0;      // that it was freed with
    std::uint64_t requested = 0;  // that it was allocated with; 0: no block
    stream_handle stream = nullptr;
    block_state state = block_state::none;  // of the block then
  };
  static constexpr std::size_t most = 16;
  struct taken {
    std::array<refused, most> all{};
    std::size_t count = 0;
    std::uint64_t more = 0;  // that found no room
  };

  // A hint that there are some; the lock orders the rest.
  [[nodiscard]] bool any() const noexcept { return any_.load(std::memory_order_relaxed); }
  void note(const refused& one) noexcept {
    const mutex_lock lock(mutex_);
    if (held_.count < most)
      held_.all[held_.count++] = one;
    else
      ++held_.more;
    any_.store(true, std::memory_order_relaxed);
  }
  [[nodiscard]] taken take() noexcept {
    const mutex_lock lock(mutex_);
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(held_, taken{});
  }

 private:
  mutex mutex_;
  taken held_ MILLPOND_GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};
};

}  // namespace millpond
