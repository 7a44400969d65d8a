// The largest value that several threads have seen.
#pragma once
#include <cstdint>

#include "base/atomic.hpp"

namespace millpond {

// A number alone: with the usual order it publishes nothing.
inline void raise_to(atomic<std::uint64_t>& peak, std::uint64_t value,
                     std::memory_order order = std::memory_order_relaxed) noexcept {
  std::uint64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, order)) {
  }
}

}  // namespace millpond
