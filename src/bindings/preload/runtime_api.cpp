// The functions of the CUDA runtime that a program's calls reach instead of its own. Each serves
// where it can and otherwise makes the call that the program made, so that errors, and what
// cudaGetLastError says of them, are CUDA's own.
#include "bindings/preload/process.hpp"

using namespace millpond;
using namespace millpond::preload;

namespace {

// cudaPointerAttributes; later releases of CUDA have more behind it, which we leave as CUDA filled
// it.
struct pointer_attributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
};
constexpr int type_host = 1;
constexpr unsigned host_write_combined = 4;
constexpr unsigned host_mapped = 2;
constexpr unsigned attach_global = 1;

real_function<status(void**, std::size_t)> real_malloc(origin::runtime, "cudaMalloc");
real_function<status(void*)> real_free(origin::runtime, "cudaFree");
real_function<status(void**, std::size_t, stream_handle)> real_malloc_async(origin::runtime,
                                                                            "cudaMallocAsync");
real_function<status(void**, std::size_t, stream_handle)> real_malloc_async_ptsz(
    origin::runtime, "cudaMallocAsync_ptsz");
real_function<status(void*, stream_handle)> real_free_async(origin::runtime, "cudaFreeAsync");
real_function<status(void*, stream_handle)> real_free_async_ptsz(origin::runtime,
                                                                 "cudaFreeAsync_ptsz");
real_function<status(void**, std::size_t, unsigned)> real_host_alloc(origin::runtime,
                                                                     "cudaHostAlloc");
real_function<status(void**, std::size_t)> real_malloc_host(origin::runtime, "cudaMallocHost");
real_function<status(void*)> real_free_host(origin::runtime, "cudaFreeHost");
real_function<status(void**, std::size_t, unsigned)> real_malloc_managed(origin::runtime,
                                                                         "cudaMallocManaged");
real_function<status(std::size_t*, std::size_t*)> real_memory_info(origin::runtime,
                                                                   "cudaMemGetInfo");
real_function<status(pointer_attributes*, const void*)> real_attributes(origin::runtime,
                                                                        "cudaPointerGetAttributes");
real_function<status(void**, void*, unsigned)> real_host_device_pointer(origin::runtime,
                                                                        "cudaHostGetDevicePointer");
real_function<status(unsigned*, void*)> real_host_flags(origin::runtime, "cudaHostGetFlags");
real_function<status(void*, void*)> real_ipc_handle(origin::runtime, "cudaIpcGetMemHandle");
real_function<status()> real_device_reset(origin::runtime, "cudaDeviceReset");
real_function<status(stream_handle, void*, std::size_t, unsigned)> real_attach(
    origin::runtime, "cudaStreamAttachMemAsync");

// The per-thread default stream is handle 2 where the program was compiled for it.

template <class Real>
status freed(taken answer, void* ptr, Real&& real) {
  return answer == taken::yes ? success : real(answer == taken::before ? nobodys_memory() : ptr);
}

}  // namespace

SHOWN status cudaMalloc(void** out, std::size_t bytes) {
  return serve(device_by_runtime(), memory_kind::device, bytes, out) ? success
                                                                     : real_malloc(out, bytes);
}
SHOWN status cudaFree(void* ptr) {
  return freed(take_back(ptr, freed_as::device_memory), ptr, real_free);
}

SHOWN status cudaMallocAsync(void** out, std::size_t bytes, stream_handle stream) {
  return serve_async(device_by_runtime(), bytes, stream, out)
             ? success
             : real_malloc_async(out, bytes, stream);
}
SHOWN status cudaMallocAsync_ptsz(void** out, std::size_t bytes, stream_handle stream) {
  return serve_async(device_by_runtime(), bytes, of_thread(stream), out)
             ? success
             : real_malloc_async_ptsz(out, bytes, stream);
}
SHOWN status cudaFreeAsync(void* ptr, stream_handle stream) {
  return freed(take_back_async(ptr, stream), ptr,
               [stream](void* at) { return real_free_async(at, stream); });
}
SHOWN status cudaFreeAsync_ptsz(void* ptr, stream_handle stream) {
  return freed(take_back_async(ptr, of_thread(stream)), ptr,
               [stream](void* at) { return real_free_async_ptsz(at, stream); });
}

SHOWN status cudaHostAlloc(void** out, std::size_t bytes, unsigned flags) {
  // Memory past the CPU's caches is another kind.
  if ((flags & host_write_combined) == 0 &&
      serve(device_by_runtime(), memory_kind::pinned, bytes, out))
    return success;
  return real_host_alloc(out, bytes, flags);
}
SHOWN status cudaMallocHost(void** out, std::size_t bytes) {
  return serve(device_by_runtime(), memory_kind::pinned, bytes, out) ? success
                                                                     : real_malloc_host(out, bytes);
}
SHOWN status cudaFreeHost(void* ptr) {
  return freed(take_back(ptr, freed_as::host_memory), ptr, real_free_host);
}

SHOWN status cudaMallocManaged(void** out, std::size_t bytes, unsigned flags) {
  if (flags == attach_global && serve(device_by_runtime(), memory_kind::managed, bytes, out))
    return success;
  return real_malloc_managed(out, bytes, flags);
}
// By whole allocations, which ours are parts of; on devices that we serve managed memory on it
// changes nothing that shows.
SHOWN status cudaStreamAttachMemAsync(stream_handle stream, void* ptr, std::size_t bytes,
                                      unsigned flags) {
  return find_block(ptr).who == served_device::owner::managed
             ? success
             : real_attach(stream, ptr, bytes, flags);
}

SHOWN status cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const status answer = real_memory_info(free, total);
  if (answer == success && free != nullptr) {
    if (const served_device* const device = device_by_runtime()) *free += device->unused_bytes();
  }
  return answer;
}

SHOWN status cudaPointerGetAttributes(pointer_attributes* out, const void* ptr) {
  const status answer = real_attributes(out, ptr);
  if (answer == success && out != nullptr) {
    // However the driver sees the pool's host memory, the program asked for cudaHostAlloc's.
    if (find_block(ptr).who == served_device::owner::pinned) {
      out->type = type_host;
      out->device_pointer = out->host_pointer = const_cast<void*>(ptr);
    }
  }
  return answer;
}
SHOWN status cudaHostGetDevicePointer(void** out, void* ptr, unsigned flags) {
  if (out != nullptr && flags == 0 && find_block(ptr).who == served_device::owner::pinned) {
    *out = ptr;
    return success;
  }
  return real_host_device_pointer(out, ptr, flags);
}
SHOWN status cudaHostGetFlags(unsigned* out, void* ptr) {
  if (out != nullptr && find_block(ptr).who == served_device::owner::pinned) {
    *out = host_mapped;
    return success;
  }
  return real_host_flags(out, ptr);
}

SHOWN status cudaIpcGetMemHandle(void* handle, void* ptr) {
  return refuses_ipc(ptr) ? not_supported : real_ipc_handle(handle, ptr);
}
SHOWN status cudaDeviceReset() {
  forget_device_by_runtime();
  return real_device_reset();
}
