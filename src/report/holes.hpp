// What counts as a hole between blocks.
#pragma once
#include <cstdint>

namespace millpond::report {

// Blocks further apart lie in different reservations, which may be terabytes apart: what is between
// them is nobody's, and is not drawn.
inline constexpr std::uint64_t most_gap = std::uint64_t{2} << 20;

}  // namespace millpond::report
