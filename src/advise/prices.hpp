// What a call, a copy or a move of pages costs, by kind and size: the one list that every check and
// every advice asks where a trace holds no time. All numbers are of the measured card that
// `usual_costs` and the built-in profile describe.
#pragma once
#include <cstdint>

#include "trace/event.hpp"

namespace millpond::advise::prices {

// One call, nanoseconds. A free of managed memory costs by the pages that are there: `used` says
// that something touched it.
[[nodiscard]] double allocation_ns(trace::kind of, std::uint64_t bytes);
[[nodiscard]] double free_ns(trace::kind of, std::uint64_t bytes, bool used);
// A pair from a pool that keeps its memory: of pinned memory millpond's, else the driver's.
[[nodiscard]] double kept_pair_ns(trace::kind of);
// A driver's pool that fetches so many bytes from the driver again.
[[nodiscard]] double pool_refill_ns(std::uint64_t bytes);

// A copy's bytes at the rate of its way. `host` is the kind of the host's side, `device` where
// there is none.
[[nodiscard]] double copy_ns(trace::copy_direction way, trace::kind host, std::uint64_t bytes);
// The same where the host waits for it: a launch and a wait are the least that it takes.
[[nodiscard]] double blocking_copy_ns(trace::copy_direction way, trace::kind host,
                                      std::uint64_t bytes);
// What the caller spends on a copy that it does not wait for.
[[nodiscard]] double issued_copy_ns();
[[nodiscard]] double memset_ns(std::uint64_t bytes);

// Data of at most so many bytes that both sides touch is better reached over the link than moved: a
// 4 KiB control block cost 800 us at the 99th percentile as managed memory and 22 to 30 as mapped
// pinned memory on an H200.
inline constexpr std::uint64_t small_bytes = std::uint64_t{64} << 10;
// Pages that faults move to the device and to the host, and those that prefetches move.
[[nodiscard]] double faulted_ns(std::uint64_t to_device, std::uint64_t to_host);
[[nodiscard]] double prefetched_ns(std::uint64_t bytes);
// One round in which the host writes a small mapped block, a kernel uses it and the host reads it.
[[nodiscard]] double mapped_round_ns();
// Kernels that go through managed memory that prefers the host: the first maps its pages.
[[nodiscard]] double far_passes_ns(std::uint64_t bytes, std::uint64_t kernels);
// The same kernels after one prefetch to the device.
[[nodiscard]] double near_passes_ns(std::uint64_t bytes, std::uint64_t kernels);
// A block's contents brought to pinned memory and back, with the calls that free and allocate it.
[[nodiscard]] double parking_ns(trace::kind of, std::uint64_t bytes);

}  // namespace millpond::advise::prices
