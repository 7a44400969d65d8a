// Byte units: the constants, and text in both directions.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace millpond {

inline constexpr std::uint64_t KiB = std::uint64_t{1} << 10;
inline constexpr std::uint64_t MiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t GiB = std::uint64_t{1} << 30;

// "1.5 GiB", "512 B": three significant digits, binary units.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

// "64KiB", "1.5 GiB", "1000", "4k", "512Mi", "2MB", in capitals or not: k, ki and kib are 1024
// bytes, kb is 1000. False and nothing written on anything else, a negative number or more than
// 2^63 - 1 bytes.
[[nodiscard]] bool parse_bytes(std::string_view text, std::uint64_t& bytes);

// "12.3 us", "4.56 ms" from nanoseconds.
[[nodiscard]] std::string format_duration(double nanoseconds);

}  // namespace millpond
