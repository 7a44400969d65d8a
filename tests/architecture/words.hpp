// The words that are gone (gone_words.txt), and where a text still has one.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "source_text.hpp"

namespace millpond::architecture {

struct gone_word {
  std::string word;                  // in snake_case
  std::string instead;               // what is said now
  std::vector<std::string> folders;  // gone in the code of these alone; empty: everywhere
  [[nodiscard]] bool gone_in(std::string_view file) const;
};

// From the text of gone_words.txt. Throws std::runtime_error with the line that it cannot read.
[[nodiscard]] std::vector<gone_word> read_gone_words(std::string_view text);

// Identifiers of code (without comments and strings) that have a word as a whole part: lane_count
// and count_of_lanes have lane and lanes; plane has none.
[[nodiscard]] std::vector<finding> gone_identifiers(std::string_view code,
                                                    const std::vector<gone_word>& words);
// The same of prose, where a word's parts may stand apart ("wide fence").
[[nodiscard]] std::vector<finding> gone_prose(std::string_view text,
                                              const std::vector<gone_word>& words);

}  // namespace millpond::architecture
