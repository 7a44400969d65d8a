// A place: where in the program something was allocated or freed, for the messages that name both.
//
// Resources that keep places (the five kinds, guard_resource, buffer) take the caller's source
// location by a defaulted argument. A call through memory_resource& carries none; there the
// innermost scoped_call_site of the thread speaks:
//
//     const scoped_call_site here("weights of the encoder");
//     void* weights = some_resource.allocate(bytes, stream);
#pragma once
#include "millpond/detail/language.hpp"

#include <source_location>
#include <string>

namespace millpond {

// Two words, copied freely. Thread-safe as any value.
struct call_site {
  std::source_location where{};  // line 0 where none was reported
  const char* text =
      nullptr;  // must outlive every record of it: a literal, or pointer_registry::intern

  constexpr call_site() = default;
  constexpr explicit call_site(std::source_location location) noexcept : where(location) {}
  constexpr call_site(const char* words, std::source_location location) noexcept
      : where(location), text(words) {}

  [[nodiscard]] bool known() const noexcept { return text != nullptr || where.line() != 0; }
  friend bool operator==(const call_site& a, const call_site& b) noexcept {
    return a.text == b.text && a.where.line() == b.where.line() &&
           a.where.column() == b.where.column() && a.where.file_name() == b.where.file_name();
  }
};

// "weights of the encoder (model.cpp:31, load)", "model.cpp:31, load" or "a place not reported".
[[nodiscard]] std::string to_string(const call_site& at);

// The place that the calling thread has set, or one not known.
[[nodiscard]] call_site current_call_site() noexcept;

// Sets the thread's place until the end of the scope, then what it was before. Not to be shared by
// threads.
class scoped_call_site {
 public:
  explicit scoped_call_site(call_site at) noexcept;
  explicit scoped_call_site(const char* text,
                            std::source_location where = std::source_location::current()) noexcept
      : scoped_call_site(call_site(text, where)) {}
  ~scoped_call_site();
  scoped_call_site(const scoped_call_site&) = delete;
  scoped_call_site& operator=(const scoped_call_site&) = delete;

 private:
  call_site before_;
};

}  // namespace millpond
