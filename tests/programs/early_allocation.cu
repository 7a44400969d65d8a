// A large block allocated before a phase that does not use it. Near miss: allocated after that
// phase.
#include "program.h"

PROGRAM {
#if !defined(CLEAN)
  float* large = on_device(96 * MiB);
#endif
  float* scratch = on_device(64 * MiB);
  phase(scratch, 64 * MiB, 24, nullptr);
  must(cudaDeviceSynchronize());
  must(cudaFree(scratch));
#if defined(CLEAN)
  float* large = on_device(96 * MiB);
#endif
  phase(large, 96 * MiB, 4, nullptr);
  must(cudaDeviceSynchronize());
  must(cudaFree(large));
  return 0;
}
