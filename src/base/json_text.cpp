#include "base/json_text.hpp"

#include "base/utf8.hpp"

#include <cstdio>

namespace millpond {

void append_json_string(std::string& to, std::string_view text) {
  to += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_character_bytes(text);
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
