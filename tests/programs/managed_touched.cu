// The CPU writes managed memory while a kernel that was given it runs. Near miss: it waits first.
#include <unistd.h>

#include "program.h"

PROGRAM {
  float* block = nullptr;
  must(cudaMallocManaged(reinterpret_cast<void**>(&block), 1 * MiB, cudaMemAttachGlobal));
  CPU_WRITE(block, 1 * MiB, 1);
  LAUNCH(fill, nullptr, block, count_of(1 * MiB), 1.0f);
  LAUNCH(linger, nullptr, block, 20 * long_while);
  usleep(30'000);  // the kernels have begun, and their pages are on the device
#if defined(CLEAN)
  must(cudaDeviceSynchronize());
#endif
  CPU_WRITE(block, 1 * MiB, 2);
  must(cudaDeviceSynchronize());
  must(cudaFree(block));
  return 0;
}
