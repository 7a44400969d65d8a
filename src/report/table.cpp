#include "report/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

namespace millpond::report {

namespace {

std::string padding(const std::string& cell, std::size_t width) {
  return std::string(width - std::min(width, columns_of(cell)), ' ');
}

// The end of what stays on one line: a word, or a number and its unit.
std::size_t end_of_word(const std::string& text, std::size_t at) {
  static constexpr std::string_view units[] = {"B",  "KiB", "MiB", "GiB", "TiB",
                                               "ns", "us",  "ms",  "s"};
  const std::size_t end = std::min(text.find(' ', at), text.size());
  if (end == at || end == text.size() || text[end - 1] < '0' || text[end - 1] > '9') return end;
  std::size_t next = end + 1;
  while (next < text.size() && std::isalpha(static_cast<unsigned char>(text[next])) != 0) ++next;
  const bool unit = std::ranges::find(units, std::string_view(text).substr(
                                                 end + 1, next - end - 1)) != std::end(units);
  return unit ? std::min(text.find(' ', end + 1), text.size()) : end;
}

// "driver-po..pageable": both ends of a name say more than its beginning alone.
std::string without_middle(const std::string& text, std::size_t width) {
  if (columns_of(text) <= width || width < 5) return text;
  const std::size_t ahead = (width - 1) / 2, behind = width - 2 - ahead;
  const std::size_t head = shortened(text, ahead).size();
  const std::size_t tail = shortened(text, columns_of(text) - behind).size();
  return text.substr(0, head) + ".." + text.substr(tail);
}

}  // namespace

std::string table::text(std::size_t most) const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  if (widths.empty()) return {};
  std::size_t cells = 0;
  for (const std::size_t width : widths) cells += width;
  const std::size_t gaps = widths.size() - 1;
  const std::size_t gap = cells + 2 * gaps <= most ? 2 : 1;
  if (cells + gap * gaps > most) {
    constexpr std::size_t least = 12;  // of a name, below which it says nothing
    const std::size_t over = cells + gap * gaps - most;
    widths[0] = std::min(widths[0], std::max(least, widths[0] - std::min(widths[0], over)));
  }
  std::string made;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows_[r].size(); ++i) {
      const std::string& cell = rows_[r][i];
      if (i == 0) {
        line = without_middle(cell, widths[0]);
        line += padding(line, widths[0]);
      } else {
        line += std::string(gap, ' ') + padding(cell, widths[i]) + cell;
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    made += line + '\n';
    if (r > 0) continue;
    std::size_t all = gap * gaps;
    for (const std::size_t width : widths) all += width;
    made += std::string(all, '-') + '\n';
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

std::size_t columns_of(std::string_view text) noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char each) { return (static_cast<unsigned char>(each) & 0xc0) != 0x80; }));
}

std::string shortened(std::string text, std::size_t width) {
  std::size_t at = 0;
  for (std::size_t columns = 0; at < text.size() && columns < width; ++columns) {
    ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  }
  text.resize(at);
  return text;
}

std::string counted(std::uint64_t number, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", grouped(number), number == 1 ? one : several);
}

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string made;
  std::size_t column = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = end_of_word(text, at);
    const std::size_t bytes = end - at,
                      length = columns_of(std::string_view(text).substr(at, bytes));
    if (column > indent && column + 1 + length > width) {
      made += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (at > 0) {
      made += ' ';
      ++column;
    }
    made.append(text, at, bytes);
    column += length;
    at = end + 1;
  }
  return made;
}

std::string paragraph(const std::string& head, const std::string& text) {
  return wrapped(head + text, text_columns, columns_of(head)) + '\n';
}

}  // namespace millpond::report
