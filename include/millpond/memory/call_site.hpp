// A place: where in the program something was allocated or freed, for the messages that name both.
//
// Resources that keep places (the five kinds, guard_resource, buffer) take the caller's source
// location by a defaulted argument. A call through memory_resource& carries none; there the
// innermost scoped_place of the thread speaks:
//
//     const scoped_place here("weights of the encoder");
//     void* weights = some_resource.allocate(bytes, stream);
#pragma once
#include <source_location>
#include <string>

namespace millpond {

// Two words, copied freely. Thread-safe as any value.
struct place {
  std::source_location where{};  // line 0 where none was told
  const char* text =
      nullptr;  // must outlive every record of it: a literal, or pointer_registry::intern

  constexpr place() = default;
  constexpr explicit place(std::source_location location) noexcept : where(location) {}
  constexpr place(const char* words, std::source_location location) noexcept
      : where(location), text(words) {}

  [[nodiscard]] bool known() const noexcept { return text != nullptr || where.line() != 0; }
  friend bool operator==(const place& a, const place& b) noexcept {
    return a.text == b.text && a.where.line() == b.where.line() &&
           a.where.column() == b.where.column() && a.where.file_name() == b.where.file_name();
  }
};

// "weights of the encoder (model.cpp:31, load)", "model.cpp:31, load" or "a place not told".
[[nodiscard]] std::string to_string(const place& at);

// The place that the calling thread has set, or one not known.
[[nodiscard]] place current_place() noexcept;

// Sets the thread's place until the end of the scope, then what it was before. Not to be shared by
// threads.
class scoped_place {
 public:
  explicit scoped_place(place at) noexcept;
  explicit scoped_place(const char* text,
                        std::source_location where = std::source_location::current()) noexcept
      : scoped_place(place(text, where)) {}
  ~scoped_place();
  scoped_place(const scoped_place&) = delete;
  scoped_place& operator=(const scoped_place&) = delete;

 private:
  place before_;
};

}  // namespace millpond
