#include "base/quote.hpp"

#include <fmt/format.h>

namespace millpond {

std::string in_quotes(std::string_view bytes) {
  std::string text = "'";
  for (const char each : bytes) {
    if (text.size() > 60) return text + "...'";
    const auto code = static_cast<unsigned char>(each);
    if (code < 0x20 || code >= 0x7f) {
      text += fmt::format("\\x{:02x}", code);
    } else {
      text += each;
    }
  }
  return text + "'";
}

std::string in_hex(std::uint64_t value) {
  return fmt::format("{:#x}", value);
}

}  // namespace millpond
