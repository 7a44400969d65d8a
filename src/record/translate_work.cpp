// The driver's calls that give work to streams, and those that order it.
#if __has_include(<cupti.h>) && __has_include(<cuda.h>)

#include <array>

#include "record/translate.hpp"
#include "record/translate_call.hpp"

namespace millpond::record {
namespace {

using trace::action;
using trace::copy_direction;

std::uint64_t bits(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

// One side of a copy of a rectangle.
std::uint64_t side(CUmemorytype of, const void* host, CUdeviceptr device) {
  return of == CU_MEMORYTYPE_HOST    ? bits(host)
         : of == CU_MEMORYTYPE_ARRAY ? 0
         : device != 0               ? device
                                     : bits(host);
}
copy_direction between(CUmemorytype from, CUmemorytype to) {
  if (from == CU_MEMORYTYPE_UNIFIED || to == CU_MEMORYTYPE_UNIFIED) return copy_direction::unknown;
  const bool host_from = from == CU_MEMORYTYPE_HOST, host_to = to == CU_MEMORYTYPE_HOST;
  return host_from ? (host_to ? copy_direction::host_to_host : copy_direction::host_to_device)
                   : (host_to ? copy_direction::device_to_host : copy_direction::device_to_device);
}

}  // namespace

bool translator::copy_or_set(CUpti_CallbackId id, call& of) {
  constexpr auto up = copy_direction::host_to_device, down = copy_direction::device_to_host,
                 inside = copy_direction::device_to_device, unknown = copy_direction::unknown;
  const auto rectangle = [&](const CUDA_MEMCPY2D& with, CUstream stream, bool asynchronous) {
    copied(of, side(with.dstMemoryType, with.dstHost, with.dstDevice),
           side(with.srcMemoryType, with.srcHost, with.srcDevice), with.WidthInBytes * with.Height,
           between(with.srcMemoryType, with.dstMemoryType), stream, asynchronous);
  };
  const auto cuboid = [&](const CUDA_MEMCPY3D& with, CUstream stream, bool asynchronous) {
    copied(of, side(with.dstMemoryType, with.dstHost, with.dstDevice),
           side(with.srcMemoryType, with.srcHost, with.srcDevice),
           with.WidthInBytes * with.Height * with.Depth,
           between(with.srcMemoryType, with.dstMemoryType), stream, asynchronous);
  };
  switch (id) {
    case MILLPOND_ID(cuMemcpyHtoD_v2_ptds): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyHtoD_v2): {
      const auto& with = of.of<cuMemcpyHtoD_v2_params>();
      copied(of, with.dstDevice, bits(with.srcHost), with.ByteCount, up, nullptr, false);
      return true;
    }
    case MILLPOND_ID(cuMemcpyHtoDAsync_v2_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyHtoDAsync_v2): {
      const auto& with = of.of<cuMemcpyHtoDAsync_v2_params>();
      copied(of, with.dstDevice, bits(with.srcHost), with.ByteCount, up, with.hStream, true);
      return true;
    }
    case MILLPOND_ID(cuMemcpyDtoH_v2_ptds): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyDtoH_v2): {
      const auto& with = of.of<cuMemcpyDtoH_v2_params>();
      copied(of, bits(with.dstHost), with.srcDevice, with.ByteCount, down, nullptr, false);
      return true;
    }
    case MILLPOND_ID(cuMemcpyDtoHAsync_v2_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyDtoHAsync_v2): {
      const auto& with = of.of<cuMemcpyDtoHAsync_v2_params>();
      copied(of, bits(with.dstHost), with.srcDevice, with.ByteCount, down, with.hStream, true);
      return true;
    }
    case MILLPOND_ID(cuMemcpyDtoD_v2_ptds): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyDtoD_v2): {
      const auto& with = of.of<cuMemcpyDtoD_v2_params>();
      copied(of, with.dstDevice, with.srcDevice, with.ByteCount, inside, nullptr, false);
      return true;
    }
    case MILLPOND_ID(cuMemcpyDtoDAsync_v2_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyDtoDAsync_v2): {
      const auto& with = of.of<cuMemcpyDtoDAsync_v2_params>();
      copied(of, with.dstDevice, with.srcDevice, with.ByteCount, inside, with.hStream, true);
      return true;
    }
    case MILLPOND_ID(cuMemcpy_ptds): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpy): {
      const auto& with = of.of<cuMemcpy_params>();
      copied(of, with.dst, with.src, with.ByteCount, unknown, nullptr, false);
      return true;
    }
    case MILLPOND_ID(cuMemcpyAsync_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyAsync): {
      const auto& with = of.of<cuMemcpyAsync_params>();
      copied(of, with.dst, with.src, with.ByteCount, unknown, with.hStream, true);
      return true;
    }
    case MILLPOND_ID(cuMemcpyPeer_ptds): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyPeer): {
      const auto& with = of.of<cuMemcpyPeer_params>();
      copied(of, with.dstDevice, with.srcDevice, with.ByteCount, inside, nullptr, false);
      return true;
    }
    case MILLPOND_ID(cuMemcpyPeerAsync_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpyPeerAsync): {
      const auto& with = of.of<cuMemcpyPeerAsync_params>();
      copied(of, with.dstDevice, with.srcDevice, with.ByteCount, inside, with.hStream, true);
      return true;
    }
    case MILLPOND_ID(cuMemcpy2D_v2_ptds): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpy2D_v2):
      rectangle(*of.of<cuMemcpy2D_v2_params>().pCopy, nullptr, false);
      return true;
    case MILLPOND_ID(cuMemcpy2DUnaligned_v2_ptds): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpy2DUnaligned_v2):
      rectangle(*of.of<cuMemcpy2DUnaligned_v2_params>().pCopy, nullptr, false);
      return true;
    case MILLPOND_ID(cuMemcpy2DAsync_v2_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpy2DAsync_v2): {
      const auto& with = of.of<cuMemcpy2DAsync_v2_params>();
      rectangle(*with.pCopy, with.hStream, true);
      return true;
    }
    case MILLPOND_ID(cuMemcpy3D_v2_ptds): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpy3D_v2):
      cuboid(*of.of<cuMemcpy3D_v2_params>().pCopy, nullptr, false);
      return true;
    case MILLPOND_ID(cuMemcpy3DAsync_v2_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemcpy3DAsync_v2): {
      const auto& with = of.of<cuMemcpy3DAsync_v2_params>();
      cuboid(*with.pCopy, with.hStream, true);
      return true;
    }
