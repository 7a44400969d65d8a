// Columns of text for a terminal.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millpond::report {

// How wide text is where nobody has said how wide the terminal is: in a file, a pipe, a log.
inline constexpr std::size_t text_columns = 80;

// The first column is set left, the others right, two spaces between; a column is as wide as its
// widest cell.
class table {
 public:
  explicit table(std::vector<std::string> heads) { rows_.push_back(std::move(heads)); }
  // As many cells as there are heads.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Lines ended by a newline; the heads are underlined. Where they would be longer than `most`
  // columns one space stands between columns, and where that is not enough the longest cells of the
  // first column lose their middle; numbers stay whole.
  [[nodiscard]] std::string text(std::size_t most = text_columns) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Microseconds in few characters: "0.32", "45.1", "24139", "2414k".
[[nodiscard]] std::string microseconds(double nanoseconds);
// "26,638".
[[nodiscard]] std::string grouped(std::uint64_t number);
// "1 stream", "2 streams".
[[nodiscard]] std::string counted(std::uint64_t number, std::string_view one,
                                  std::string_view several);
// How many columns a terminal takes for UTF-8 text, where each letter takes one.
[[nodiscard]] std::size_t columns_of(std::string_view text) noexcept;
// The beginning of a text, at most `width` columns of it, never the half of a letter.
[[nodiscard]] std::string shortened(std::string text, std::size_t width);
// Breaks a sentence into lines of at most `width` columns, each after `indent` spaces but the
// first. A number and its unit ("972 MiB") stay together.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);
// `head` and behind it the text, broken into lines of text_columns that begin under the text's
// first; ended by a newline.
[[nodiscard]] std::string paragraph(const std::string& head, const std::string& text);

}  // namespace millpond::report
