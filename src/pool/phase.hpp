// Whether a pool serves.
#pragma once
#include <atomic>
#include <cstdint>

namespace millpond {

// Any thread may ask at any time. Written by sleep, wake and the end, one at a time.
class pool_phase {
 public:
  enum class is : std::uint8_t { serving, asleep, closed };
  [[nodiscard]] bool serving() const noexcept { return now() == is::serving; }
  [[nodiscard]] bool asleep() const noexcept { return now() == is::asleep; }
  [[nodiscard]] bool closed() const noexcept { return now() == is::closed; }
  void set(is to) noexcept { phase_.store(to, std::memory_order_release); }

 private:
  [[nodiscard]] is now() const noexcept { return phase_.load(std::memory_order_acquire); }
  std::atomic<is> phase_{is::serving};
};

}  // namespace millpond
