// libcuda: found, loaded and asked for its functions, with an error that says what to do for each
// way in which that fails.
#pragma once
#include <string>

#include "driver/cuda/functions.hpp"
#include "millpond/base/result.hpp"

namespace millpond::cuda {

// What the program's own library is called. Tests pass the path of a scripted one.
inline constexpr const char* default_library = "libcuda.so.1";

struct library {
  function_table functions;
  int version = 0;          // 13000 for CUDA 13.0: what the driver supports
  std::string path;         // the file that was loaded
  std::uint32_t forks = 0;  // fork_count() when it was loaded
};

// Loads the library, checks its version and calls cuInit. The library is never unloaded (the driver
// keeps threads), and a second call finds it loaded. Errors: not_supported (no library, too old, a
// function missing), driver_failure (cuInit refused; no device).
[[nodiscard]] result<library> load_library(const std::string& name);

// "13.0" from 13000.
[[nodiscard]] std::string version_text(int version);

}  // namespace millpond::cuda
