// A large block that one phase in the middle does not use. Near miss: it is given back for that
// phase.
#include "program.h"

PROGRAM {
  float* large = on_device(96 * MiB);
  phase(large, 96 * MiB, 4, nullptr);
  must(cudaDeviceSynchronize());
#if defined(CLEAN)
  must(cudaFree(large));
#endif
  float* scratch = on_device(64 * MiB);
  phase(scratch, 64 * MiB, 24, nullptr);
  must(cudaDeviceSynchronize());
  must(cudaFree(scratch));
#if defined(CLEAN)
  large = on_device(96 * MiB);
#endif
  phase(large, 96 * MiB, 4, nullptr);
  must(cudaDeviceSynchronize());
  must(cudaFree(large));
  return 0;
}
