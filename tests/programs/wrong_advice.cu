// Managed memory that prefers the host, read and written by one kernel after another. Near miss: it
// prefers the device.
#include "program.h"

PROGRAM {
  float* block = nullptr;
  const std::size_t bytes = 4 * MiB;
  must(cudaMallocManaged(reinterpret_cast<void**>(&block), bytes, cudaMemAttachGlobal));
#if defined(CLEAN)
  const cudaMemLocation where{cudaMemLocationTypeDevice, 0};
#else
  const cudaMemLocation where{cudaMemLocationTypeHost, 0};
#endif
  must(cudaMemAdvise(block, bytes, cudaMemAdviseSetPreferredLocation, where));
  phase(block, bytes, 12, nullptr);
  must(cudaDeviceSynchronize());
  must(cudaFree(block));
  return 0;
}
