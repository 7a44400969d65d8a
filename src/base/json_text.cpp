#include "base/json_text.hpp"

#include <cstdio>

namespace millpond {

namespace {

// The length of the UTF-8 character at the front, or 0 where there is none: cut short, overlong, a
// surrogate or past U+10FFFF.
std::size_t character_bytes(std::string_view text) {
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

}  // namespace

void append_json_string(std::string& to, std::string_view text) {
  to += '"';
  while (!text.empty()) {
    const std::size_t length = character_bytes(text);
    const char c = text.front();
    if (length == 0) {
      to += "\xef\xbf\xbd";
    } else if (c == '"' || c == '\\') {
      to += '\\';
      to += c;
    } else if (c == '\n') {
      to += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      to += escape;
    } else {
      to += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  to += '"';
}

std::string json_string(std::string_view text) {
  std::string made;
  append_json_string(made, text);
  return made;
}

void json_text::comma() {
  if (!first_) text_ += ',';
  first_ = false;
}

void json_text::open(char bracket) {
  comma();
  text_ += bracket;
  first_ = true;
}

void json_text::close(char bracket) {
  text_ += bracket;
  first_ = false;
}

void json_text::key(std::string_view name) {
  comma();
  append_json_string(text_, name);
  text_ += ':';
  first_ = true;
}

void json_text::number(std::string_view name, std::uint64_t value) {
  key(name);
  text_ += std::to_string(value);
  first_ = false;
}

void json_text::string(std::string_view name, std::string_view value) {
  key(name);
  append_json_string(text_, value);
  first_ = false;
}

void json_text::element(std::string_view value) {
  comma();
  append_json_string(text_, value);
}

void json_text::element(std::uint64_t value) {
  comma();
  text_ += std::to_string(value);
}

}  // namespace millpond
