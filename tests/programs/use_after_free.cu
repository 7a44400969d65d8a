// A kernel is given a block of the pool that was freed on the same stream before. Near miss: it is
// given the new block, which the pool most likely put at the same address.
#include "program.h"

PROGRAM {
  cudaStream_t stream = new_stream();
  float* block = nullptr;
  must(cudaMallocAsync(reinterpret_cast<void**>(&block), 256 * KiB, stream));
  LAUNCH(fill, stream, block, count_of(256 * KiB), 1.0f);
  must(cudaFreeAsync(block, stream));
#if defined(CLEAN)
  must(cudaMallocAsync(reinterpret_cast<void**>(&block), 256 * KiB, stream));
#endif
  LAUNCH(fill, stream, block, count_of(256 * KiB), 2.0f);
#if defined(CLEAN)
  must(cudaFreeAsync(block, stream));
#endif
  must(cudaStreamSynchronize(stream));
  must(cudaStreamDestroy(stream));
  return 0;
}
