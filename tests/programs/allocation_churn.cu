// A pinned staging buffer made for each request, with the device at rest. Near miss: made once.
#include "program.h"

PROGRAM {
  float* device = on_device(512 * KiB);
  float* staging = nullptr;
#if defined(CLEAN)
  must(cudaHostAlloc(reinterpret_cast<void**>(&staging), 512 * KiB, cudaHostAllocDefault));
#endif
  for (int request = 0; request < 40; ++request) {
#if !defined(CLEAN)
    must(cudaHostAlloc(reinterpret_cast<void**>(&staging), 512 * KiB, cudaHostAllocDefault));
#endif
    must(cudaMemcpyAsync(device, staging, 512 * KiB, cudaMemcpyHostToDevice, nullptr));
    LAUNCH(fill, nullptr, device, count_of(512 * KiB), 1.0f);
    must(cudaDeviceSynchronize());
#if !defined(CLEAN)
    must(cudaFreeHost(staging));
#endif
  }
#if defined(CLEAN)
  must(cudaFreeHost(staging));
#endif
  must(cudaFree(device));
  return 0;
}
