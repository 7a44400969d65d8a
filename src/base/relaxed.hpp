// A number that several threads read and write and that publishes nothing: the same instructions as
// a plain one.
#pragma once
#include <atomic>

#include "base/atomic.hpp"

namespace millpond {

#if defined(MILLPOND_INTERLEAVE)
// There as a plain field: whatever needs its value must be ordered behind the write by something.
template <class T>
using relaxed = plain<T>;
#else
template <class T>
class relaxed {
 public:
  constexpr relaxed() noexcept = default;
  constexpr relaxed(T value) noexcept : value_(value) {}
  relaxed(const relaxed&) = delete;
  relaxed& operator=(const relaxed&) = delete;
  ~relaxed() = default;
  T operator=(T value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return value;
  }
  operator T() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{};
};
#endif

}  // namespace millpond
