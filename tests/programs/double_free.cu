// One block freed twice. Near miss: the address comes back from another allocation, and is freed
// again by right.
#include "program.h"

PROGRAM {
  float* block = on_device(256 * KiB);
  LAUNCH(fill, nullptr, block, count_of(256 * KiB), 1.0f);
  must(cudaFree(block));
#if defined(CLEAN)
  block = on_device(256 * KiB);
  LAUNCH(fill, nullptr, block, count_of(256 * KiB), 1.0f);
  must(cudaFree(block));
#else
  may(cudaFree(block));
#endif
  return 0;
}
