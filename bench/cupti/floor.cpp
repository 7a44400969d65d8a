// A recorder that records nothing: it subscribes to CUPTI's callbacks of the calls that
// bench/record_cost.cu makes, and each callback only counts. What a program slows down under it is
// CUPTI's own part of what a recorded call costs.
//   CUDA_INJECTION64_PATH=libcupti_floor.so ./record_cost
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>

namespace {

thread_local std::uint64_t callbacks = 0;

CUpti_SubscriberHandle handle = nullptr;
decltype(&cuptiSubscribe) subscribe = nullptr;
decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
decltype(&cuptiEnableCallback) enable = nullptr;

void CUPTIAPI count(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {
  ++callbacks;
}

void* open_cupti() {
  for (const char* folder : {"", "/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/"}) {
    for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) {
      char path[256];
      std::snprintf(path, sizeof path, "%s%s", folder, name);
      if (void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL)) return library;
    }
  }
  return nullptr;
}

// As the recorder's own: what bench/record_cost.cu pauses and takes up again.
void listen(std::uint32_t state) {
  if (handle == nullptr) return;
  for (const auto id :
       {CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync, CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync, CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz}) {
    enable(state, handle, CUPTI_CB_DOMAIN_DRIVER_API, id);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void millpond_record_pause() {
  listen(0);
}
extern "C" __attribute__((visibility("default"))) void millpond_record_resume() {
  listen(1);
}
// Without a subscriber at all, and with one that has asked for no callback: what a paused recording
// costs.
extern "C" __attribute__((visibility("default"))) void cupti_floor_detach() {
  if (handle != nullptr) unsubscribe(handle);
  handle = nullptr;
}
extern "C" __attribute__((visibility("default"))) void cupti_floor_attach() {
  if (handle == nullptr && subscribe(&handle, count, nullptr) != CUPTI_SUCCESS) handle = nullptr;
}

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  void* library = open_cupti();
  if (library == nullptr) {
    std::fputs("cupti_floor: libcupti was not found\n", stderr);
    return 0;
  }
  subscribe = reinterpret_cast<decltype(&cuptiSubscribe)>(dlsym(library, "cuptiSubscribe"));
  unsubscribe = reinterpret_cast<decltype(&cuptiUnsubscribe)>(dlsym(library, "cuptiUnsubscribe"));
  enable = reinterpret_cast<decltype(&cuptiEnableCallback)>(dlsym(library, "cuptiEnableCallback"));
  if (subscribe == nullptr || unsubscribe == nullptr || enable == nullptr ||
      subscribe(&handle, count, nullptr) != CUPTI_SUCCESS) {
    std::fputs("cupti_floor: CUPTI refused the subscription\n", stderr);
    handle = nullptr;
    return 0;
  }
  listen(1);
  return 1;
}
