// A driver pool with its default threshold: each synchronise gives its memory back, each request
// fetches it again. Near miss: the pool keeps it.
#include "program.h"

PROGRAM {
  cudaStream_t stream = new_stream();
#if defined(CLEAN)
  keep_pool();
#endif
  for (int request = 0; request < 40; ++request) {
    float* block = nullptr;
    must(cudaMallocAsync(reinterpret_cast<void**>(&block), 64 * MiB, stream));
    LAUNCH(fill, stream, block, count_of(64 * MiB), 1.0f);
    must(cudaFreeAsync(block, stream));
    must(cudaStreamSynchronize(stream));
  }
  must(cudaStreamDestroy(stream));
  return 0;
}
