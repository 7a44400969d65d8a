#include "source_text.hpp"

#include <algorithm>
#include <array>
#include <regex>

namespace millpond::architecture {
namespace {

struct pattern {
  const char* what;
  const char* expression;
};

std::vector<finding> matches(std::string_view text, const pattern& wanted) {
  std::vector<finding> found;
  const std::regex expression(wanted.expression);
  const std::string whole(text);
  for (std::sregex_iterator at(whole.begin(), whole.end(), expression), end; at != end; ++at) {
    found.push_back({line_at(text, static_cast<std::size_t>(at->position())), wanted.what});
  }
  return found;
}

}  // namespace

std::string without_comments_and_strings(std::string_view text) {
  std::string out(text);
  const auto blank = [&](std::size_t from, std::size_t to) {
    for (std::size_t at = from; at < std::min(to, out.size()); ++at) {
      if (out[at] != '\n') out[at] = ' ';
    }
  };
  std::size_t at = 0;
  bool line_start = true;
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    if (line_start && rest.starts_with("#include")) {
      at = std::min(text.find('\n', at), text.size());
    } else if (rest.starts_with("//")) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      blank(at, end);
      at = end;
    } else if (rest.starts_with("/*")) {
      const std::size_t close = text.find("*/", at + 2);
      const std::size_t end = close == std::string_view::npos ? text.size() : close + 2;
      blank(at, end);
      at = end;
    } else if (rest.starts_with("R\"")) {
      const std::size_t open = text.find('(', at);
      std::string close(1, ')');
      close += text.substr(at + 2, open == std::string_view::npos ? 0 : open - at - 2);
      close += '"';
      const std::size_t found = text.find(close, at);
      const std::size_t end = found == std::string_view::npos ? text.size() : found + close.size();
      blank(at, end);
      at = end;
    } else if (text[at] == '"' ||
               // An apostrophe between digits separates thousands.
               (text[at] == '\'' &&
                (at == 0 || !std::isxdigit(static_cast<unsigned char>(text[at - 1]))))) {
      const char quote = text[at];
      std::size_t end = at + 1;
      while (end < text.size() && text[end] != quote && text[end] != '\n')
        end += text[end] == '\\' ? 2 : 1;
      blank(at + 1, end);
      at = end + 1;
    } else {
      line_start = text[at] == '\n' || (line_start && text[at] == ' ');
      ++at;
      continue;
    }
    line_start = false;
  }
  return out;
}

std::string without_hash_comments(std::string_view text, hash_language language) {
  std::string out(text);
  const auto blank = [&](std::size_t from, std::size_t to) {
    for (std::size_t at = from; at < std::min(to, out.size()); ++at) {
      if (out[at] != '\n') out[at] = ' ';
    }
  };
  std::size_t at = 0;
  while (at < text.size()) {
    const char each = text[at];
    const bool begins_word = at == 0 || text[at - 1] == ' ' || text[at - 1] == '\n';
    std::size_t end = at + 1;
    if (each == '#' && (begins_word || language == hash_language::python)) {
      end = std::min(text.find('\n', at), text.size());
      blank(at, end);
    } else if (language == hash_language::python && (each == '"' || each == '\'')) {
      const std::string three(3, each);
      const bool long_string = text.substr(at).starts_with(three);
      const std::string_view close = long_string ? std::string_view(three) : text.substr(at, 1);
      end = at + close.size();
      while (end < text.size() && !text.substr(end).starts_with(close) &&
             (long_string || text[end] != '\n')) {
        end += text[end] == '\\' ? 2 : 1;
      }
      end = std::min(end + close.size(), text.size());
      blank(at, end);
    }
    at = end;
  }
  return out;
}

std::vector<include_line> includes_of(std::string_view text) {
  std::vector<include_line> found;
  const std::string code = without_comments_and_strings(text);
  static const std::regex expression("(?:^|\n)[ ]*#[ ]*include[ ]*([<\"])([^>\"\n]+)[>\"]");
  for (std::sregex_iterator at(code.begin(), code.end(), expression), end; at != end; ++at) {
    const auto offset = static_cast<std::size_t>(at->position(1));
    found.push_back({line_at(text, offset), (*at)[2].str(), (*at)[1].str() == "\""});
  }
  return found;
}

std::size_t line_count(std::string_view text) {
  const auto breaks = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  return breaks + (!text.empty() && text.back() != '\n' ? 1 : 0);
}

std::size_t line_at(std::string_view text, std::size_t offset) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(offset, text.size()));
  return 1 + static_cast<std::size_t>(std::count(text.begin(), end, '\n'));
}

std::vector<finding> forbidden_calls(std::string_view text) {
  static constexpr std::array patterns{
      pattern{"reads the environment", R"(\b(secure_)?getenv\b|\benviron\b)"},
      pattern{
          "reads a clock",
          R"(\b(system|steady|high_resolution|utc|file)_clock\b|\bclock_gettime\b|\bgettimeofday\b)"
          R"(|\btimespec_get\b|\b__?rdtscp?\b|\bstd::time\b|\btime\s*\(\s*(nullptr|NULL|0)\s*\))"},
      pattern{"makes random numbers",
              R"(\brandom_device\b|\bs?rand\s*\(|\bs?random\s*\(\s*\)|\barc4random|\bgetrandom\b)"
              R"(|\bmt19937)"
              R"(|\bdrand48\b|\bdefault_random_engine\b)"}};
  const std::string code = without_comments_and_strings(text);
  std::vector<finding> found;
  for (const pattern& each : patterns) {
    for (finding& one : matches(code, each)) found.push_back(std::move(one));
  }
  return found;
}

std::vector<finding> forbidden_words(std::string_view text) {
  // Written apart, or this file would break its own rule.
  const std::string words = std::string("\\b(TO") + "DO|FIX" + "ME|X" + "XX|HA" + "CK)\\b";
  return matches(text, {"is a note to oneself", words.c_str()});
}

std::vector<finding> bool_parameters(std::string_view text) {
  return matches(without_comments_and_strings(text),
                 {"takes a bool", R"([(,]\s*(const\s+)?bool\s+\w+\s*(=\s*\w+\s*)?[,)])"});
}

std::vector<finding> wide_lines(std::string_view text, text_kind kind) {
  std::vector<finding> found;
  bool in_block = false;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    const auto columns =
        static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char each) {
          return (static_cast<unsigned char>(each) & 0xC0) != 0x80;
        }));
    if (kind == text_kind::markdown) {
      const std::string_view body = line.substr(std::min(line.find_first_not_of(' '), line.size()));
      const bool fence = body.starts_with("```");
      if (fence) in_block = !in_block;
      // A link counts as one word: the formatter breaks none. Apart from what opens an item of a
      // list, one word stays as long as it is.
      static const std::regex link(R"(\[[^\]]*\]\([^)]*\))");
      static const std::regex item(R"(^([-*+]|\d+\.) +)");
      const std::string words =
          std::regex_replace(std::regex_replace(std::string(body), item, ""), link, "link");
      const bool unbreakable = words.find(' ') == std::string::npos;
      if (fence || in_block || body.starts_with("|") || unbreakable) continue;
    }
    if (columns > most_columns) {
      found.push_back(
          {number, std::to_string(columns) + " columns, over " + std::to_string(most_columns)});
    }
  }
  return found;
}

}  // namespace millpond::architecture
