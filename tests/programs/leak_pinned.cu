// Pinned memory that is never freed. Near miss: the device is reset at the end, which gives
// everything back.
#include "program.h"

PROGRAM {
  float* pinned = nullptr;
  must(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 512 * KiB, cudaHostAllocDefault));
  float* device = on_device(512 * KiB);
  must(cudaMemcpyAsync(device, pinned, 512 * KiB, cudaMemcpyHostToDevice, nullptr));
  must(cudaDeviceSynchronize());
#if defined(CLEAN)
  must(cudaDeviceReset());
#else
  must(cudaFree(device));
#endif
  return 0;
}
