// Bit tricks on sizes and offsets. All are constant time; alignments are powers of two.
#pragma once
#include <bit>
#include <cstdint>

namespace millpond {

[[nodiscard]] constexpr bool is_power_of_two(std::uint64_t value) noexcept {
  return value != 0 && (value & (value - 1)) ==
                           0;  // has_single_bit counts bits by a call where the CPU may lack popcnt
}
[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t value,
                                               std::uint64_t alignment) noexcept {
  return (value + alignment - 1) & ~(alignment - 1);
}
// The same for any alignment, not only for powers of two.
template <class Number>
[[nodiscard]] constexpr Number next_multiple(Number value, Number alignment) noexcept {
  if (alignment == 1) return value;
  const Number over = static_cast<Number>(value % alignment);
  return over == 0 ? value : static_cast<Number>(value + (alignment - over));
}
[[nodiscard]] constexpr std::uint64_t align_down(std::uint64_t value,
                                                 std::uint64_t alignment) noexcept {
  return value & ~(alignment - 1);
}
[[nodiscard]] constexpr bool is_aligned(std::uint64_t value, std::uint64_t alignment) noexcept {
  return (value & (alignment - 1)) == 0;
}
[[nodiscard]] constexpr unsigned floor_log2(std::uint64_t value) noexcept {
  return 63u - static_cast<unsigned>(std::countl_zero(value | 1));
}
[[nodiscard]] constexpr std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) noexcept {
  return (value + by - 1) / by;
}

}  // namespace millpond
