/* The driver's interface under `millpond run`: by symbol, and by cuGetProcAddress. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int cuMemAlloc_v2(uint64_t*, size_t);
int cuMemFree_v2(uint64_t);
int cuMemHostAlloc(void**, size_t, unsigned);
int cuMemFreeHost(void*);
int cuMemGetAddressRange_v2(uint64_t*, size_t*, uint64_t);
int cuGetProcAddress_v2(const char*, void**, int, uint64_t, int*);
unsigned long fake_driver_calls(void);
void fake_use_other_context(int);

static void say(int answer) {
  printf("%d\n", answer);
}

int main(void) {
  uint64_t at = 0, start = 0;
  size_t bytes = 0;
  void* ptr = NULL;
  int (*alloc)(uint64_t*, size_t) = NULL;
  say(cuMemAlloc_v2(&at, 10000));
  memset((void*)(uintptr_t)at, 1, 10000);
  say(cuMemGetAddressRange_v2(&start, &bytes, at + 5000));
  printf("# the block itself: %d\n", start == at && bytes >= 10000);
  say(cuMemFree_v2(at));
  say(cuMemHostAlloc(&ptr, 100, 0));
  say(cuMemFreeHost(ptr));
  say(cuGetProcAddress_v2("cuMemAlloc", (void**)&alloc, 12000, 0, NULL));
  say(alloc(&at, 100));
  say(cuMemFree_v2(at));
  const unsigned long before = fake_driver_calls();
  fake_use_other_context(1); /* memory of a context of the program's own is CUDA's to give */
  say(cuMemAlloc_v2(&at, 100));
  say(cuMemFree_v2(at));
  printf("# calls of the driver's own: %lu, then %lu\n", before, fake_driver_calls() - before);
  return 0;
}
