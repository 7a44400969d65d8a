#include "millpond/base/units.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <system_error>

namespace millpond {
namespace {

std::string three_digits(double value, const char* unit) {
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, value, unit);
  return text.data();
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < KiB) return std::to_string(bytes) + " B";
  constexpr std::array names{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < names.size()) {
    value /= 1024.0;
    ++unit;
  }
  return three_digits(value, names[unit]);
}

bool parse_bytes(std::string_view text, std::uint64_t& bytes) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (parsed.ec != std::errc{} || number < 0) return false;
  std::string_view unit(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  struct scale {
    std::string_view name;
    double factor;
  };
  // In lower case: people write 4k, 4K, 4kb and 4 KiB, and mean it.
  constexpr std::array scales{scale{"", 1},         scale{"b", 1},        scale{"kib", 0x1p10},
                              scale{"mib", 0x1p20}, scale{"gib", 0x1p30}, scale{"tib", 0x1p40},
                              scale{"ki", 0x1p10},  scale{"mi", 0x1p20},  scale{"gi", 0x1p30},
                              scale{"ti", 0x1p40},  scale{"k", 0x1p10},   scale{"m", 0x1p20},
                              scale{"g", 0x1p30},   scale{"t", 0x1p40},   scale{"kb", 1e3},
                              scale{"mb", 1e6},     scale{"gb", 1e9},     scale{"tb", 1e12}};
  const auto same = [unit](std::string_view name) {
    return std::ranges::equal(name, unit, {}, {}, [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
  };
  for (const scale& candidate : scales) {
    if (!same(candidate.name)) continue;
    const double total = std::round(number * candidate.factor);
    if (!(total < 0x1p63)) return false;
    bytes = static_cast<std::uint64_t>(total);
    return true;
  }
  return false;
}

std::string format_duration(double nanoseconds) {
  if (nanoseconds < 1e3) return three_digits(nanoseconds, "ns");
  if (nanoseconds < 1e6) return three_digits(nanoseconds / 1e3, "us");
  if (nanoseconds < 1e9) return three_digits(nanoseconds / 1e6, "ms");
  return three_digits(nanoseconds / 1e9, "s");
}

}  // namespace millpond