#define MILLPOND_SET(name, scale)                                            \
  case MILLPOND_ID(name##_v2_ptds): of.per_thread = true; [[fallthrough]];   \
  case MILLPOND_ID(name##_v2): {                                             \
    const auto& with = of.of<name##_v2_params>();                            \
    set(of, with.dstDevice, with.N * (scale), nullptr);                      \
    return true;                                                             \
  }                                                                          \
  case MILLPOND_ID(name##Async_ptsz): of.per_thread = true; [[fallthrough]]; \
  case MILLPOND_ID(name##Async): {                                           \
    const auto& with = of.of<name##Async_params>();                          \
    set(of, with.dstDevice, with.N * (scale), with.hStream);                 \
    return true;                                                             \
  }
      MILLPOND_SET(cuMemsetD8, 1)
      MILLPOND_SET(cuMemsetD16, 2)
      MILLPOND_SET(cuMemsetD32, 4)
#undef MILLPOND_SET
    case MILLPOND_ID(cuMemsetD2D8Async_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemsetD2D8Async): {
      const auto& with = of.of<cuMemsetD2D8Async_params>();
      set(of, with.dstDevice, with.Height == 0 ? 0 : with.dstPitch * (with.Height - 1) + with.Width,
          with.hStream);
      return true;
    }
    case MILLPOND_ID(cuMemPrefetchAsync_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemPrefetchAsync): {
      const auto& with = of.of<cuMemPrefetchAsync_params>();
      prefetched(of, with.devPtr, with.count, with.dstDevice == CU_DEVICE_CPU ? 1u : 0u,
                 with.hStream);
      return true;
    }
    case MILLPOND_ID(cuMemPrefetchAsync_v2_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuMemPrefetchAsync_v2): {
      const auto& with = of.of<cuMemPrefetchAsync_v2_params>();
      prefetched(of, with.devPtr, with.count,
                 with.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? 0u : 1u, with.hStream);
      return true;
    }
    case MILLPOND_ID(cuMemAdvise): {
      const auto& with = of.of<cuMemAdvise_params>();
      advised(of, with.devPtr, with.count, static_cast<std::uint64_t>(with.advice),
              with.device == CU_DEVICE_CPU ? 1u : 0u);
      return true;
    }
    case MILLPOND_ID(cuMemAdvise_v2): {
      const auto& with = of.of<cuMemAdvise_v2_params>();
      advised(of, with.devPtr, with.count, static_cast<std::uint64_t>(with.advice),
              with.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? 0u : 1u);
      return true;
    }
    default: return false;
  }
}

