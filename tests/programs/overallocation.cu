// 32 MiB asked for, 1 MiB of it ever reached. Near miss: a kernel is given the block, and may use
// all of it.
#include "program.h"

PROGRAM {
  float* block = on_device(32 * MiB);
  float* result = on_device(1 * MiB);
  must(cudaMemset(block, 0, 1 * MiB));
#if defined(CLEAN)
  LAUNCH(add, nullptr, block + 4 * MiB, result, count_of(1 * MiB));
#endif
  must(cudaMemcpy(result, block, 1 * MiB, cudaMemcpyDeviceToDevice));
  LAUNCH(fill, nullptr, result, count_of(1 * MiB), 1.0f);
  must(cudaDeviceSynchronize());
  must(cudaFree(result));
  must(cudaFree(block));
  return 0;
}
