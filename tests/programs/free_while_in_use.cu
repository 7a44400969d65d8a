// Freed on one stream while a kernel on another one runs on it. Near miss: the freeing stream waits
// for the kernel.
#include "program.h"

PROGRAM {
  cudaStream_t user = new_stream(), freer = new_stream();
  cudaEvent_t done = new_event();
  float* block = nullptr;
  must(cudaMallocAsync(reinterpret_cast<void**>(&block), 256 * KiB, user));
  LAUNCH(linger, user, block, long_while);
#if defined(CLEAN)
  must(cudaEventRecord(done, user));
  must(cudaStreamWaitEvent(freer, done, 0));
#endif
  must(cudaFreeAsync(block, freer));
  must(cudaDeviceSynchronize());
  must(cudaEventDestroy(done));
  must(cudaStreamDestroy(user));
  must(cudaStreamDestroy(freer));
  return 0;
}
