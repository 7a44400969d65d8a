// Each request leaves a block behind. Near miss: a cache of eight, whose oldest goes when a new one
// comes.
#include "program.h"

PROGRAM {
  cudaStream_t stream = new_stream();
  keep_pool();
  std::deque<float*> kept;
  for (int request = 0; request < 64; ++request) {
    float* block = nullptr;
    must(cudaMallocAsync(reinterpret_cast<void**>(&block), 256 * KiB, stream));
    LAUNCH(fill, stream, block, count_of(256 * KiB), 1.0f);
    kept.push_back(block);
#if defined(CLEAN)
    if (kept.size() > 8) {
      must(cudaFreeAsync(kept.front(), stream));
      kept.pop_front();
    }
#endif
    must(cudaStreamSynchronize(stream));
  }
#if defined(CLEAN)
  for (float* each : kept) must(cudaFreeAsync(each, stream));
  must(cudaStreamSynchronize(stream));
#endif
  must(cudaStreamDestroy(stream));
  return 0;
}
