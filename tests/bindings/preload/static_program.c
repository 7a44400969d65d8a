/* Has in it what every program with a static CUDA runtime has. */
#include <stdio.h>
int main(void) {
  puts("cudaErrorCudartUnloading");
  return 0;
}
