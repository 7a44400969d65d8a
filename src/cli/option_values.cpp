#include "cli/option_values.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
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

CLI::Validator finite_number() {
  const auto read = [](const std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!text.empty() && end == text.c_str() + text.size() && std::isfinite(value)) return {};
    return fmt::format("expected a number, found `{}`", text);
  };
  return {read, "", "finite_number"};
}

CLI::Validator not_empty() {
  const auto read = [](const std::string& text) -> std::string {
    return text.empty() ? "expected a value, found an empty one" : "";
  };
  return {read, "", "not_empty"};
}

}  // namespace millpond::cli
