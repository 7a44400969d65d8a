// Two blocks of one size, the second used only after the first is done with. Near miss: both are
// used together at the end.
#include "program.h"

PROGRAM {
  float* first = on_device(64 * MiB);
  float* second = on_device(64 * MiB);
  phase(first, 64 * MiB, 4, nullptr);
  phase(second, 64 * MiB, 4, nullptr);
#if defined(CLEAN)
  LAUNCH(add, nullptr, second, first, count_of(64 * MiB));
#endif
  must(cudaDeviceSynchronize());
  must(cudaFree(first));
  must(cudaFree(second));
  return 0;
}
