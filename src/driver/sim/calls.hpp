// The CUDA functions that the simulator counts, charges and can make fail.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace millpond::sim {

enum class call : std::uint8_t {
  set_current,
  context_create,
  green_context_create,
  context_destroy,
  context_push,
  context_pop,
  memory_info,
  context_synchronize,
  memory_allocate,
  memory_free,
  host_allocate,
  host_free,
  host_register,
  host_unregister,
  managed_allocate,
  pointer_info,
  pool_create,
  pool_destroy,
  pool_attribute,
  pool_usage,
  pool_trim,
  pool_allocate,
  pool_free,
  address_reserve,
  address_free,
  physical_create,
  physical_release,
  map,
  unmap,
  set_access,
  export_handle,
  import_handle,
  stream_create,
  stream_destroy,
  stream_id,
  stream_device,
  stream_query,
  stream_synchronize,
  stream_wait_event,
  event_create,
  event_destroy,
  event_record,
  event_query,
  event_synchronize,
  context_record_event,
  stream_capture,
  exchange_capture_mode,
  capture_begin,
  capture_end,
  graph_retain,
  graph_instantiate,
  graph_launch,
  graph_destroy,
  graph_exec_destroy,
  copy,
  fill,
  prefetch,
  advise,
  host_function,
  launch,
  count_,
};
inline constexpr std::size_t call_count = static_cast<std::size_t>(call::count_);

struct call_facts {
  const char* name;
  bool takes_memory;  // what the fault plan calls an allocation
  bool unsafe;        // refused to a thread while a capture forbids unsafe calls to it
};

// In the enum's order.
inline constexpr std::array<call_facts, call_count> call_table{{
    {"cuCtxSetCurrent", false, false},
    {"cuCtxCreate", false, false},
    {"cuGreenCtxCreate", false, false},
    {"cuCtxDestroy", false, false},
    {"cuCtxPushCurrent", false, false},
    {"cuCtxPopCurrent", false, false},
    {"cuMemGetInfo", false, false},
    {"cuCtxSynchronize", false, true},
    {"cuMemAlloc", true, true},
    {"cuMemFree", false, true},
    {"cuMemHostAlloc", true, true},
    {"cuMemFreeHost", false, true},
    {"cuMemHostRegister", true, true},
    {"cuMemHostUnregister", false, true},
    {"cuMemAllocManaged", true, true},
    {"cuPointerGetAttributes", false, false},
    {"cuMemPoolCreate", true, false},
    {"cuMemPoolDestroy", false, false},
    {"cuMemPoolSetAttribute", false, false},
    {"cuMemPoolGetAttribute", false, false},
    {"cuMemPoolTrimTo", false, false},
    {"cuMemAllocFromPoolAsync", true, false},
    {"cuMemFreeAsync", false, false},
    {"cuMemAddressReserve", true, false},
    {"cuMemAddressFree", false, false},
    {"cuMemCreate", true, false},
    {"cuMemRelease", false, false},
    {"cuMemMap", true, false},
    {"cuMemUnmap", false, false},
    {"cuMemSetAccess", true, false},
    {"cuMemExportToShareableHandle", false, false},
    {"cuMemImportFromShareableHandle", true, false},
    {"cuStreamCreate", false, false},
    {"cuStreamDestroy", false, false},
    {"cuStreamGetId", false, false},
    {"cuStreamGetCtx", false, false},
    {"cuStreamQuery", false, false},
    {"cuStreamSynchronize", false, false},
    {"cuStreamWaitEvent", false, false},
    {"cuEventCreate", false, false},
    {"cuEventDestroy", false, false},
    {"cuEventRecord", false, false},
    {"cuEventQuery", false, true},
    {"cuEventSynchronize", false, true},
    {"cuCtxRecordEvent", false, false},
    {"cuStreamGetCaptureInfo", false, false},
    {"cuThreadExchangeStreamCaptureMode", false, false},
    {"cuStreamBeginCapture", false, false},
    {"cuStreamEndCapture", false, false},
    {"cuGraphRetainUserObject", false, false},
    {"cuGraphInstantiate", false, false},
    {"cuGraphLaunch", false, false},
    {"cuGraphDestroy", false, false},
    {"cuGraphExecDestroy", false, false},
    {"cuMemcpyAsync", false, false},
    {"cuMemsetD8Async", false, false},
    {"cuMemPrefetchAsync", false, false},
    {"cuMemAdvise", false, false},
    {"cuLaunchHostFunc", false, false},
    {"cuLaunchKernel", false, false},
}};

// Answers CUDA_ERROR_INVALID_CONTEXT on a thread that has no current context.
[[nodiscard]] constexpr bool needs_context(call which) noexcept {
  return which > call::context_pop && which != call::exchange_capture_mode;
}

[[nodiscard]] constexpr const char* name_of(call which) noexcept {
  return call_table[static_cast<std::size_t>(which)].name;
}

}  // namespace millpond::sim
