// The functions taken from libcuda: the one list of them, and the table that it makes.
//
// Each line is (member, CUDA's name, version of the signature, parameters). The version is the one
// that cuGetProcAddress is asked for: an older or newer signature under the same name is another
// function. OPTIONAL ones may be missing from a driver that is new enough otherwise; their users
// have a fallback.
#pragma once
#include "driver/cuda/cuda_types.hpp"

#define MILLPOND_CUDA_FUNCTIONS(REQUIRED, OPTIONAL)                                                \
  REQUIRED(device_get, cuDeviceGet, 2000, (device_ordinal*, int))                                  \
  REQUIRED(device_get_count, cuDeviceGetCount, 2000, (int*))                                       \
  REQUIRED(device_get_name, cuDeviceGetName, 2000, (char*, int, device_ordinal))                   \
  REQUIRED(device_total_memory, cuDeviceTotalMem, 3020, (std::size_t*, device_ordinal))            \
  REQUIRED(device_get_attribute, cuDeviceGetAttribute, 2000, (int*, int, device_ordinal))          \
  REQUIRED(primary_context_retain, cuDevicePrimaryCtxRetain, 7000,                                 \
           (context_handle*, device_ordinal))                                                      \
  REQUIRED(primary_context_release, cuDevicePrimaryCtxRelease, 11000, (device_ordinal))            \
  REQUIRED(context_set_current, cuCtxSetCurrent, 4000, (context_handle))                           \
  REQUIRED(context_get_current, cuCtxGetCurrent, 4000, (context_handle*))                          \
  REQUIRED(context_get_device, cuCtxGetDevice, 2000, (device_ordinal*))                            \
  REQUIRED(context_synchronize, cuCtxSynchronize, 2000, ())                                        \
  REQUIRED(context_record_event, cuCtxRecordEvent, 12050, (context_handle, event_handle))          \
  REQUIRED(memory_get_info, cuMemGetInfo, 3020, (std::size_t*, std::size_t*))                      \
  REQUIRED(memory_allocate, cuMemAlloc, 3020, (device_address*, std::size_t))                      \
  REQUIRED(memory_free, cuMemFree, 3020, (device_address))                                         \
  REQUIRED(host_allocate, cuMemHostAlloc, 2020, (void**, std::size_t, unsigned))                   \
  REQUIRED(host_free, cuMemFreeHost, 2000, (void*))                                                \
  REQUIRED(host_register, cuMemHostRegister, 6050, (void*, std::size_t, unsigned))                 \
  REQUIRED(host_unregister, cuMemHostUnregister, 4000, (void*))                                    \
  REQUIRED(managed_allocate, cuMemAllocManaged, 6000, (device_address*, std::size_t, unsigned))    \
  REQUIRED(pointer_get_attributes, cuPointerGetAttributes, 7000,                                   \
           (unsigned, int*, void**, device_address))                                               \
  REQUIRED(pool_create, cuMemPoolCreate, 11020, (pool_handle*, const pool_properties*))            \
  REQUIRED(pool_destroy, cuMemPoolDestroy, 11020, (pool_handle))                                   \
  REQUIRED(pool_set_attribute, cuMemPoolSetAttribute, 11020, (pool_handle, int, void*))            \
  REQUIRED(pool_get_attribute, cuMemPoolGetAttribute, 11020, (pool_handle, int, void*))            \
  REQUIRED(pool_set_access, cuMemPoolSetAccess, 11020,                                             \
           (pool_handle, const access_descriptor*, std::size_t))                                   \
  REQUIRED(pool_trim, cuMemPoolTrimTo, 11020, (pool_handle, std::size_t))                          \
  REQUIRED(pool_allocate, cuMemAllocFromPoolAsync, 11020,                                          \
           (device_address*, std::size_t, pool_handle, stream_handle))                             \
  REQUIRED(pool_free, cuMemFreeAsync, 11020, (device_address, stream_handle))                      \
  REQUIRED(address_reserve, cuMemAddressReserve, 10020,                                            \
           (device_address*, std::size_t, std::size_t, device_address, std::uint64_t))             \
  REQUIRED(address_free, cuMemAddressFree, 10020, (device_address, std::size_t))                   \
  REQUIRED(physical_create, cuMemCreate, 10020,                                                    \
           (physical_handle*, std::size_t, const allocation_properties*, std::uint64_t))           \
  REQUIRED(physical_release, cuMemRelease, 10020, (physical_handle))                               \
  REQUIRED(map, cuMemMap, 10020,                                                                   \
           (device_address, std::size_t, std::size_t, physical_handle, std::uint64_t))             \
  REQUIRED(unmap, cuMemUnmap, 10020, (device_address, std::size_t))                                \
  REQUIRED(set_access, cuMemSetAccess, 10020,                                                      \
           (device_address, std::size_t, const access_descriptor*, std::size_t))                   \
  REQUIRED(granularity, cuMemGetAllocationGranularity, 10020,                                      \
           (std::size_t*, const allocation_properties*, int))                                      \
  REQUIRED(export_handle, cuMemExportToShareableHandle, 10020,                                     \
           (void*, physical_handle, int, std::uint64_t))                                           \
  REQUIRED(import_handle, cuMemImportFromShareableHandle, 10020, (physical_handle*, void*, int))   \
  REQUIRED(stream_create, cuStreamCreate, 2000, (stream_handle*, unsigned))                        \
  REQUIRED(stream_destroy, cuStreamDestroy, 4000, (stream_handle))                                 \
  REQUIRED(stream_get_id, cuStreamGetId, 12000, (stream_handle, std::uint64_t*))                   \
  OPTIONAL(stream_get_device, cuStreamGetDevice, 12080, (stream_handle, device_ordinal*))          \
  REQUIRED(stream_get_context, cuStreamGetCtx, 9020, (stream_handle, context_handle*))             \
  REQUIRED(stream_query, cuStreamQuery, 2000, (stream_handle))                                     \
  REQUIRED(stream_synchronize, cuStreamSynchronize, 2000, (stream_handle))                         \
  REQUIRED(stream_wait_event, cuStreamWaitEvent, 3020, (stream_handle, event_handle, unsigned))    \
  REQUIRED(event_create, cuEventCreate, 2000, (event_handle*, unsigned))                           \
  REQUIRED(event_destroy, cuEventDestroy, 4000, (event_handle))                                    \
  REQUIRED(event_record, cuEventRecord, 2000, (event_handle, stream_handle))                       \
  REQUIRED(event_query, cuEventQuery, 2000, (event_handle))                                        \
  REQUIRED(event_synchronize, cuEventSynchronize, 2000, (event_handle))                            \
  REQUIRED(stream_is_capturing, cuStreamIsCapturing, 10000, (stream_handle, int*))                 \
  REQUIRED(stream_get_capture, cuStreamGetCaptureInfo, 12030,                                      \
           (stream_handle, int*, std::uint64_t*, graph_handle*, CUgraphNode_st* const**,           \
            const CUgraphEdgeData_st**, std::size_t*))                                             \
  REQUIRED(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, 10010, (int*))                \
  REQUIRED(capture_begin, cuStreamBeginCapture, 10010, (stream_handle, int))                       \
  REQUIRED(capture_end, cuStreamEndCapture, 10000, (stream_handle, graph_handle*))                 \
  REQUIRED(user_object_create, cuUserObjectCreate, 11030,                                          \
           (user_object_handle*, void*, host_callback, unsigned, unsigned))                        \
  REQUIRED(user_object_release, cuUserObjectRelease, 11030, (user_object_handle, unsigned))        \
  REQUIRED(graph_retain_user_object, cuGraphRetainUserObject, 11030,                               \
           (graph_handle, user_object_handle, unsigned, unsigned))                                 \
  REQUIRED(graph_instantiate, cuGraphInstantiateWithFlags, 11040,                                  \
           (graph_exec_handle*, graph_handle, std::uint64_t))                                      \
  REQUIRED(graph_launch, cuGraphLaunch, 10000, (graph_exec_handle, stream_handle))                 \
  REQUIRED(graph_destroy, cuGraphDestroy, 10000, (graph_handle))                                   \
  REQUIRED(graph_exec_destroy, cuGraphExecDestroy, 10000, (graph_exec_handle))                     \
  REQUIRED(copy_async, cuMemcpyAsync, 4000,                                                        \
           (device_address, device_address, std::size_t, stream_handle))                           \
  REQUIRED(set_async, cuMemsetD8Async, 3020,                                                       \
           (device_address, unsigned char, std::size_t, stream_handle))                            \
  REQUIRED(prefetch_async, cuMemPrefetchAsync, 12020,                                              \
           (device_address, std::size_t, mem_location, unsigned, stream_handle))                   \
  REQUIRED(advise, cuMemAdvise, 12020, (device_address, std::size_t, int, mem_location))           \
  REQUIRED(launch_host_function, cuLaunchHostFunc, 10000, (stream_handle, host_callback, void*))   \
  REQUIRED(module_load_data, cuModuleLoadData, 2000, (module_handle*, const void*))                \
  REQUIRED(module_unload, cuModuleUnload, 2000, (module_handle))                                   \
  REQUIRED(module_get_function, cuModuleGetFunction, 2000,                                         \
           (function_handle*, module_handle, const char*))                                         \
  OPTIONAL(function_load, cuFuncLoad, 12040, (function_handle))                                    \
  REQUIRED(launch_kernel, cuLaunchKernel, 4000,                                                    \
           (function_handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
            stream_handle, void**, void**))

namespace millpond::cuda {

using host_callback = void (*)(void*);  // CUhostFn

// One function with its names, so that a refused call can say which it was.
template <class Signature>
struct entry {
  Signature* function = nullptr;
  const char* name = "";
  const char* name_in_child = "";  // the same with why a forked child was refused
};

struct function_table {
  // NOLINTBEGIN(bugprone-macro-parentheses): a member's name takes none
#define MILLPOND_CUDA_MEMBER(member, name, version, parameters) \
  entry<status_value parameters> member{nullptr, #name, #name " (in a forked child)"};
  MILLPOND_CUDA_FUNCTIONS(MILLPOND_CUDA_MEMBER, MILLPOND_CUDA_MEMBER)
#undef MILLPOND_CUDA_MEMBER
  // NOLINTEND(bugprone-macro-parentheses)
};

}  // namespace millpond::cuda
