// Asynchronous copies of pageable memory, which block. Near miss: small ones are staged and do not;
// large ones come from pinned memory.
#include "program.h"

PROGRAM {
  cudaStream_t stream = new_stream();
  float* device = on_device(4 * MiB);
  std::vector<float> pageable(count_of(4 * MiB), 1.0f);
  float* pinned = nullptr;
  must(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 4 * MiB, cudaHostAllocDefault));
  for (int request = 0; request < 12; ++request) {
#if defined(CLEAN)
    must(cudaMemcpyAsync(device, pinned, 4 * MiB, cudaMemcpyHostToDevice, stream));
    LAUNCH(fill, stream, device, count_of(4 * MiB), 1.0f);
    must(cudaMemcpyAsync(device, pageable.data(), 32 * KiB, cudaMemcpyHostToDevice, stream));
#else
    must(cudaMemcpyAsync(device, pageable.data(), 4 * MiB, cudaMemcpyHostToDevice, stream));
#endif
    LAUNCH(fill, stream, device, count_of(4 * MiB), 1.0f);
  }
  must(cudaStreamSynchronize(stream));
  must(cudaFreeHost(pinned));
  must(cudaFree(device));
  must(cudaStreamDestroy(stream));
  return 0;
}
