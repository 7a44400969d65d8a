// PyTorch's caching allocator through its C++ library, as the process's PYTORCH_CUDA_ALLOC_CONF
// sets it (expandable segments by that variable: one setting a process). Compiled where PyTorch is,
// by scripts/card_peers.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>

#include "bench/support/peer.h"

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

void* create(const char**) {
  // The name alone says how the variable is set.
  static bool ready = [] {
    allocator::init(c10::cuda::device_count());
    return true;
  }();
  allocator::emptyCache();
  allocator::resetPeakStats(0);
  return &ready;
}
void destroy(void*) {
  cudaDeviceSynchronize();
  allocator::emptyCache();
}
void* allocate(void*, uint64_t bytes, void* stream) {
  try {
    return allocator::raw_alloc_with_stream(bytes, static_cast<cudaStream_t>(stream));
  } catch (const std::exception&) {
    return nullptr;
  }
}
void deallocate(void*, void* ptr, uint64_t, void*) {
  allocator::raw_delete(ptr);
}
uint64_t reserved(void*) {
  return static_cast<uint64_t>(allocator::getDeviceStats(0).reserved_bytes[0].peak);
}
const char* name() {
  const char* setting = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  return setting != nullptr && std::strstr(setting, "expandable_segments:True") != nullptr
             ? "PyTorch expandable"
             : "PyTorch default";
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const millpond_peer* millpond_peers(void) {
  static const millpond_peer peers[] = {
      {name(), create, destroy, allocate, deallocate, reserved},
      {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  return peers;
}
