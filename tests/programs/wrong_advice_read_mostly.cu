// Managed memory advised read-mostly, and cleared by the GPU for each request. Near miss: the
// advice goes before the writing begins.
#include "program.h"

PROGRAM {
  float* block = nullptr;
  const std::size_t bytes = 4 * MiB;
  const cudaMemLocation where{cudaMemLocationTypeDevice, 0};
  must(cudaMallocManaged(reinterpret_cast<void**>(&block), bytes, cudaMemAttachGlobal));
  must(cudaMemAdvise(block, bytes, cudaMemAdviseSetReadMostly, where));
  LAUNCH(fill, nullptr, block, count_of(bytes), 1.0f);
  must(cudaDeviceSynchronize());
#if defined(CLEAN)
  must(cudaMemAdvise(block, bytes, cudaMemAdviseUnsetReadMostly, where));
#endif
  for (int request = 0; request < 4; ++request) {
    must(cudaMemsetAsync(block, 0, bytes, nullptr));
    LAUNCH(fill, nullptr, block, count_of(bytes), 1.0f);
  }
  must(cudaDeviceSynchronize());
  must(cudaFree(block));
  return 0;
}
