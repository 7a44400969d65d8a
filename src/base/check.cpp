#include "base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace millpond {

void check_failed(const char* file, int line, const char* condition,
                  const std::string& values) noexcept {
  std::fprintf(stderr, "millpond: %s:%d: check failed: %s%s%s\n", file, line, condition,
               values.empty() ? "" : " with", values.c_str());
  std::abort();
}

}  // namespace millpond
