// A block cleared and then copied over whole. Near miss: a kernel is given it between.
#include "program.h"

PROGRAM {
  const std::size_t bytes = 16 * MiB;
  float* pinned = nullptr;
  must(cudaHostAlloc(reinterpret_cast<void**>(&pinned), bytes, cudaHostAllocDefault));
  float* block = on_device(bytes);
  must(cudaMemsetAsync(block, 0, bytes, nullptr));
#if defined(CLEAN)
  LAUNCH(fill, nullptr, block, count_of(bytes), 1.0f);
#endif
  must(cudaMemcpyAsync(block, pinned, bytes, cudaMemcpyHostToDevice, nullptr));
  LAUNCH(fill, nullptr, block, count_of(bytes), 2.0f);
  must(cudaDeviceSynchronize());
  must(cudaFree(block));
  must(cudaFreeHost(pinned));
  return 0;
}
