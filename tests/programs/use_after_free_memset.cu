// A freed block of the pool is cleared. Near miss: cleared, then freed.
#include "program.h"

PROGRAM {
  cudaStream_t stream = new_stream();
  float* block = nullptr;
  must(cudaMallocAsync(reinterpret_cast<void**>(&block), 256 * KiB, stream));
  LAUNCH(fill, stream, block, count_of(256 * KiB), 1.0f);
#if defined(CLEAN)
  must(cudaMemsetAsync(block, 0, 256 * KiB, stream));
  must(cudaFreeAsync(block, stream));
#else
  must(cudaFreeAsync(block, stream));
  may(cudaMemsetAsync(block, 0, 256 * KiB, stream));
#endif
  must(cudaStreamSynchronize(stream));
  must(cudaStreamDestroy(stream));
  return 0;
}
