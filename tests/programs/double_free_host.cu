// Pinned memory freed twice. Near miss: two blocks, each freed once, and null, which is legal.
#include "program.h"

PROGRAM {
  float *first = nullptr, *second = nullptr;
  must(cudaHostAlloc(reinterpret_cast<void**>(&first), 256 * KiB, cudaHostAllocDefault));
  must(cudaHostAlloc(reinterpret_cast<void**>(&second), 256 * KiB, cudaHostAllocDefault));
  float* device = on_device(256 * KiB);
  must(cudaMemcpy(device, first, 256 * KiB, cudaMemcpyHostToDevice));
  must(cudaMemcpy(second, device, 256 * KiB, cudaMemcpyDeviceToHost));
  must(cudaFreeHost(first));
#if defined(CLEAN)
  must(cudaFreeHost(nullptr));
#else
  may(cudaFreeHost(first));
#endif
  must(cudaFreeHost(second));
  must(cudaFree(device));
  return 0;
}
