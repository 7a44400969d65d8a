// A bound on what one command may take of this machine's memory.
#pragma once
#include <cstdint>

namespace millpond::cli {

// From now on memory beyond seven eighths of what the machine has left (or of the control group's
// limit, where that is less) is refused to this process, which then ends with one line instead of
// taking other programs' memory with it: a file of 12 KB can ask for 14 million blocks. For
// commands that read files; never for one that starts programs, which would inherit it.
void bound_memory_of_process();

// What it may still take.
[[nodiscard]] std::uint64_t memory_left_to_process();

}  // namespace millpond::cli
