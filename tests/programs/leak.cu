// One of three blocks is never freed. Near miss: it is, by an object that lives longer than main.
#include "program.h"

namespace {
struct owner {
  float* block = nullptr;
  ~owner() {
    if (block != nullptr) cudaFree(block);
  }
};
owner late;
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
  late.block = blocks[2];
#endif
  return 0;
}
