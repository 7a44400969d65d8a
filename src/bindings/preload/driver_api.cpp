// The same for programs that call the driver: by its symbols, or by addresses that cuGetProcAddress
// gave them.
#include <array>
#include <cstring>
#include <string_view>

#include "bindings/preload/process.hpp"

using namespace millpond;
using namespace millpond::preload;

namespace {

using address = device_address;

real_function<status(address*, std::size_t)> real_alloc(origin::driver, "cuMemAlloc_v2");
real_function<status(address)> real_free(origin::driver, "cuMemFree_v2");
real_function<status(address*, std::size_t, stream_handle)> real_alloc_async(origin::driver,
                                                                             "cuMemAllocAsync");
real_function<status(address*, std::size_t, stream_handle)> real_alloc_async_ptsz(
    origin::driver, "cuMemAllocAsync_ptsz");
real_function<status(address, stream_handle)> real_free_async(origin::driver, "cuMemFreeAsync");
real_function<status(address, stream_handle)> real_free_async_ptsz(origin::driver,
                                                                   "cuMemFreeAsync_ptsz");
real_function<status(void**, std::size_t)> real_alloc_host(origin::driver, "cuMemAllocHost_v2");
real_function<status(void**, std::size_t, unsigned)> real_host_alloc(origin::driver,
                                                                     "cuMemHostAlloc");
real_function<status(void*)> real_free_host(origin::driver, "cuMemFreeHost");
real_function<status(address*, std::size_t, unsigned)> real_alloc_managed(origin::driver,
                                                                          "cuMemAllocManaged");
real_function<status(std::size_t*, std::size_t*)> real_memory_info(origin::driver,
                                                                   "cuMemGetInfo_v2");
real_function<status(address*, std::size_t*, address)> real_range(origin::driver,
                                                                  "cuMemGetAddressRange_v2");
real_function<status(void*, address)> real_ipc_handle(origin::driver, "cuIpcGetMemHandle");
real_function<status(const char*, void**, int, std::uint64_t, int*)> real_proc_address(
    origin::driver, "cuGetProcAddress_v2");

void* pointer(address at) {
  return reinterpret_cast<void*>(at);
}

template <class Real>
status freed(taken answer, address at, Real&& real) {
  return answer == taken::yes
             ? success
             : real(answer == taken::before ? reinterpret_cast<address>(nobodys_memory()) : at);
}

status serve_address(memory_kind kind, std::size_t bytes, address* out, bool* served) {
  void* ptr = nullptr;
  *served = out != nullptr && serve(device_by_context(), kind, bytes, &ptr);
  if (*served) *out = reinterpret_cast<address>(ptr);
  return success;
}
bool serve_address_async(std::size_t bytes, stream_handle stream, address* out) {
  void* ptr = nullptr;
  if (out == nullptr || !serve_async(device_by_context(), bytes, stream, &ptr)) return false;
  *out = reinterpret_cast<address>(ptr);
  return true;
}

constexpr unsigned host_write_combined = 4;
constexpr unsigned attach_global = 1;
constexpr std::uint64_t per_thread_default_stream =
    2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

}  // namespace

SHOWN status cuMemAlloc_v2(address* out, std::size_t bytes) {
  bool served = false;
  const status answer = serve_address(memory_kind::device, bytes, out, &served);
  return served ? answer : real_alloc(out, bytes);
}
SHOWN status cuMemFree_v2(address at) {
  return freed(take_back(pointer(at), freed_as::device_memory), at, real_free);
}

SHOWN status cuMemAllocAsync(address* out, std::size_t bytes, stream_handle stream) {
  return serve_address_async(bytes, stream, out) ? success : real_alloc_async(out, bytes, stream);
}
SHOWN status cuMemAllocAsync_ptsz(address* out, std::size_t bytes, stream_handle stream) {
  return serve_address_async(bytes, of_thread(stream), out)
             ? success
             : real_alloc_async_ptsz(out, bytes, stream);
}
SHOWN status cuMemFreeAsync(address at, stream_handle stream) {
  return freed(take_back_async(pointer(at), stream), at,
               [stream](address it) { return real_free_async(it, stream); });
}
SHOWN status cuMemFreeAsync_ptsz(address at, stream_handle stream) {
  return freed(take_back_async(pointer(at), of_thread(stream)), at,
               [stream](address it) { return real_free_async_ptsz(it, stream); });
}

