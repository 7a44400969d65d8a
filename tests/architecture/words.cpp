#include "words.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace millpond::architecture {
namespace {

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

bool is_letter(char each) {
  return std::isalpha(static_cast<unsigned char>(each)) != 0;
}

// The runs of letters of a text, in lower case, a capital after a small letter beginning a new one
// (LaneCount), with where each begins. `joined` says which characters may stand between two parts
// of one name.
struct part {
  std::size_t offset = 0;
  std::string text;
  bool joined = false;  // to the part before
};

std::vector<part> parts_of(std::string_view text, std::string_view joints) {
  std::vector<part> parts;
  std::size_t at = 0;
  while (at < text.size()) {
    if (!is_letter(text[at])) {
      ++at;
      continue;
    }
    part next{at, {}, false};
    if (!parts.empty()) {
      const std::size_t end = parts.back().offset + parts.back().text.size();
      const std::string_view between = text.substr(end, at - end);
      next.joined = between.size() <= 1 &&
                    (between.empty() || joints.find(between.front()) != std::string_view::npos);
    }
    while (at < text.size() && is_letter(text[at])) {
      const bool capital = std::isupper(static_cast<unsigned char>(text[at])) != 0;
      if (capital && !next.text.empty() &&
          std::islower(static_cast<unsigned char>(text[at - 1])) != 0) {
        break;
      }
      next.text += static_cast<char>(std::tolower(static_cast<unsigned char>(text[at])));
      ++at;
    }
    parts.push_back(std::move(next));
  }
  return parts;
}

std::vector<finding> gone_in_parts(std::string_view text, std::string_view joints,
                                   const std::vector<gone_word>& words) {
  const std::vector<part> parts = parts_of(text, joints);
  std::vector<finding> found;
  for (const gone_word& each : words) {
    const std::vector<part> wanted = parts_of(each.word, "_");
    const auto same = [&](const part& a, const part& b) {
      return a.text == b.text && (&b == &wanted.front() || a.joined);
    };
    auto at = parts.begin();
    while (true) {
      at = std::search(at, parts.end(), wanted.begin(), wanted.end(), same);
      if (at == parts.end()) break;
      found.push_back({line_at(text, at->offset), each.word + " is gone: " + each.instead});
      ++at;
    }
  }
  return found;
}

}  // namespace

bool gone_word::gone_in(std::string_view file) const {
  return folders.empty() || std::any_of(folders.begin(), folders.end(), [&](const auto& folder) {
           return file.starts_with(folder + "/");
         });
}

std::vector<gone_word> read_gone_words(std::string_view text) {
  std::vector<gone_word> words;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (trimmed(line).empty() || line.front() == '#') continue;
    std::istringstream fields(line);
    std::string word;
    std::string instead;
    std::string folders;
    std::getline(fields, word, '|');
    std::getline(fields, instead, '|');
    std::getline(fields, folders);
    gone_word each{trimmed(word), trimmed(instead), {}};
    std::istringstream names(folders);
    each.folders.assign(std::istream_iterator<std::string>(names), {});
    if (each.word.empty() || each.instead.empty()) {
      throw std::runtime_error("expected WORD | INSTEAD | FOLDERS, found: " + line);
    }
    words.push_back(std::move(each));
  }
  return words;
}

std::vector<finding> gone_identifiers(std::string_view code, const std::vector<gone_word>& words) {
  return gone_in_parts(code, "_", words);
}

std::vector<finding> gone_prose(std::string_view text, const std::vector<gone_word>& words) {
  return gone_in_parts(text, "_- \n", words);
}

}  // namespace millpond::architecture
