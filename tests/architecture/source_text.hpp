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

// The same for a language whose comments begin with #. Python's strings are made blank; a shell's
// and CMake's are not, since they hold code.
enum class hash_language { python, shell };
[[nodiscard]] std::string without_hash_comments(std::string_view text, hash_language language);

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
// Calls that only cli, record and bindings may make: the environment, the clock, random numbers.
[[nodiscard]] std::vector<finding> forbidden_calls(std::string_view text);
// Words that a finished tree does not have.
[[nodiscard]] std::vector<finding> forbidden_words(std::string_view text);
// Parameters of type bool: an enum says at the call what it means.
[[nodiscard]] std::vector<finding> bool_parameters(std::string_view text);

inline constexpr std::size_t most_columns = 100;
// Lines that are wider, in characters. Of Markdown, what cannot be broken stays out: tables, blocks
// of code, and lines that are one long word (a link).
enum class text_kind { code, markdown };
[[nodiscard]] std::vector<finding> wide_lines(std::string_view text, text_kind kind);

}  // namespace millpond::architecture
