// 320 MiB of pinned memory for copies of 1 MiB, each waited for. Near miss: a ring of two buffers.
#include "program.h"

PROGRAM {
  cudaStream_t stream = new_stream();
  float* device = on_device(1 * MiB);
#if defined(CLEAN)
  const int buffers = 2;
#else
  const int buffers = 320;
#endif
  char* pinned = nullptr;
  must(cudaHostAlloc(reinterpret_cast<void**>(&pinned), buffers * MiB, cudaHostAllocDefault));
  for (int chunk = 0; chunk < 40; ++chunk) {
    char* from = pinned + static_cast<std::size_t>(chunk % buffers) * MiB;
    must(cudaMemcpyAsync(device, from, 1 * MiB, cudaMemcpyHostToDevice, stream));
    LAUNCH(fill, stream, device, count_of(1 * MiB), 1.0f);
    must(cudaStreamSynchronize(stream));
  }
  must(cudaFreeHost(pinned));
  must(cudaFree(device));
  must(cudaStreamDestroy(stream));
  return 0;
}
