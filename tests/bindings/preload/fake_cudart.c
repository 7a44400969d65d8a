/* A test double of the shared CUDA runtime: memory from malloc, one device, and a count of the
 * calls that reach it. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

static _Thread_local int last_error = 0;
static _Atomic unsigned long calls = 0;
static void* _Atomic last_freed = NULL;
static void* owned[1024];
static char of_host[1024];
static pthread_mutex_t owned_mutex = PTHREAD_MUTEX_INITIALIZER;
static const size_t most = (size_t)4 << 30;

SHOWN unsigned long fake_runtime_calls(void) {
  return calls;
}
/* What cudaFree or its kin was last asked to free. */
SHOWN void* fake_runtime_last_freed(void) {
  return last_freed;
}

static int fail(int code) {
  last_error = code;
  return code;
}
static int take(void** out, size_t bytes, int host) {
  ++calls;
  if (out == NULL) return fail(1);
  if (bytes == 0) {
    *out = NULL;
    return 0;
  }
  if (bytes > most) return fail(2);
  *out = NULL;
  pthread_mutex_lock(&owned_mutex);
  for (int n = 0; n < 1024 && *out == NULL; ++n) {
    if (owned[n] != NULL) continue;
    *out = owned[n] = malloc(bytes);
    of_host[n] = (char)host;
  }
  pthread_mutex_unlock(&owned_mutex);
  return *out == NULL ? fail(2) : 0;
}
static int give(void* ptr, int host) {
  ++calls;
  last_freed = ptr;
  if (ptr == NULL) return 0;
  int found = 0;
  pthread_mutex_lock(&owned_mutex);
  for (int n = 0; n < 1024 && !found; ++n) {
    if (owned[n] != ptr || of_host[n] != host) continue;
    free(ptr);
    owned[n] = NULL;
    found = 1;
  }
  pthread_mutex_unlock(&owned_mutex);
  return found ? 0 : fail(1);
}

SHOWN int cudaGetDevice(int* out) {
  *out = 0;
  return 0;
}
SHOWN int cudaGetDeviceCount(int* out) {
  *out = 1;
  return 0;
}
SHOWN int cudaGetLastError(void) {
  const int e = last_error;
  last_error = 0;
  return e;
}
SHOWN int cudaDeviceSynchronize(void) {
  return 0;
}
SHOWN int cudaDeviceReset(void) {
  ++calls;
  return 0;
}
SHOWN int cudaMalloc(void** out, size_t bytes) {
  return take(out, bytes, 0);
}
SHOWN int cudaFree(void* ptr) {
  return give(ptr, 0);
}
SHOWN int cudaMallocAsync(void** out, size_t bytes, void* stream) {
  (void)stream;
  return take(out, bytes, 0);
}
SHOWN int cudaFreeAsync(void* ptr, void* stream) {
  (void)stream;
  return give(ptr, 0);
}
SHOWN int cudaHostAlloc(void** out, size_t bytes, unsigned flags) {
  (void)flags;
  return take(out, bytes, 1);
}
SHOWN int cudaMallocHost(void** out, size_t bytes) {
  return take(out, bytes, 1);
}
SHOWN int cudaFreeHost(void* ptr) {
  return give(ptr, 1);
}
SHOWN int cudaMallocManaged(void** out, size_t bytes, unsigned flags) {
  (void)flags;
  return take(out, bytes, 0);
}
SHOWN int cudaStreamAttachMemAsync(void* s, void* p, size_t b, unsigned f) {
  (void)s;
  (void)p;
  (void)b;
  (void)f;
  ++calls;
  return 0;
}
SHOWN int cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = (size_t)1 << 30;
  *total = (size_t)2 << 30;
  return 0;
}
struct attributes {
  int type, device;
  void *device_pointer, *host_pointer;
};
SHOWN int cudaPointerGetAttributes(struct attributes* out, const void* ptr) {
  memset(out, 0, sizeof *out);
  out->type = 2;
  out->device_pointer = (void*)(uintptr_t)ptr;
  return 0;
}
SHOWN int cudaHostGetDevicePointer(void** out, void* ptr, unsigned flags) {
  (void)flags;
  ++calls;
  *out = ptr;
  return 0;
}
SHOWN int cudaHostGetFlags(unsigned* out, void* ptr) {
  (void)ptr;
  ++calls;
  *out = 2;
  return 0;
}
SHOWN int cudaIpcGetMemHandle(void* handle, void* ptr) {
  ++calls;
  memset(handle, 0, 64);
  memcpy(handle, &ptr, sizeof ptr);
  return 0;
}