void translator::prefetched(call& of, std::uint64_t address, std::uint64_t bytes,
                            std::uint64_t place, CUstream stream) {
  note made = begin(of, action::prefetch);
  made.at.address = address;
  made.at.bytes = bytes;
  made.at.other = place;
  made.at.stream = handle_of(of, stream);
  made.at.stack = to_.stack(recorder::call_sort::memory);
  to_.put(made);
}

void translator::advised(call& of, std::uint64_t address, std::uint64_t bytes, std::uint64_t advice,
                         std::uint64_t place) {
  note made = begin(of, action::advise);
  made.at.address = address;
  made.at.bytes = bytes;
  made.at.other = advice;
  made.at.object = place;
  made.at.stack = to_.stack(recorder::call_sort::memory);
  to_.put(made);
}

bool translator::order(CUpti_CallbackId id, call& of) {
  switch (id) {
    // The other forms of these two have a way of their own (launch_call).
    case MILLPOND_ID(cuLaunchKernel_ptsz): {
      of.per_thread = true;
      const auto& with = of.of<cuLaunchKernel_params>();
      launch(of, with.f, with.hStream, with.kernelParams, with.extra);
      return true;
    }
    case MILLPOND_ID(cuLaunchKernelEx_ptsz): {
      of.per_thread = true;
      const auto& with = of.of<cuLaunchKernelEx_params>();
      launch(of, with.f, with.config->hStream, with.kernelParams, with.extra);
      return true;
    }
    case MILLPOND_ID(cuLaunchCooperativeKernel_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuLaunchCooperativeKernel): {
      const auto& with = of.of<cuLaunchCooperativeKernel_params>();
      launch(of, with.f, with.hStream, with.kernelParams, nullptr);
      return true;
    }
    case MILLPOND_ID(cuCtxSynchronize):
    case MILLPOND_ID(cuCtxSynchronize_v2):
      simple(of, action::device_synchronize, nullptr, 0);
      return true;
    case MILLPOND_ID(cuStreamSynchronize_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuStreamSynchronize):
      simple(of, action::stream_synchronize, of.of<cuStreamSynchronize_params>().hStream, 0);
      return true;
    case MILLPOND_ID(cuStreamQuery_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuStreamQuery):  // "done" is as good as having waited
      if (of.status() == 0)
        simple(of, action::stream_synchronize, of.of<cuStreamQuery_params>().hStream, 0);
      return true;
    case MILLPOND_ID(cuEventSynchronize):
      simple(of, action::event_synchronize, nullptr,
             bits(of.of<cuEventSynchronize_params>().hEvent));
      return true;
    case MILLPOND_ID(cuEventQuery):
      if (of.status() == 0)
        simple(of, action::event_synchronize, nullptr, bits(of.of<cuEventQuery_params>().hEvent));
      return true;
    case MILLPOND_ID(cuEventRecord_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuEventRecord): {
      const auto& with = of.of<cuEventRecord_params>();
      simple(of, action::event_record, with.hStream, bits(with.hEvent));
      return true;
    }
    case MILLPOND_ID(cuEventRecordWithFlags_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuEventRecordWithFlags): {
      const auto& with = of.of<cuEventRecordWithFlags_params>();
      simple(of, action::event_record, with.hStream, bits(with.hEvent));
      return true;
    }
    case MILLPOND_ID(cuStreamWaitEvent_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuStreamWaitEvent): {
      const auto& with = of.of<cuStreamWaitEvent_params>();
      simple(of, action::event_wait, with.hStream, bits(with.hEvent));
      return true;
    }
    case MILLPOND_ID(cuStreamCreate): {
      const auto& with = of.of<cuStreamCreate_params>();
      if (of.status() == 0)
        simple(of, action::stream_create, *with.phStream, with.Flags & CU_STREAM_NON_BLOCKING);
      return true;
    }
    case MILLPOND_ID(cuStreamCreateWithPriority): {
      const auto& with = of.of<cuStreamCreateWithPriority_params>();
      if (of.status() == 0)
        simple(of, action::stream_create, *with.phStream, with.flags & CU_STREAM_NON_BLOCKING);
      return true;
    }
    case MILLPOND_ID(cuStreamBeginCapture_v2_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuStreamBeginCapture_v2):
      if (of.status() == 0)
        simple(of, action::capture_begin, of.of<cuStreamBeginCapture_v2_params>().hStream, 0);
      return true;
    case MILLPOND_ID(cuStreamEndCapture_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuStreamEndCapture): {
      const auto& with = of.of<cuStreamEndCapture_params>();
      simple(of, action::capture_end, with.hStream,
             of.status() == 0 && with.phGraph != nullptr ? bits(*with.phGraph) : 0);
      return true;
    }
    case MILLPOND_ID(cuGraphInstantiateWithFlags): {
      const auto& with = of.of<cuGraphInstantiateWithFlags_params>();
      graph_made(of, with.phGraphExec, with.hGraph);
      return true;
    }
    case MILLPOND_ID(cuGraphInstantiate_v2): {
      const auto& with = of.of<cuGraphInstantiate_v2_params>();
      graph_made(of, with.phGraphExec, with.hGraph);
      return true;
    }
    case MILLPOND_ID(cuGraphInstantiateWithParams_ptsz):
    case MILLPOND_ID(cuGraphInstantiateWithParams): {
      const auto& with = of.of<cuGraphInstantiateWithParams_params>();
      graph_made(of, with.phGraphExec, with.hGraph);
      return true;
    }
    case MILLPOND_ID(cuGraphLaunch_ptsz): of.per_thread = true; [[fallthrough]];
    case MILLPOND_ID(cuGraphLaunch): {
      const auto& with = of.of<cuGraphLaunch_params>();
      simple(of, action::graph_launch, with.hStream, bits(with.hGraph));
      return true;
    }
    default: return false;
  }
}

