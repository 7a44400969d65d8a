// What a benchmark writes down: numbers, texts, lists and fields by name, printed as JSON. A type
// of our own, so that the library that prints it is compiled once and not with every benchmark.
#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace millpond::bench {

struct field;

class value {
 public:
  enum class kind : std::uint8_t { nothing, boolean, whole, negative, real, text, list, fields };

  value() = default;
  value(std::same_as<bool> auto of) : kind_(kind::boolean), whole_(of ? 1 : 0) {}
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  value(T of)
      : kind_(of < T{0} ? kind::negative : kind::whole), whole_(static_cast<std::uint64_t>(of)) {}
  value(std::floating_point auto of) : kind_(kind::real), real_(static_cast<double>(of)) {}
  value(const char* of) : kind_(kind::text), text_(of) {}
  value(std::string of) : kind_(kind::text), text_(std::move(of)) {}
  value(std::initializer_list<field> of);
  [[nodiscard]] static value list(std::vector<value> of = {});

  // The field of that name, made where there is none.
  value& operator[](std::string_view name);
  [[nodiscard]] const value* find(std::string_view name) const noexcept;
  void push_back(value of);  // of a list

  [[nodiscard]] kind what() const noexcept { return kind_; }
  [[nodiscard]] std::uint64_t bits() const noexcept { return whole_; }  // of a whole number
  [[nodiscard]] double number() const noexcept;                         // 0 where it is none
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }
  [[nodiscard]] const std::vector<value>& items() const noexcept { return items_; }

  // As JSON, on one line without an indent.
  [[nodiscard]] std::string json(int indent = -1) const;
  [[nodiscard]] static value from_json(const std::string& text);

 private:
  kind kind_ = kind::nothing;
  std::uint64_t whole_ = 0;
  double real_ = 0;
  std::string text_;
  std::vector<std::string> names_;  // of the fields, in the order of items_
  std::vector<value> items_;
};

struct field {
  std::string name;
  value of;
};

}  // namespace millpond::bench
