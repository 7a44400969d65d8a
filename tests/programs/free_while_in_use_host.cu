// The host waits for the wrong stream before it frees. Near miss: it waits for the right one.
#include "program.h"

PROGRAM {
  cudaStream_t user = new_stream(), freer = new_stream();
  float *block = nullptr, *other = nullptr;
  must(cudaMallocAsync(reinterpret_cast<void**>(&block), 256 * KiB, user));
  must(cudaMallocAsync(reinterpret_cast<void**>(&other), 256 * KiB, freer));
  LAUNCH(linger, user, block, long_while);
  LAUNCH(fill, freer, other, count_of(256 * KiB), 1.0f);
#if defined(CLEAN)
  must(cudaStreamSynchronize(user));
#else
  must(cudaStreamSynchronize(freer));
#endif
  must(cudaFreeAsync(block, freer));
  must(cudaFreeAsync(other, freer));
  must(cudaDeviceSynchronize());
  must(cudaStreamDestroy(user));
  must(cudaStreamDestroy(freer));
  return 0;
}
