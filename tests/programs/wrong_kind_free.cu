// Pinned memory given to cudaFree, which refuses it. Near miss: each kind through its own call;
// cudaFree is right for managed memory.
#include "program.h"

PROGRAM {
  float *pinned = nullptr, *managed = nullptr;
  must(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 256 * KiB, cudaHostAllocDefault));
  must(cudaMallocManaged(reinterpret_cast<void**>(&managed), 256 * KiB, cudaMemAttachGlobal));
  float* device = on_device(256 * KiB);
  must(cudaMemcpy(device, pinned, 256 * KiB, cudaMemcpyHostToDevice));
  LAUNCH(fill, nullptr, managed, count_of(256 * KiB), 1.0f);
  must(cudaDeviceSynchronize());
#if !defined(CLEAN)
  may(cudaFree(pinned));
#endif
  must(cudaFreeHost(pinned));
  must(cudaFree(managed));
  must(cudaFree(device));
  return 0;
}
