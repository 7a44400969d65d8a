// What the readers of the plan room's text files share: places in a file, fields of a line,
// numbers.
#pragma once
#include <fmt/format.h>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "base/quote.hpp"
#include "millpond/base/result.hpp"

namespace millpond::plan::csv_text {

struct place {
  const std::string& name;
  std::size_t line;

  [[nodiscard]] error expected(std::string_view what, std::string_view found) const {
    return {error_code::bad_input,
            fmt::format("{}:{}: expected {}, found {}", name, line, what, found)};
  }
};

inline std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

inline void split(std::string_view text, char at, std::vector<std::string_view>& out) {
  out.clear();
  for (;;) {
    const std::size_t end = text.find(at);
    std::string_view field = trim(text.substr(0, end));
    if (field.size() >= 2 && field.front() == '"' && field.back() == '"')
      field = field.substr(1, field.size() - 2);
    out.push_back(field);
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

template <class Number>
bool parse_number(std::string_view text, Number& out) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
  return failed == std::errc{} && end == text.data() + text.size();
}

}  // namespace millpond::plan::csv_text
