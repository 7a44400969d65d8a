// What a program outside the tree does first: include, link, call.
#include <cstdio>

#include "millpond/driver.hpp"
#include "millpond/units.hpp"

int main() {
  std::uint64_t bytes = 0;
  if (!millpond::parse_bytes("64MiB", bytes) || bytes != 64 * millpond::MiB) return 1;
  std::printf("a pool of one pond: %s, %s\n", millpond::format_bytes(bytes).c_str(),
              millpond::to_string(millpond::memory_kind::device));
  return 0;
}
