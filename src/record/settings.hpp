// What `millpond record` asks of the recorder, passed to the recorded process in one environment
// variable.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millpond::record {

inline constexpr const char* settings_variable = "MILLPOND_RECORD";

enum class stack_choice : std::uint8_t {
  none,
  memory,
  all
};  // memory: all calls but kernel launches

struct settings {
  std::string path;  // of the trace; processes other than `root` put their number before its ending
  std::uint64_t file_mode = 0644;
  std::uint64_t root = 0;  // process id of the program that was started
  stack_choice stacks = stack_choice::memory;
  std::uint64_t frames = 16;      // of the program's own
  std::uint64_t most_bytes = 0;   // of the file; 0 no limit
  std::uint64_t most_ns = 0;      // of the recording; 0 no limit
  std::uint64_t last_events = 0;  // keep only so many; 0 all
  std::uint64_t ring_cells = std::uint64_t{1} << 17;
  std::string cupti;  // a libcupti to load, or empty
  std::string recorded_by;
  bool python = false;       // Python's frames behind the native ones
  bool kernels = true;       // launches, with the blocks that their arguments point into
  bool count_calls = false;  // note how often each CUDA function was called

  friend bool operator==(const settings&, const settings&) = default;
};

// One line; parse_settings gives the same back. Nothing for anything that it does not understand.
[[nodiscard]] std::string format_settings(const settings& of);
[[nodiscard]] std::optional<settings> parse_settings(std::string_view text);
// The trace of this process: `path`, or "server.1234.mpt" beside "server.mpt".
[[nodiscard]] std::string path_of_process(const settings& of, std::uint64_t process);

}  // namespace millpond::record