void translator::graph_made(call& of, const CUgraphExec* executable, CUgraph graph) {
  if (of.status() != 0) return;
  note made = begin(of, action::mark);
  made.form = note_form::graph_made;
  made.at.object = bits(*executable);
  made.at.other = bits(graph);
  to_.put(made);
}

std::span<const CUpti_CallbackId> translator::driver_ids() noexcept {
#define MILLPOND_BOTH(name) MILLPOND_ID(name), MILLPOND_ID(name##_ptsz)
#define MILLPOND_SYNC(name) MILLPOND_ID(name), MILLPOND_ID(name##_ptds)
  static constexpr auto ids =
      std::to_array<CUpti_CallbackId>({MILLPOND_ID(cuMemAlloc_v2),
                                       MILLPOND_ID(cuMemAllocPitch_v2),
                                       MILLPOND_ID(cuMemAllocHost_v2),
                                       MILLPOND_ID(cuMemHostAlloc),
                                       MILLPOND_ID(cuMemHostRegister),
                                       MILLPOND_ID(cuMemHostRegister_v2),
                                       MILLPOND_ID(cuMemHostUnregister),
                                       MILLPOND_ID(cuMemAllocManaged),
                                       MILLPOND_BOTH(cuMemAllocAsync),
                                       MILLPOND_BOTH(cuMemAllocFromPoolAsync),
                                       MILLPOND_ID(cuMemMap),
                                       MILLPOND_ID(cuMemUnmap),
                                       MILLPOND_ID(cuMemFree_v2),
                                       MILLPOND_ID(cuMemFreeHost),
                                       MILLPOND_BOTH(cuMemFreeAsync),
                                       MILLPOND_ID(cuMemPoolSetAttribute),
                                       MILLPOND_ID(cuStreamDestroy_v2),
                                       MILLPOND_ID(cuGraphDestroy),
                                       MILLPOND_ID(cuModuleUnload),
                                       MILLPOND_ID(cuLibraryUnload),
                                       MILLPOND_ID(cuDevicePrimaryCtxReset_v2),
                                       MILLPOND_ID(cuDevicePrimaryCtxReset),
                                       MILLPOND_ID(cuDeviceSetMemPool),
                                       MILLPOND_ID(cuCtxDestroy_v2),
                                       MILLPOND_SYNC(cuMemcpyHtoD_v2),
                                       MILLPOND_BOTH(cuMemcpyHtoDAsync_v2),
                                       MILLPOND_SYNC(cuMemcpyDtoH_v2),
                                       MILLPOND_BOTH(cuMemcpyDtoHAsync_v2),
                                       MILLPOND_SYNC(cuMemcpyDtoD_v2),
                                       MILLPOND_BOTH(cuMemcpyDtoDAsync_v2),
                                       MILLPOND_SYNC(cuMemcpy),
                                       MILLPOND_BOTH(cuMemcpyAsync),
                                       MILLPOND_SYNC(cuMemcpyPeer),
                                       MILLPOND_BOTH(cuMemcpyPeerAsync),
                                       MILLPOND_SYNC(cuMemcpy2D_v2),
                                       MILLPOND_SYNC(cuMemcpy2DUnaligned_v2),
                                       MILLPOND_BOTH(cuMemcpy2DAsync_v2),
                                       MILLPOND_SYNC(cuMemcpy3D_v2),
                                       MILLPOND_BOTH(cuMemcpy3DAsync_v2),
                                       MILLPOND_SYNC(cuMemsetD8_v2),
                                       MILLPOND_SYNC(cuMemsetD16_v2),
                                       MILLPOND_SYNC(cuMemsetD32_v2),
                                       MILLPOND_BOTH(cuMemsetD8Async),
                                       MILLPOND_BOTH(cuMemsetD16Async),
                                       MILLPOND_BOTH(cuMemsetD32Async),
                                       MILLPOND_BOTH(cuMemsetD2D8Async),
                                       MILLPOND_BOTH(cuMemPrefetchAsync),
                                       MILLPOND_BOTH(cuMemPrefetchAsync_v2),
                                       MILLPOND_ID(cuMemAdvise),
                                       MILLPOND_ID(cuMemAdvise_v2),
                                       MILLPOND_ID(cuCtxSynchronize),
                                       MILLPOND_ID(cuCtxSynchronize_v2),
                                       MILLPOND_BOTH(cuStreamSynchronize),
                                       MILLPOND_BOTH(cuStreamQuery),
                                       MILLPOND_ID(cuEventSynchronize),
                                       MILLPOND_ID(cuEventQuery),
                                       MILLPOND_BOTH(cuEventRecord),
                                       MILLPOND_BOTH(cuEventRecordWithFlags),
                                       MILLPOND_BOTH(cuStreamWaitEvent),
                                       MILLPOND_ID(cuStreamCreate),
                                       MILLPOND_ID(cuStreamCreateWithPriority),
                                       MILLPOND_BOTH(cuStreamBeginCapture_v2),
                                       MILLPOND_BOTH(cuStreamEndCapture),
                                       MILLPOND_ID(cuGraphInstantiateWithFlags),
                                       MILLPOND_ID(cuGraphInstantiate_v2),
                                       MILLPOND_BOTH(cuGraphInstantiateWithParams),
                                       MILLPOND_BOTH(cuGraphLaunch)});
  return ids;
}

