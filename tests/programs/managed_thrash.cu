// Managed memory that the CPU and the GPU touch in turns, moved by faults. Near miss: moved by
// prefetches.
#include "program.h"

PROGRAM {
  float* block = nullptr;
  const std::size_t bytes = 4 * MiB;
  must(cudaMallocManaged(reinterpret_cast<void**>(&block), bytes, cudaMemAttachGlobal));
  for (int round = 0; round < 20; ++round) {
    CPU_WRITE(block, bytes, 1);
#if defined(CLEAN)
    must(cudaMemPrefetchAsync(block, bytes, cudaMemLocation{cudaMemLocationTypeDevice, 0}, 0,
                              nullptr));
#endif
    LAUNCH(fill, nullptr, block, count_of(bytes), 1.0f);
#if defined(CLEAN)
    must(cudaMemPrefetchAsync(block, bytes, cudaMemLocation{cudaMemLocationTypeHost, 0}, 0,
                              nullptr));
#endif
    must(cudaDeviceSynchronize());
  }
  must(cudaFree(block));
  return 0;
}
