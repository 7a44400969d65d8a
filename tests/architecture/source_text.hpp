// The text of a C++ file as the rules see it.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace millpond::architecture {

// The same text with comments, and what is in string and character literals, made blank; lines
// stay. Include lines are kept whole.
[[nodiscard]] std::string without_comments_and_strings(std::string_view text);

struct include_line {
  std::size_t line = 0;
  std::string path;
  bool quoted = false;  // "path" rather than <path>
};
[[nodiscard]] std::vector<include_line> includes_of(std::string_view text);

[[nodiscard]] std::size_t line_count(std::string_view text);
[[nodiscard]] std::size_t line_at(std::string_view text, std::size_t offset);

struct finding {
  std::size_t line = 0;
  std::string what;
};
// Calls that only cli, record and adapters may make: the environment, the clock, random numbers.
[[nodiscard]] std::vector<finding> forbidden_calls(std::string_view text);
// Words that a finished tree does not have.
[[nodiscard]] std::vector<finding> forbidden_words(std::string_view text);

}  // namespace millpond::architecture
