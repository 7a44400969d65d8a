/* What programs lean on when they use CUDA's memory, as lines of text: the same with and without
 * `millpond run`. Lines that begin with # may differ. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int cudaMalloc(void**, size_t);
int cudaFree(void*);
int cudaMallocAsync(void**, size_t, void*);
int cudaFreeAsync(void*, void*);
int cudaHostAlloc(void**, size_t, unsigned);
int cudaMallocHost(void**, size_t);
int cudaFreeHost(void*);
int cudaMallocManaged(void**, size_t, unsigned);
int cudaStreamAttachMemAsync(void*, void*, size_t, unsigned);
int cudaGetLastError(void);
int cudaMemGetInfo(size_t*, size_t*);
struct attributes {
  int type, device;
  void *device_pointer, *host_pointer;
  long reserved[8];
};
int cudaPointerGetAttributes(struct attributes*, const void*);
int cudaHostGetDevicePointer(void**, void*, unsigned);
int cudaHostGetFlags(unsigned*, void*);
int cudaIpcGetMemHandle(void*, void*);
int cudaDeviceReset(void);
unsigned long fake_runtime_calls(void);
void* fake_runtime_last_freed(void);

/* A call a statement: the arguments of printf have no order. */
static void say(const char* what, int answer) {
  printf("%s: %d\n", what, answer);
}

static void* churn(void* unused) {
  for (int round = 0; round < 200; ++round) {
    void* blocks[8];
    for (int n = 0; n < 8; ++n) {
      if (cudaMalloc(&blocks[n], (size_t)(n + 1) * 1000) != 0) return (void*)1;
      memset(blocks[n], n, (size_t)(n + 1) * 1000);
    }
    for (int n = 0; n < 8; ++n) {
      for (int at = 0; at < (n + 1) * 1000; at += 97) {
        if (((char*)blocks[n])[at] != (char)n) return (void*)2;
      }
      if (cudaFree(blocks[n]) != 0) return (void*)3;
    }
  }
  return unused;
}

int main(int count, char** arguments) {
  void *p = (void*)1, *q = NULL, *d = NULL;
  int mine = 0;
  say("nothing", cudaMalloc(&p, 0));
  say("is null", p == NULL);
  say("free nothing", cudaFree(NULL));
  say("no place", cudaMalloc(NULL, 16));
  say("last error", cudaGetLastError());
  say("then", cudaGetLastError());
  say("a MiB", cudaMalloc(&p, 1 << 20));
  say("is there", p != NULL);
  memset(p, 1, 1 << 20);
  say("free", cudaFree(p));
  say("twice", cudaFree(p));
  printf("# the runtime saw the address: %d\n", fake_runtime_last_freed() == p);
  say("twice in order", cudaFreeAsync(p, NULL));
  printf("# the runtime saw it in order: %d\n", fake_runtime_last_freed() == p);
  say("not ours", cudaFree(&mine));
  say("last error", cudaGetLastError());
  say("too much", cudaMalloc(&p, (size_t)1 << 50));
  say("last error", cudaGetLastError());

  say("in order", cudaMallocAsync(&p, 5000, NULL));
  memset(p, 2, 5000);
  say("back in order", cudaFreeAsync(p, NULL));
  say("in order", cudaMallocAsync(&p, 5000, NULL));
  say("freed at once", cudaFree(p));
  say("at once", cudaMalloc(&p, 5000));
  say("freed in order", cudaFreeAsync(p, NULL));

  say("pinned", cudaHostAlloc(&p, 10000, 0));
  memset(p, 3, 10000);
  unsigned flags = 0;
  say("as the device sees it", cudaHostGetDevicePointer(&d, p, 0));
  say("the same", d == p);
  say("flags", cudaHostGetFlags(&flags, p));
  say("mapped", (int)flags);
  struct attributes facts;
  say("attributes", cudaPointerGetAttributes(&facts, p));
  printf("# type %d\n", facts.type);
  say("by the other kind's call", cudaFree(p));
  say("last error", cudaGetLastError());
  say("free pinned", cudaFreeHost(p));
  say("a block", cudaMalloc(&p, 1000));
  say("by the other kind's call", cudaFreeHost(p));
  say("last error", cudaGetLastError());
  say("by its own", cudaFree(p));
  say("pinned again", cudaMallocHost(&p, 100));
  say("back", cudaFreeHost(p));
  say("write-combined", cudaHostAlloc(&p, 100, 4));
  say("free it", cudaFreeHost(p));

  say("managed", cudaMallocManaged(&p, 100000, 1));
  memset(p, 4, 100000);
  say("attach", cudaStreamAttachMemAsync(NULL, p, 0, 1));
  say("free managed", cudaFree(p));

  size_t free_bytes = 0, total = 0;
  say("how much", cudaMemGetInfo(&free_bytes, &total));
  printf("# free %zu of %zu\n", free_bytes, total);

  pthread_t threads[4];
  for (int n = 0; n < 4; ++n) pthread_create(&threads[n], NULL, churn, NULL);
  for (int n = 0; n < 4; ++n) {
    void* answer = NULL;
    pthread_join(threads[n], &answer);
    printf("thread: %ld\n", (long)answer);
  }

  cudaMalloc(&q, 3 << 20);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) { /* in a child CUDA does not work; nothing may crash or hang */
    cudaFree(q);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  say("child", status);
  say("after the child", cudaFree(q));

  if (count > 1 && strcmp(arguments[1], "ipc") == 0) {
    char handle[64];
    cudaMalloc(&p, 1000);
    printf("# ipc: %d\n", cudaIpcGetMemHandle(handle, p));
    cudaFree(p);
  }
  cudaMalloc(&q, 1 << 20);
  say("reset", cudaDeviceReset());
  say("after the reset", cudaMalloc(&p, 1 << 20));
  printf("# calls of CUDA's own: %lu\n", fake_runtime_calls());
  return 0;
}
