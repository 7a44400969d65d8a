// Checks: a bug in the program stops here with the values printed. MILLPOND_CHECK is always on and
// must be cheap; MILLPOND_AUDIT_CHECK runs whole-structure walkers and exists only in the audit
// build.
#pragma once
#include <sstream>
#include <string>

namespace millpond {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& values) noexcept;

namespace detail {
template <class... Values>
std::string print_values(const Values&... values) {
  std::ostringstream text;
  ((text << ' ' << values), ...);
  return text.str();
}
}  // namespace detail

}  // namespace millpond

// MILLPOND_CHECK(condition, values...): the values are printed when the condition is false.
#define MILLPOND_CHECK(condition, ...)                            \
  (__builtin_expect(static_cast<bool>(condition), 1)              \
       ? static_cast<void>(0)                                     \
       : ::millpond::check_failed(__FILE__, __LINE__, #condition, \
                                  ::millpond::detail::print_values(__VA_ARGS__)))

#if defined(MILLPOND_AUDIT)
#define MILLPOND_AUDIT_CHECK(...) MILLPOND_CHECK(__VA_ARGS__)
#else
#define MILLPOND_AUDIT_CHECK(...) static_cast<void>(0)
#endif
