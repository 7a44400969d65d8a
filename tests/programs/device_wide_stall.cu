// Scratch memory of cudaMalloc for each request, given back while another stream works: each
// cudaFree waits for all of it. Near miss: allocated once.
#include "program.h"

PROGRAM {
  cudaStream_t stream = new_stream(), other = new_stream();
  float* state = on_device(256 * KiB);
#if defined(CLEAN)
  float* scratch = on_device(512 * KiB);
#endif
  for (int request = 0; request < 40; ++request) {
    LAUNCH(linger, other, state, short_while);
#if !defined(CLEAN)
    float* scratch = on_device(512 * KiB);
#endif
    LAUNCH(fill, stream, scratch, count_of(512 * KiB), 1.0f);
#if !defined(CLEAN)
    must(cudaFree(scratch));
#endif
  }
  must(cudaDeviceSynchronize());
#if defined(CLEAN)
  must(cudaFree(scratch));
#endif
  must(cudaFree(state));
  must(cudaStreamDestroy(stream));
  must(cudaStreamDestroy(other));
  return 0;
}
