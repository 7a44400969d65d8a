// Allocated in the order of one stream and used on another that does not wait. Near miss: it waits.
#include "program.h"

PROGRAM {
  cudaStream_t maker = new_stream(), user = new_stream();
  cudaEvent_t ready = new_event();
  float* busy = on_device(256 * KiB);
  LAUNCH(linger, maker, busy, long_while);
  float* block = nullptr;
  must(cudaMallocAsync(reinterpret_cast<void**>(&block), 256 * KiB, maker));
#if defined(CLEAN)
  must(cudaEventRecord(ready, maker));
  must(cudaStreamWaitEvent(user, ready, 0));
#endif
  LAUNCH(fill, user, block, count_of(256 * KiB), 1.0f);
  must(cudaDeviceSynchronize());
  must(cudaFreeAsync(block, maker));
  must(cudaDeviceSynchronize());
  must(cudaFree(busy));
  must(cudaEventDestroy(ready));
  must(cudaStreamDestroy(maker));
  must(cudaStreamDestroy(user));
  return 0;
}
