#include "report/table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace millpond::report {

std::string table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string made;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows_[r].size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", rows_[r][i], widths[i])
                     : fmt::format("  {:>{}}", rows_[r][i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    made += line + '\n';
    if (r > 0) continue;
    std::size_t all = 0;
    for (const std::size_t width : widths) all += width + 2;
    made += std::string(all - 2, '-') + '\n';
  }
  return made;
}

std::string microseconds(double nanoseconds) {
  const double us = nanoseconds / 1000;
  if (us < 9.995) return fmt::format("{:.2f}", us);
  if (us < 99.95) return fmt::format("{:.1f}", us);
  if (us < 99'999.5) return fmt::format("{:.0f}", us);
  if (us < 9'999'500) return fmt::format("{:.0f}k", us / 1e3);
  return fmt::format("{:.0f}M", us / 1e6);
}

std::string grouped(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string made;
  for (std::size_t at = 0; at < digits.size(); ++at) {
    if (at > 0 && (digits.size() - at) % 3 == 0) made += ',';
    made += digits[at];
  }
  return made;
}

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string made;
  std::size_t column = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::size_t length = end - at;
    if (column > indent && column + 1 + length > width) {
      made += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (at > 0) {
      made += ' ';
      ++column;
    }
    made.append(text, at, length);
    column += length;
    at = end + 1;
  }
  return made;
}

}  // namespace millpond::report
