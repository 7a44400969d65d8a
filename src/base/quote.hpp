// What messages quote: any bytes as text on one line, in quotes, escaped, shortened; addresses.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace millpond {

// At most some 60 characters of `bytes`, what is not printable ASCII as \xNN. Named so that
// std::quoted is not found instead by the argument's namespace.
std::string in_quotes(std::string_view bytes);

// "0x7f3a00000000".
std::string in_hex(std::uint64_t value);
inline std::string in_hex(const void* address) {
  return in_hex(reinterpret_cast<std::uintptr_t>(address));
}

}  // namespace millpond
