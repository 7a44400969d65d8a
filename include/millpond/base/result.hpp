// result<T>: a value, or an error that says what failed and why. Used inside and at the edges that
// do not throw; the throwing edge turns an error into an exception with the same text.
#pragma once
#include "millpond/detail/language.hpp"

#include <string>
#include <utility>
#include <variant>

namespace millpond {

enum class error_code {
  invalid_argument,  // the caller's arguments cannot be served by anyone
  out_of_memory,     // the memory is not there now
  driver_failure,    // a driver call failed; the message names it
  not_supported,     // this driver or device lacks the function
  wrong_kind,        // freed through another kind's call
  double_free,       // freed twice
  foreign_pointer,   // not a block of this resource
  interior_pointer,  // points into a block, not at its start
  bad_input,         // a file that is not what it should be; the message names the place
  output_failure,  // a file that could not be written; the message names it and the system's reason
  not_permitted,   // forbidden here and now: in a forked child, after shutdown, in a capture
};
[[nodiscard]] const char* to_string(error_code code) noexcept;

struct error {
  error_code code{};
  std::string message = {};
  std::string json{};  // the same for programs where there is more to say (memory_report's, of
                       // out_of_memory), or empty
};

template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  result(millpond::error failure) : state_(std::in_place_index<1>, std::move(failure)) {}

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  // Only when has_value(); otherwise std::bad_variant_access.
  [[nodiscard]] T& value() & { return std::get<0>(state_); }
  [[nodiscard]] const T& value() const& { return std::get<0>(state_); }
  [[nodiscard]] T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  // Only when !has_value().
  [[nodiscard]] const millpond::error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, millpond::error> state_;
};

template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  result(millpond::error failure) : failed_(true), error_(std::move(failure)) {}
  [[nodiscard]] bool has_value() const noexcept { return !failed_; }
  explicit operator bool() const noexcept { return !failed_; }
  [[nodiscard]] const millpond::error& error() const { return error_; }

 private:
  bool failed_ = false;
  millpond::error error_;
};

}  // namespace millpond
