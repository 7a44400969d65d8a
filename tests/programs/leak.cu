// One of three blocks is never freed. Near miss: it is, at the program's end, before CUDA goes.
#include "program.h"

namespace {
[[maybe_unused]] float* late = nullptr;
[[maybe_unused]] void free_late() {
  cudaFree(late);
}
}  // namespace

PROGRAM {
  float* blocks[3];
  for (float*& each : blocks) {
    each = on_device(512 * KiB);
    LAUNCH(fill, nullptr, each, count_of(512 * KiB), 1.0f);
  }
  must(cudaDeviceSynchronize());
  must(cudaFree(blocks[0]));
  must(cudaFree(blocks[1]));
#if defined(CLEAN)
  late = blocks[2];
  std::atexit(free_late);  // after CUDA's own handler was registered, so before it runs
#endif
  return 0;
}
