// Columns of text for a terminal.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace millpond::report {

// The first column is set left, the others right, two spaces between; a column is as wide as its widest cell.
class table {
 public:
  explicit table(std::vector<std::string> heads) { rows_.push_back(std::move(heads)); }
  // As many cells as there are heads.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Lines ended by a newline; the heads are underlined.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Microseconds in few characters: "0.32", "45.1", "24139", "2414k".
[[nodiscard]] std::string microseconds(double nanoseconds);
// "26,638".
[[nodiscard]] std::string grouped(std::uint64_t number);
// Breaks a sentence into lines of at most `width` bytes, each after `indent` spaces but the first.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

}  // namespace millpond::report
