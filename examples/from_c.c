/* The pool from C: an allocation, its statistics, and what a mistake is answered with.
 *
 *     from_c          the first CUDA device, or the simulated GPU where there is none
 *     from_c sim      the simulated GPU
 */
#include <millpond.h>

#include <stdio.h>
#include <string.h>

#define MUST(call)                                                       \
  do {                                                                   \
    if ((call) != MILLPOND_OK) {                                         \
      fprintf(stderr, "from_c: %s: %s\n", #call, millpond_last_error()); \
      return 4;                                                          \
    }                                                                    \
  } while (0)

int main(int count, char** arguments) {
  millpond_gpu* gpu = NULL;
  millpond_memory* pool = NULL;
  millpond_stream stream = NULL;
  void* block = NULL;
  MUST(millpond_compatible(MILLPOND_ABI));
  if (count > 1 && strcmp(arguments[1], "sim") == 0) {
    MUST(millpond_gpu_simulate(NULL, 0, &gpu));
  } else if (millpond_gpu_open(0, &gpu) != MILLPOND_OK) {
    printf("No card is used: %s\n", millpond_last_error());
    MUST(millpond_gpu_simulate(NULL, 0, &gpu));
  }
  MUST(millpond_pool_create(gpu, NULL, &pool));
  MUST(millpond_stream_create(gpu, &stream));

  MUST(millpond_allocate(pool, 1000000, 0, stream, &block));
  millpond_statistics now = {0};
  now.struct_bytes = sizeof now;
  MUST(millpond_get_statistics(pool, &now));
  printf("%s: %llu bytes live, %llu reserved\n", millpond_gpu_name(gpu),
         (unsigned long long)now.live_bytes, (unsigned long long)now.reserved_bytes);
  MUST(millpond_deallocate(pool, block, 1000000, stream));
  if (millpond_deallocate(pool, block, 1000000, stream) == MILLPOND_DOUBLE_FREE)
    printf("freed twice: %s\n", millpond_last_error());

  millpond_memory_destroy(pool);
  MUST(millpond_stream_destroy(gpu, stream));
  millpond_gpu_close(gpu);
  return 0;
}
