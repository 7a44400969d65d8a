// For a program in Python: one allocation through the fake CUPTI, after the recorder was loaded as
// the driver would.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

extern "C" void fake_cupti_call(CUpti_CallbackDomain, CUpti_CallbackId, const char*, const char*,
                                void*, void (*)(void*), void*, int);

extern "C" __attribute__((visibility("default"))) void recorded_allocate(unsigned long long bytes) {
  static CUdeviceptr next = 0x7e00'0000'0000;
  static void* library = nullptr;
  if (const char* path = std::getenv("CUDA_INJECTION64_PATH");
      path != nullptr && library == nullptr) {
    library = dlopen(path, RTLD_NOW);
    if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror());
    if (library != nullptr) reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"))();
  }
  CUdeviceptr made = next;
  next += (bytes + 511) / 512 * 512;
  cuMemAlloc_v2_params with{&made, static_cast<size_t>(bytes)};
  fake_cupti_call(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2,
                  "cuMemAlloc_v2", nullptr, &with, nullptr, nullptr, 0);
}
