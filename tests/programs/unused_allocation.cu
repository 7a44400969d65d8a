// A block that nothing uses. Near miss: kernels find it in a table on the device, and no argument
// points to it.
#include "program.h"

PROGRAM {
  float* used = on_device(512 * KiB);
  float* hidden = on_device(512 * KiB);
  LAUNCH(fill, nullptr, used, count_of(512 * KiB), 1.0f);
#if defined(CLEAN)
  float** table = nullptr;
  must(cudaMalloc(reinterpret_cast<void**>(&table), 4 * KiB));
  float* blocks[1] = {hidden};
  must(cudaMemcpy(table, blocks, sizeof blocks, cudaMemcpyHostToDevice));
  LAUNCH(fill_all, nullptr, table, 1, count_of(512 * KiB));
  must(cudaDeviceSynchronize());
  must(cudaFree(table));
#endif
  must(cudaFree(hidden));
  must(cudaFree(used));
  return 0;
}
