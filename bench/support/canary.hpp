// What the parts of the canary share: a block with its identity, and what is counted.
#pragma once
#include <atomic>
#include <cstdint>

#include "millpond/driver/driver.hpp"

namespace millpond::canary {

struct totals {
  std::atomic<std::uint64_t> operations{0}, launches{0}, single_launches{0}, crossings{0}, uses{0},
      streams_made{0}, failures{0};
  std::atomic<std::uint64_t> by_other_thread{
      0};  // blocks handed to another thread, checked and freed there
  std::atomic<std::uint64_t> graphs{0}, graph_launches{0}, broken_captures{0};
};

struct held {
  void* ptr;
  std::uint64_t bytes;
  std::uint64_t identity;
};

[[nodiscard]] inline identity_block block_of(const held& h) {
  return {reinterpret_cast<std::uintptr_t>(h.ptr), h.bytes, h.identity};
}

}  // namespace millpond::canary
