// Device memory given to cudaFreeHost. Near miss: cudaFree takes a block of a driver pool, and
// waits for it.
#include "program.h"

PROGRAM {
  float* device = on_device(256 * KiB);
  float* pooled = nullptr;
  must(cudaMallocAsync(reinterpret_cast<void**>(&pooled), 256 * KiB, nullptr));
  LAUNCH(fill, nullptr, device, count_of(256 * KiB), 1.0f);
  LAUNCH(fill, nullptr, pooled, count_of(256 * KiB), 1.0f);
  must(cudaDeviceSynchronize());
#if !defined(CLEAN)
  may(cudaFreeHost(device));
#endif
  must(cudaFree(pooled));
  must(cudaFree(device));
  return 0;
}
