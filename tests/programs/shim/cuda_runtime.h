// As much of the CUDA runtime as the programs of this folder use, over the simulated GPU. Each call
// is made through the recorder's own translation of CUPTI's callbacks, with the parameters that the
// driver would have given them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

// In a namespace of its own, beside the real names where CUPTI's headers bring these.
namespace shim {

using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
using cudaStream_t = struct shim_stream*;
using cudaEvent_t = struct shim_event*;
using cudaMemPool_t = struct shim_pool*;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1, cudaMemLocationTypeHost = 2 };
struct cudaMemLocation {
  cudaMemLocationType type;
  int id;
};
enum cudaMemoryAdvise {
  cudaMemAdviseSetReadMostly = 1,
  cudaMemAdviseUnsetReadMostly,
  cudaMemAdviseSetPreferredLocation,
  cudaMemAdviseUnsetPreferredLocation
};
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };
#undef cudaHostAllocDefault
#undef cudaHostRegisterDefault
#undef cudaMemAttachGlobal
#undef cudaStreamNonBlocking
#undef cudaEventDisableTiming
constexpr unsigned cudaHostAllocDefault = 0, cudaHostRegisterDefault = 0, cudaMemAttachGlobal = 1,
                   cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;

cudaError_t cudaMalloc(void** made, std::size_t bytes);
cudaError_t cudaFree(void* at);
cudaError_t cudaHostAlloc(void** made, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* at);
cudaError_t cudaHostRegister(void* at, std::size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* at);
cudaError_t cudaMallocManaged(void** made, std::size_t bytes, unsigned flags);
cudaError_t cudaMallocAsync(void** made, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* at, cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemset(void* at, int value, std::size_t bytes);
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaMemPrefetchAsync(const void* at, std::size_t bytes, cudaMemLocation to,
                                 unsigned flags, cudaStream_t stream);
cudaError_t cudaMemAdvise(const void* at, std::size_t bytes, cudaMemoryAdvise advice,
                          cudaMemLocation place);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceReset();
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t answer);
template <class Type>
cudaError_t cudaMalloc(Type** made, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(made), bytes);
}

// Kernels are compiled and never run: their arguments are what matters.
#undef __global__
#define __global__
struct shim_index {
  int x = 0, y = 0, z = 0;
};
inline const shim_index threadIdx, blockIdx, blockDim{1, 1, 1}, gridDim{1, 1, 1};
inline long long clock64() {
  return 0;
}

void shim_launch_with(const void* kernel, const char* name, cudaStream_t stream, void** arguments,
                      const std::size_t* sizes, std::size_t count);
template <class... Parameters, class... Arguments>
void shim_launch(void (*kernel)(Parameters...), const char* name, cudaStream_t stream,
                 Arguments... arguments) {
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  const std::size_t sizes[] = {sizeof(Parameters)...};
  std::apply(
      [&](auto&... each) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&each))...};
        shim_launch_with(reinterpret_cast<const void*>(kernel), name, stream, pointers, sizes,
                         sizeof...(each));
      },
      values);
}
// The CPU touches every page of managed memory.
void shim_cpu_touch(void* at, std::size_t bytes);

struct shim_registration {
  shim_registration(const char* file, const char* variant, int (*body)());
};
}  // namespace shim

#if defined(CLEAN)
#define MILLPOND_SHIM_VARIANT "_clean"
#else
#define MILLPOND_SHIM_VARIANT ""
#endif
#define MILLPOND_SHIM_PROGRAM                                                             \
  static int shim_body();                                                                 \
  namespace {                                                                             \
  const shim::shim_registration registration(__FILE__, MILLPOND_SHIM_VARIANT, shim_body); \
  }                                                                                       \
  static int shim_body()
