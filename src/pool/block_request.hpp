// What an allocation asks of the heap.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/bits.hpp"
#include "heap/extent.hpp"
#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"
#include "pool/cache/size_classes.hpp"

namespace millpond {

struct stream_state;

struct block_request {
  block_request() = default;
  // Of a class where the size is small and the alignment usual, else of whole granules.
  block_request(std::uint64_t asked, std::uint64_t aligned)
      : bytes(asked), alignment(std::max(aligned, heap::granule)) {
    if (bytes <= small_limit && aligned <= heap::granule) {
      size_class = static_cast<std::uint16_t>(class_of(bytes));
      size = class_bytes(size_class);
    } else {
      size = align_up(bytes, heap::granule);
    }
  }
  // Of whole granules, whatever the size: no cache keeps it.
  [[nodiscard]] static block_request of_granules(std::uint64_t asked, std::uint64_t aligned) {
    block_request out;
    out.bytes = asked;
    out.size = align_up(asked, heap::granule);
    out.alignment = std::max(aligned, heap::granule);
    return out;
  }
  // With what the alignment may waste.
  [[nodiscard]] std::uint64_t most_bytes() const noexcept {
    return size + (alignment > heap::granule ? alignment - heap::granule : 0);
  }

  std::uint64_t bytes = 0;  // asked for
  std::uint64_t size = 0;   // what is carved
  std::uint64_t alignment = heap::granule;
  std::uint16_t size_class = large_class;
  heap::owner_id owner = heap::anyone;
  stream_state* stream = nullptr;  // nullptr in a capture
  stream_handle handle = nullptr;
};

// Where the host has no memory for the books of a call, the call changes nothing. Short enough to
// be said without any.
[[nodiscard]] inline error no_host_memory() {
  return {error_code::out_of_memory, "no host memory"};
}

}  // namespace millpond