SHOWN status cuMemAllocHost_v2(void** out, std::size_t bytes) {
  return serve(device_by_context(), memory_kind::pinned, bytes, out) ? success
                                                                     : real_alloc_host(out, bytes);
}
SHOWN status cuMemHostAlloc(void** out, std::size_t bytes, unsigned flags) {
  if ((flags & host_write_combined) == 0 &&
      serve(device_by_context(), memory_kind::pinned, bytes, out))
    return success;
  return real_host_alloc(out, bytes, flags);
}
SHOWN status cuMemFreeHost(void* ptr) {
  const taken answer = take_back(ptr, freed_as::host_memory);
  return answer == taken::yes ? success
                              : real_free_host(answer == taken::before ? nobodys_memory() : ptr);
}

SHOWN status cuMemAllocManaged(address* out, std::size_t bytes, unsigned flags) {
  bool served = false;
  if (flags == attach_global)
    static_cast<void>(serve_address(memory_kind::managed, bytes, out, &served));
  return served ? success : real_alloc_managed(out, bytes, flags);
}

SHOWN status cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const status answer = real_memory_info(free, total);
  if (answer == success && free != nullptr) {
    if (const served_device* const device = device_by_context()) *free += device->unused_bytes();
  }
  return answer;
}

// The block, not the mapping that it lies in: what cuMemAlloc gave.
SHOWN status cuMemGetAddressRange_v2(address* start, std::size_t* bytes, address at) {
  const found_block found = find_block(pointer(at));
  if (found.device == nullptr || found.who == served_device::owner::segment)
    return real_range(start, bytes, at);
  if (start != nullptr) *start = reinterpret_cast<address>(found.range.start);
  if (bytes != nullptr) *bytes = found.range.bytes;
  return success;
}

SHOWN status cuIpcGetMemHandle(void* handle, address at) {
  return refuses_ipc(pointer(at)) ? not_supported : real_ipc_handle(handle, at);
}

SHOWN status cuGetProcAddress_v2(const char* symbol, void** out, int version, std::uint64_t flags,
                                 int* why) {
  const status answer = real_proc_address(symbol, out, version, flags, why);
  if (answer != success || symbol == nullptr || out == nullptr || *out == nullptr) return answer;
  struct replaced {
    std::string_view name;
    void* function;
    void* per_thread;
  };
  static const std::array table{
      replaced{"cuMemAlloc", reinterpret_cast<void*>(cuMemAlloc_v2), nullptr},
      replaced{"cuMemFree", reinterpret_cast<void*>(cuMemFree_v2), nullptr},
      replaced{"cuMemAllocAsync", reinterpret_cast<void*>(cuMemAllocAsync),
               reinterpret_cast<void*>(cuMemAllocAsync_ptsz)},
      replaced{"cuMemFreeAsync", reinterpret_cast<void*>(cuMemFreeAsync),
               reinterpret_cast<void*>(cuMemFreeAsync_ptsz)},
      replaced{"cuMemAllocHost", reinterpret_cast<void*>(cuMemAllocHost_v2), nullptr},
      replaced{"cuMemHostAlloc", reinterpret_cast<void*>(cuMemHostAlloc), nullptr},
      replaced{"cuMemFreeHost", reinterpret_cast<void*>(cuMemFreeHost), nullptr},
      replaced{"cuMemAllocManaged", reinterpret_cast<void*>(cuMemAllocManaged), nullptr},
      replaced{"cuMemGetInfo", reinterpret_cast<void*>(cuMemGetInfo_v2), nullptr},
      replaced{"cuMemGetAddressRange", reinterpret_cast<void*>(cuMemGetAddressRange_v2), nullptr},
      replaced{"cuIpcGetMemHandle", reinterpret_cast<void*>(cuIpcGetMemHandle), nullptr},
  };
  for (const replaced& r : table) {
    if (r.name == symbol)
      *out = (flags & per_thread_default_stream) != 0 && r.per_thread != nullptr ? r.per_thread
                                                                                 : r.function;
  }
  return answer;
}