std::span<const CUpti_CallbackId> translator::launch_ids() noexcept {
  static constexpr auto ids = std::to_array<CUpti_CallbackId>(
      {MILLPOND_BOTH(cuLaunchKernel), MILLPOND_BOTH(cuLaunchKernelEx),
       MILLPOND_BOTH(cuLaunchCooperativeKernel)});
#undef MILLPOND_BOTH
#undef MILLPOND_SYNC
  return ids;
}

std::span<const CUpti_CallbackId> translator::runtime_ids() noexcept {
#define MILLPOND_RUNTIME(name, version) CUPTI_RUNTIME_TRACE_CBID_##name##_v##version
  static constexpr std::array ids{
      MILLPOND_RUNTIME(cudaMalloc, 3020), MILLPOND_RUNTIME(cudaMallocPitch, 3020),
      MILLPOND_RUNTIME(cudaFree, 3020), MILLPOND_RUNTIME(cudaMallocHost, 3020),
      MILLPOND_RUNTIME(cudaFreeHost, 3020), MILLPOND_RUNTIME(cudaHostAlloc, 3020),
      MILLPOND_RUNTIME(cudaHostRegister, 4000), MILLPOND_RUNTIME(cudaHostUnregister, 4000),
      MILLPOND_RUNTIME(cudaMallocManaged, 6000), MILLPOND_RUNTIME(cudaDeviceReset, 3020),
      // These lend no name; they tell that the program uses the runtime at all.
      MILLPOND_RUNTIME(cudaStreamCreate, 3020), MILLPOND_RUNTIME(cudaStreamCreateWithFlags, 5000),
      MILLPOND_RUNTIME(cudaStreamCreateWithPriority, 5050), MILLPOND_RUNTIME(cudaSetDevice, 3020),
      MILLPOND_RUNTIME(cudaGetDeviceCount, 3020)};
#undef MILLPOND_RUNTIME
  return std::span<const CUpti_CallbackId>(reinterpret_cast<const CUpti_CallbackId*>(ids.data()),
                                           ids.size());
}

}  // namespace millpond::record
#endif
