#include "base/utf8.hpp"

#include <cstdio>

namespace millpond {
namespace {

// C0, DEL, and C1 in its two bytes: what begins a command to a terminal.
bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(character[n]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  return character.size() == 2 && byte(0) == 0xc2 && byte(1) < 0xa0;
}

}  // namespace

std::size_t utf8_character_bytes(std::string_view text) noexcept {
  const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[n]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead < 0xc2   ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t n = 1; n < length; ++n) {
    if ((byte(n) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool too_high = (lead == 0xed && byte(1) > 0x9f) || (lead == 0xf4 && byte(1) > 0x8f);
  return overlong || too_high ? 0 : length;
}

std::string as_utf8(std::string_view text) {
  std::string made;
  made.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_character_bytes(text);
    made += length == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return made;
}

void append_printable(std::string& to, std::string_view text, line_ends how) {
  while (!text.empty()) {
    const std::size_t length = utf8_character_bytes(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    const bool line = character == "\n" || character == "\t";
    if (length != 0 && (!is_control(character) || (line && how == line_ends::kept))) {
      to += character;
    } else {
      for (const char each : character) {
        char code[8];
        std::snprintf(code, sizeof code, "\\x%02x",
                      static_cast<unsigned>(static_cast<unsigned char>(each)));
        to += code;
      }
    }
    text.remove_prefix(character.size());
  }
}

std::string printable(std::string_view text, line_ends how) {
  std::string made;
  made.reserve(text.size());
  append_printable(made, text, how);
  return made;
}

}  // namespace millpond
