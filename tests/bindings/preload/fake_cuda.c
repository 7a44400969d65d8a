/* A test double of libcuda.so.1 as far as a program of the driver's interface, under `millpond
 * run`, touches it. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))
static _Atomic unsigned long calls = 0;
static int primary, other;
static void* current = &primary;

SHOWN unsigned long fake_driver_calls(void) {
  return calls;
}
SHOWN void fake_use_other_context(int use) {
  current = use ? (void*)&other : (void*)&primary;
}

SHOWN int cuCtxGetCurrent(void** out) {
  *out = current;
  return 0;
}
SHOWN int cuCtxGetDevice(int* out) {
  *out = 0;
  return 0;
}
SHOWN int cuDeviceGetCount(int* out) {
  *out = 1;
  return 0;
}
SHOWN int cuDevicePrimaryCtxRetain(void** out, int device) {
  (void)device;
  *out = &primary;
  return 0;
}
SHOWN int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  return 0;
}
SHOWN int cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  ++calls;
  *out = (uint64_t)(uintptr_t)malloc(bytes);
  return 0;
}
SHOWN int cuMemFree_v2(uint64_t at) {
  ++calls;
  free((void*)(uintptr_t)at);
  return 0;
}
SHOWN int cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  (void)flags;
  ++calls;
  *out = malloc(bytes);
  return 0;
}
SHOWN int cuMemFreeHost(void* ptr) {
  ++calls;
  free(ptr);
  return 0;
}
SHOWN int cuMemGetAddressRange_v2(uint64_t* start, size_t* bytes, uint64_t at) {
  ++calls;
  *start = at;
  *bytes = 1;
  return 0;
}
SHOWN int cuGetProcAddress_v2(const char* symbol, void** out, int version, uint64_t flags,
                              int* why) {
  (void)version;
  (void)flags;
  (void)why;
  *out = strcmp(symbol, "cuMemAlloc") == 0 ? (void*)cuMemAlloc_v2 : NULL;
  return *out == NULL ? 500 : 0;
}
