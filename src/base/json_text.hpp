// JSON as it is written: objects and lists of strings and whole numbers, with no tree in memory.
// For the rooms of the library, so that no third-party header comes into a program with it, and for
// long streams. The command builds its documents as trees with nlohmann's library, and only there.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace millpond {

// The text in quotes, with what JSON forbids inside them escaped. Bytes that are no UTF-8 become
// U+FFFD.
void append_json_string(std::string& out, std::string_view text);
[[nodiscard]] std::string json_string(std::string_view text);

// A document under construction. The caller closes what it opens.
class json_text {
 public:
  void open(char bracket);
  void close(char bracket);
  void key(std::string_view name);
  void number(std::string_view name, std::uint64_t value);
  void string(std::string_view name, std::string_view value);
  void element(std::string_view value);
  void element(std::uint64_t value);
  // A list of strings.
  template <class List>
  void strings(std::string_view name, const List& values) {
    key(name);
    open('[');
    for (const auto& each : values) element(each);
    close(']');
  }
  // A list of objects: `write` writes the members of one.
  template <class List, class Write>
  void objects(std::string_view name, const List& values, Write&& write) {
    key(name);
    open('[');
    for (const auto& each : values) {
      open('{');
      write(each);
      close('}');
    }
    close(']');
  }
  [[nodiscard]] std::string take() && { return std::move(text_); }

 private:
  void comma();
  std::string text_;
  bool first_ = true;
};

}  // namespace millpond
