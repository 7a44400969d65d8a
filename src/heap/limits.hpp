// How much the heap's books can hold, and why they took something not on.
#pragma once
#include <cstdint>

namespace millpond::heap {

// Nothing here ends the program: a call that would pass a limit is refused.
struct limits {
  std::uint64_t records = std::uint64_t{1} << 28;  // of extents: 128 GiB in blocks of 512 bytes
  std::uint32_t regions = 256;                     // ranges of addresses; not more than that
};

// What a heap gets that is made from now on. Tests lower it; no other thread makes one meanwhile.
[[nodiscard]] inline limits& limits_of_new_heaps() noexcept {
  static limits now;
  return now;
}

enum class refusal : std::uint8_t {
  none,
  no_room,      // nothing that is free is long enough
  records,      // as many extents as limits::records
  regions,      // as many ranges of addresses as limits::regions
  host_memory,  // the host gave no memory for the books
};

}  // namespace millpond::heap
