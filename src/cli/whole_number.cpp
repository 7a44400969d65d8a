#include "cli/whole_number.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string_view>

namespace millpond::cli {

CLI::Validator whole_number() {
  const auto read = [](const std::string& text) -> std::string {
    std::string_view digits = text;
    const bool hexadecimal = digits.starts_with("0x");
    if (hexadecimal) digits.remove_prefix(2);
    std::uint64_t value = 0;
    const auto got =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, hexadecimal ? 16 : 10);
    if (got.ec == std::errc{} && got.ptr == digits.data() + digits.size()) return {};
    return fmt::format("expected a whole number from 0 to 2^64 - 1, found `{}`", text);
  };
  return {read, "", "whole_number"};
}

}  // namespace millpond::cli
