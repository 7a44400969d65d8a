// CUDA's own allocators, and CUB's caching one.
#include <cuda_runtime.h>

#include <cub/util_allocator.cuh>

#include "bench/support/peer.h"

namespace {

struct async_pool {
  cudaMemPool_t pool = nullptr;
};

template <bool Keep>
void* create_async(const char** why) {
  auto* self = new async_pool;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = 0;
  if (cudaMemPoolCreate(&self->pool, &properties) != cudaSuccess) {
    *why = "cudaMemPoolCreate failed";
    delete self;
    return nullptr;
  }
  if (Keep) {
    uint64_t all = ~uint64_t{0};
    cudaMemPoolSetAttribute(self->pool, cudaMemPoolAttrReleaseThreshold, &all);
  }
  return self;
}
void destroy_async(void* self) {
  cudaDeviceSynchronize();
  cudaMemPoolDestroy(static_cast<async_pool*>(self)->pool);
  delete static_cast<async_pool*>(self);
}
void* allocate_async(void* self, uint64_t bytes, void* stream) {
  void* out = nullptr;
  return cudaMallocFromPoolAsync(&out, bytes, static_cast<async_pool*>(self)->pool,
                                 static_cast<cudaStream_t>(stream)) == cudaSuccess
             ? out
             : nullptr;
}
void deallocate_async(void*, void* ptr, uint64_t, void* stream) {
  cudaFreeAsync(ptr, static_cast<cudaStream_t>(stream));
}
uint64_t reserved_async(void* self) {
  uint64_t high = 0;
  cudaMemPoolGetAttribute(static_cast<async_pool*>(self)->pool, cudaMemPoolAttrReservedMemHigh,
                          &high);
  return high;
}

void* create_plain(const char**) {
  return new int(0);
}
void destroy_plain(void* self) {
  delete static_cast<int*>(self);
}
void* allocate_plain(void*, uint64_t bytes, void*) {
  void* out = nullptr;
  return cudaMalloc(&out, bytes) == cudaSuccess ? out : nullptr;
}
void deallocate_plain(void*, void* ptr, uint64_t, void*) {
  cudaFree(ptr);
}
uint64_t reserved_plain(void*) {
  return 0;
}

void* create_cub(const char**) {
  // Bins of powers of two from 512 bytes to 1 GiB, and no limit on what it keeps.
  return new cub::CachingDeviceAllocator(2, 9, 30, cub::CachingDeviceAllocator::INVALID_SIZE, true);
}
void destroy_cub(void* self) {
  delete static_cast<cub::CachingDeviceAllocator*>(self);
}
void* allocate_cub(void* self, uint64_t bytes, void* stream) {
  void* out = nullptr;
  auto* cub_self = static_cast<cub::CachingDeviceAllocator*>(self);
  return cub_self->DeviceAllocate(&out, bytes, static_cast<cudaStream_t>(stream)) == cudaSuccess
             ? out
             : nullptr;
}
void deallocate_cub(void* self, void* ptr, uint64_t, void*) {
  static_cast<cub::CachingDeviceAllocator*>(self)->DeviceFree(ptr);
}

const millpond_peer peers[] = {
    {"cudaMallocAsync kept", create_async<true>, destroy_async, allocate_async, deallocate_async,
     reserved_async},
    {"CUB caching", create_cub, destroy_cub, allocate_cub, deallocate_cub, reserved_plain},
    {"cudaMalloc", create_plain, destroy_plain, allocate_plain, deallocate_plain, reserved_plain},
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const millpond_peer* millpond_peers(void) {
  return peers;
}
