// How much of what was freed and is large may lie where, before it goes to the heap: what one
// thread cache keeps in its slots is the measure of the other places.
//
// Two places and not one: through the stream cache alone a pair of 1 MiB takes 478 instructions
// instead of 174, and two to three times as long on one thread and on two (null driver, a loop; see
// docs/internals/stream_cache.md).
#pragma once
#include <algorithm>
#include <cstdint>

namespace millpond::large_limits {

// On its way to the cache that handed it out. The more blocks are on their way the more come by one
// line: pairs of threads that passed blocks of 1 MiB on average took 144 ns a block with 4 times,
// 113 with 8, 98 with 16 and 96 with 64 (an H200's host, 2026-11-30).
[[nodiscard]] constexpr std::uint64_t on_the_way(std::uint64_t in_slots) noexcept {
  return 16 * in_slots;
}
// In a stream cache, for the stream's other thread caches, where there are any.
[[nodiscard]] constexpr std::uint64_t for_other_caches(std::uint64_t in_slots,
                                                       std::uint32_t holders) noexcept {
  return holders > 1 ? 4 * in_slots : 0;
}
// There too, of a stream with a reuse streak: four times an equal share, since not all streams have
// everything at once.
[[nodiscard]] constexpr std::uint64_t by_streak(std::uint64_t reserved,
                                                std::uint64_t caches) noexcept {
  return std::min(reserved / 4 * 3, 4 * reserved / std::max<std::uint64_t>(1, caches));
}

}  // namespace millpond::large_limits
