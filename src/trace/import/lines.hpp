// Lines and fields of a text file, over a window of bytes: no copy, bounded memory.
#pragma once
#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>

#include "millpond/base/result.hpp"
#include "trace/input.hpp"

namespace millpond::trace {

class line_reader {
 public:
  line_reader(input_buffer from, std::uint64_t limit_bytes) noexcept
      : from_(std::move(from)), limit_(limit_bytes) {}

  // The next line without its end ("\n" or "\r\n"), valid until the next call; false at the end.
  // A line over the limit is bad_input.
  result<bool> next(std::string_view& line);
  // Of the line last given, from 1.
  [[nodiscard]] std::uint64_t line_number() const noexcept { return line_number_; }
  [[nodiscard]] const std::string& name() const noexcept { return from_.name(); }
  [[nodiscard]] error bad(std::string_view expected, std::string_view found) const {
    return bad_line(from_.name(), line_number_, expected, found);
  }

 private:
  input_buffer from_;
  std::uint64_t limit_;
  std::uint64_t line_number_ = 0;
  std::size_t consume_ = 0;  // the line given last, with its end: consumed at the next call
};

// The fields of one line, split at commas. More than `most` fields: the rest is counted, not kept.
struct fields {
  static constexpr std::size_t most = 32;
  std::array<std::string_view, most> at;
  std::size_t count = 0;

  void split(std::string_view line) noexcept {
    count = 0;
    for (;;) {
      const std::size_t comma = line.find(',');
      if (count < most) at[count] = line.substr(0, comma);
      ++count;
      if (comma == std::string_view::npos) return;
      line.remove_prefix(comma + 1);
    }
  }
};

// The whole of `text` as a number; false on anything else, signs and spaces included.
inline bool parse_decimal(std::string_view text, std::uint64_t& value) noexcept {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value, 10);
  return failed == std::errc{} && end == text.data() + text.size() && !text.empty();
}
// Hexadecimal, with or without 0x.
inline bool parse_hexadecimal(std::string_view text, std::uint64_t& value) noexcept {
  if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return failed == std::errc{} && end == text.data() + text.size() && !text.empty();
}

}  // namespace millpond::trace
