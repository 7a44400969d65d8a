#include "base/json_text.hpp"

#include <cstdio>

namespace millpond {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  out += '"';
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

}  // namespace millpond
