// Which calls make the host wait for the GPU: said here and nowhere else, and every check asks it.
//
// The rules are those of CUDA's documentation ("API synchronization behavior", the stream-ordered
// allocator, the memory management functions), and what an H200 was seen to do where the
// documentation is silent: cudaFree and cudaFreeHost wait for the whole device, cudaMalloc and
// cudaHostAlloc for nothing. Where the documentation says "may", a wait is assumed: that can hide a
// fault and never invents one.
#pragma once
#include <cstdint>

#include "trace/event.hpp"

namespace millpond::advise {

// Of a copy of pageable memory to the device with no promise to wait, at most so much is staged and
// returns at once; only larger ones, and all to the host, block.
inline constexpr std::uint64_t staged_bytes = std::uint64_t{64} << 10;

struct host_wait {
  enum class scope : std::uint8_t { nothing, stream, event, device };
  scope of = scope::nothing;
  // The wait covers what the stream had before, and not the call's own work: a copy of pageable
  // memory to the device may return when its bytes are staged.
  bool own_work_goes_on = false;
};

// `call_known`: the trace says which call it was. `target`: the kind of the memory that a memset
// writes. `unmaps`: a free that only takes a mapping away, which waits for nothing. A call that the
// driver refused waits for nothing.
[[nodiscard]] host_wait wait_of(const trace::event& at, bool call_known, bool unmaps,
                                trace::kind target) noexcept;

// Whether a copy that the program asked to be asynchronous holds the caller until it is done.
[[nodiscard]] bool blocks_though_asynchronous(const trace::event& copy) noexcept;

}  // namespace millpond::advise
