// An address inside a block freed. Near miss: the block's own address, and null.
#include "program.h"

PROGRAM {
  float* block = on_device(256 * KiB);
  LAUNCH(fill, nullptr, block + 1024, count_of(128 * KiB), 1.0f);
#if defined(CLEAN)
  must(cudaFree(nullptr));
#else
  may(cudaFree(block + 1024));
#endif
  must(cudaFree(block));
  return 0;
}
