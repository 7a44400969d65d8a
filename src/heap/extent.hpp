// An extent: one stretch of addresses of one view, between its neighbours. Every byte of a view
// lies in exactly one extent.
#pragma once
#include <cstdint>

#include "base/atomic.hpp"
#include "base/relaxed.hpp"

namespace millpond::heap {

inline constexpr std::uint64_t granule = 512;  // every start and length is a multiple of it

using owner_id = std::uint32_t;
inline constexpr owner_id anyone = 0;  // a free extent without a pending fence

enum class extent_state : std::uint8_t {
  unused,  // not part of any view: in the free list of records
  free,    // in the bins of its owner
  used,    // handed out by allocate
  closed,  // no memory here now: a hole, or a mapping whose span is in use through another
};

// What is carved from a stretch. Blocks that callers keep for their next request stay where they
// are for long; small ones lie together in stretches of their own, or they would stand in the way
// of large ones wherever those have been.
enum class zone : std::uint8_t { general, small };
inline constexpr unsigned zones = 2;
inline constexpr std::uint64_t small_stretch = std::uint64_t{2} << 20;

// Two cache lines: what caches and searches through the bins read, and what only carving and
// joining do. Aligned to both, so that neighbours on two threads share neither a line nor what the
// hardware fetches beside it.
struct alignas(128) extent {
  // Read with no lock by whoever looks an address up, hence atomic; written under the heap's lock
  // before the address is handed out, so relaxed is enough.
  atomic<std::uint64_t> at{0};
  std::uint64_t bytes = 0;

  // For whoever holds a used extent; the heap only clears them when the record is given back.
  relaxed<std::uint64_t> requested;  // a second free of a block may read it beside its next owner
  plain<extent*> link = nullptr;
  relaxed<std::uint32_t> holder_number;  // who handed it out, as above; on a stream cache, how long
                                         // the chain is that it heads
  std::uint16_t holder_class = 0;
  atomic<std::uint8_t> holder_state{0};

  extent_state state = extent_state::unused;
  zone in = zone::general;  // of a free extent, and of a used one: where it goes when it is free
  extent* bin_after =
      nullptr;  // neighbours in the bin of a free extent; also: the next unused record
  extent* bin_before = nullptr;
  std::uint32_t view = 0;
  std::uint32_t id = 0;

  extent* before = nullptr;  // neighbours by address in the view
  extent* after = nullptr;
  std::uint64_t batch = 0;        // the owner's batch that must pass before anyone may have it
  owner_id owner = anyone;        // of a free extent
  std::uint32_t holder_note = 0;  // as the other fields of holders
  void* holder = nullptr;         // as the other fields of holders

  [[nodiscard]] std::uint64_t start() const noexcept { return at.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t end() const noexcept { return start() + bytes; }
};

}  // namespace millpond::heap
