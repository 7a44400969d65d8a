// A count that one thread keeps and others may read.
#pragma once
#include <cstdint>

#include "base/atomic.hpp"

namespace millpond {

// A counter with one writer: no read-modify-write, readers see a recent value.
class own_counter {
 public:
  void add(std::uint64_t n) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t get() const noexcept {
    return value_.load(std::memory_order_relaxed);
  }

 private:
  atomic<std::uint64_t> value_{0};
};

}  // namespace millpond
