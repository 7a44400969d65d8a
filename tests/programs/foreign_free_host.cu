// Memory of malloc given to cudaFreeHost. Near miss: the same memory registered, unregistered, and
// freed by free.
#include "program.h"

PROGRAM {
  float* block = on_device(256 * KiB);
  void* host = std::malloc(256 * KiB);
#if defined(CLEAN)
  must(cudaHostRegister(host, 256 * KiB, cudaHostRegisterDefault));
  must(cudaMemcpy(block, host, 256 * KiB, cudaMemcpyHostToDevice));
  must(cudaHostUnregister(host));
#else
  must(cudaMemcpy(block, host, 256 * KiB, cudaMemcpyHostToDevice));
  may(cudaFreeHost(host));
#endif
  std::free(host);
  must(cudaFree(block));
  return 0;
}
