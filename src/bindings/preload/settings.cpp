#include "bindings/preload/settings.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "millpond/base/units.hpp"

namespace millpond::preload {

settings read_settings(const char* text) {
  settings out;
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::size_t end = rest.find(',');
    const std::string_view word = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    if (word == "free=waits") {
      out.on_free = free_mode::waits;
    } else if (word == "free=later") {
      out.on_free = free_mode::later;
    } else if (word == "ipc") {
      out.ipc = true;
    } else if (word == "report") {
      out.report = true;
    } else if (word.starts_with("root=")) {
      out.root = std::atol(std::string(word.substr(5)).c_str());
    } else if (word == "gpu=sim") {
      out.simulated = true;
    } else if (word.starts_with("kinds=")) {
      std::string kinds(1, '+');
      kinds.append(word.substr(6)).append(1, '+');
      out.device = kinds.find("+device+") != std::string::npos;
      out.pinned = kinds.find("+pinned+") != std::string::npos;
      out.managed = kinds.find("+managed+") != std::string::npos;
    } else if (!word.starts_with("limit=") || !parse_bytes(word.substr(6), out.limit_bytes)) {
      std::fprintf(stderr, "millpond: MILLPOND_RUN has a word that is not understood: %.*s\n",
                   static_cast<int>(word.size()), word.data());
    }
  }
  return out;
}

}  // namespace millpond::preload
