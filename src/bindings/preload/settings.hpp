// What `millpond run` tells the library that it preloads, through the environment.
#pragma once
#include <cstdint>
#include <string>

namespace millpond::preload {

// When a block that cudaFree gave back may serve again.
enum class free_mode : std::uint8_t {
  waits,  // cudaFree waits for the device, as CUDA's does, and programs that lean on that go on
          // working
  later,  // cudaFree returns at once; the block serves when all work of the device so far is done
};

struct settings {
  free_mode on_free = free_mode::waits;
  bool ipc =
      false;  // blocks that other processes may open: one cudaMalloc each, kept and used again
  bool device = true, pinned = true, managed = true;  // which kinds are served
  bool simulated = false;                             // from a simulated GPU, for tests
  bool report = false;                                // a summary at the end of the process
  long root = 0;  // the process that `run` started, which reports even that it asked for nothing
  std::uint64_t limit_bytes = 0;  // of device memory a GPU; 0: the device's
};

// From MILLPOND_RUN ("free=later,ipc,kinds=device+pinned,limit=8589934592,report,gpu=sim"). Unknown
// words are reported to stderr and passed over.
[[nodiscard]] settings read_settings(const char* text);

}  // namespace millpond::preload
