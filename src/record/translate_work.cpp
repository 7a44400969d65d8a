// The driver's calls that give memory, that give work to streams, and that order it: a table with a
// row a call.
#if __has_include(<cupti.h>) && __has_include(<cuda.h>)

#include <algorithm>
#include <array>
#include <type_traits>

#include "record/translate.hpp"
#include "record/translate_call.hpp"

namespace millpond::record {
namespace {

using trace::action;
using trace::copy_direction;
using trace::kind;

// Where a call that makes memory says where it is: behind a pointer, unless the program chose.
std::uint64_t address_in(const CUdeviceptr* made) {
  return *made;
}
std::uint64_t address_in(void* const* made) {
  return bits(*made);
}
std::uint64_t address_in(const void* chosen) {
  return bits(chosen);
}
std::uint64_t address_in(CUdeviceptr chosen) {
  return chosen;
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

template <class Parameters>
constexpr bool has_stream = requires(const Parameters& with) { with.hStream; };
template <class Parameters>
CUstream stream_of(const Parameters& with) {
  if constexpr (has_stream<Parameters>) {
    return with.hStream;
  } else {
    return nullptr;
  }
}

}  // namespace

// What a row does, by the type of the call's parameters and the members that it reads of them. A
// call that is given a stream is asynchronous.
struct translator::work_calls {
  template <class Parameters, auto Address, auto Bytes, kind Kind>
  static void allocate(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    to.allocated(of, address_in(with.*Address), with.*Bytes, Kind, nullptr, 0);
  }
  static void allocate_rows(translator& to, call& of) {
    const auto& with = of.of<cuMemAllocPitch_v2_params>();
    const std::size_t row_bytes = of.status() == 0 ? *with.pPitch : with.WidthInBytes;
    to.allocated(of, *with.dptr, row_bytes * with.Height, kind::device, nullptr, 0);
  }
  static void allocate_async(translator& to, call& of) {
    const auto& with = of.of<cuMemAllocAsync_params>();
    to.allocated(of, *with.dptr, with.bytesize, kind::driver_pool, with.hStream, to.current_pool(),
                 "cudaMallocAsync");
  }
  static void allocate_from_pool(translator& to, call& of) {
    const auto& with = of.of<cuMemAllocFromPoolAsync_params>();
    to.allocated(of, *with.dptr, with.bytesize, kind::driver_pool, with.hStream, bits(with.pool),
                 "cudaMallocFromPoolAsync");
  }
  template <class Parameters, auto Address, kind Kind>
  static void free(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    to.freeing(of, bits(with.*Address), Kind, stream_of(with));
  }
  static void set_current_pool(translator& to, call&) {
    to.pool_version_.fetch_add(1, std::memory_order_relaxed);
  }
  static void set_pool(translator& to, call& of) {
    const auto& with = of.of<cuMemPoolSetAttribute_params>();
    if (with.attr != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) return;
    note made = to.begin(of, action::pool_set);
    set_operands(made.at,
                 trace::pool_set_operands{bits(with.pool), trace::pool_attribute::release_threshold,
                                          *static_cast<const cuuint64_t*>(with.value)});
    to.to_.put(made);
  }

  template <class Parameters, auto To, auto From, copy_direction Direction>
  static void copy(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    to.copied(of, bits(with.*To), bits(with.*From), with.ByteCount, Direction, stream_of(with),
              has_stream<Parameters>);
  }
  template <class Parameters>
  static void copy_shape(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    const auto& shape = *with.pCopy;
    std::uint64_t bytes = shape.WidthInBytes * shape.Height;
    if constexpr (requires { shape.Depth; }) bytes *= shape.Depth;
    to.copied(of, side(shape.dstMemoryType, shape.dstHost, shape.dstDevice),
              side(shape.srcMemoryType, shape.srcHost, shape.srcDevice), bytes,
              between(shape.srcMemoryType, shape.dstMemoryType), stream_of(with),
              has_stream<Parameters>);
  }
  template <class Parameters, std::uint64_t Scale>
  static void set(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    to.set(of, with.dstDevice, with.N * Scale, stream_of(with));
  }
  static void set_rows(translator& to, call& of) {
    const auto& with = of.of<cuMemsetD2D8Async_params>();
    to.set(of, with.dstDevice,
           with.Height == 0 ? 0 : with.dstPitch * (with.Height - 1) + with.Width, with.hStream);
  }
  template <class Parameters, auto Where>
  static void prefetch(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    to.prefetched(of, with.devPtr, with.count, side_of(with.*Where), with.hStream);
  }
  template <class Parameters, auto Where>
  static void advise(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    to.advised(of, with.devPtr, with.count, static_cast<trace::memory_advice>(with.advice),
               side_of(with.*Where));
  }
  template <class Parameters>
  static void launch(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    if constexpr (requires { with.config; }) {
      to.launch(of, with.f, with.config->hStream, with.kernelParams, with.extra);
    } else if constexpr (requires { with.extra; }) {
      to.launch(of, with.f, with.hStream, with.kernelParams, with.extra);
    } else {
      to.launch(of, with.f, with.hStream, with.kernelParams, nullptr);
    }
  }
  static void device_synchronize(translator& to, call& of) {
    to.simple(of, action::device_synchronize, nullptr, 0);
  }
  template <class Parameters, action What>
  static void on_stream(translator& to, call& of) {
    to.simple(of, What, of.of<Parameters>().hStream, 0);
  }
  template <class Parameters, action What, auto Object>
  static void with_object(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    to.simple(of, What, stream_of(with), bits(with.*Object));
  }
  // The calls that mean something only where they say yes: a query that answers "done" is as good
  // as having waited.
  template <void (*Note)(translator&, call&)>
  static void where_successful(translator& to, call& of) {
    if (of.status() == 0) Note(to, of);
  }
  template <class Parameters, auto Flags>
  static void stream_create(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    to.simple(of, action::stream_create, *with.phStream, with.*Flags & CU_STREAM_NON_BLOCKING);
  }
  static void capture_end(translator& to, call& of) {
    const auto& with = of.of<cuStreamEndCapture_params>();
    to.simple(of, action::capture_end, with.hStream,
              of.status() == 0 && with.phGraph != nullptr ? bits(*with.phGraph) : 0);
  }
  template <class Parameters>
  static void graph_made(translator& to, call& of) {
    const auto& with = of.of<Parameters>();
    to.graph_made(of, with.phGraphExec, with.hGraph);
  }

  struct row {
    CUpti_CallbackId id;
    // The two forms of a call differ in what stream 0 is.
    enum class default_stream : std::uint8_t { of_all, of_the_thread } form;
    void (*note)(translator&, call&);
  };
  struct table;
};

// The name is pasted before anything else sees it: cuda.h makes macros of some of them.
#define MILLPOND_ONE(name, ...)                                              \
  row {                                                                      \
    CUPTI_DRIVER_TRACE_CBID_##name, row::default_stream::of_all, __VA_ARGS__ \
  }
#define MILLPOND_SYNC(name, ...)                                                           \
  row{CUPTI_DRIVER_TRACE_CBID_##name, row::default_stream::of_all, __VA_ARGS__}, row {     \
    CUPTI_DRIVER_TRACE_CBID_##name##_ptds, row::default_stream::of_the_thread, __VA_ARGS__ \
  }
#define MILLPOND_ASYNC(name, ...)                                                          \
  row{CUPTI_DRIVER_TRACE_CBID_##name, row::default_stream::of_all, __VA_ARGS__}, row {     \
    CUPTI_DRIVER_TRACE_CBID_##name##_ptsz, row::default_stream::of_the_thread, __VA_ARGS__ \
  }
#define MILLPOND_ALLOCATE(name, address, bytes, memory) \
  allocate<name##_params, &name##_params::address, &name##_params::bytes, kind::memory>
#define MILLPOND_FREE(name, address, memory) \
  free<name##_params, &name##_params::address, kind::memory>
#define MILLPOND_COPY(name, to, from, direction) \
  copy<name##_params, &name##_params::to, &name##_params::from, copy_direction::direction>

struct translator::work_calls::table {
  static constexpr std::array work{
      MILLPOND_ONE(cuMemAlloc_v2, &MILLPOND_ALLOCATE(cuMemAlloc_v2, dptr, bytesize, device)),
      MILLPOND_ONE(cuMemAllocPitch_v2, &allocate_rows),
      MILLPOND_ONE(cuMemAllocHost_v2, &MILLPOND_ALLOCATE(cuMemAllocHost_v2, pp, bytesize, pinned)),
      MILLPOND_ONE(cuMemHostAlloc, &MILLPOND_ALLOCATE(cuMemHostAlloc, pp, bytesize, pinned)),
      MILLPOND_ONE(cuMemHostRegister,
                   &MILLPOND_ALLOCATE(cuMemHostRegister_v2, p, bytesize, pinned)),
      MILLPOND_ONE(cuMemHostRegister_v2,
                   &MILLPOND_ALLOCATE(cuMemHostRegister_v2, p, bytesize, pinned)),
      MILLPOND_ONE(cuMemAllocManaged,
                   &MILLPOND_ALLOCATE(cuMemAllocManaged, dptr, bytesize, managed)),
      MILLPOND_ASYNC(cuMemAllocAsync, &allocate_async),
      MILLPOND_ASYNC(cuMemAllocFromPoolAsync, &allocate_from_pool),
      MILLPOND_ONE(cuMemMap, &MILLPOND_ALLOCATE(cuMemMap, ptr, size, device)),
      MILLPOND_ONE(cuMemFree_v2, &MILLPOND_FREE(cuMemFree_v2, dptr, device)),
      MILLPOND_ONE(cuMemFreeHost, &MILLPOND_FREE(cuMemFreeHost, p, pinned)),
      MILLPOND_ONE(cuMemHostUnregister, &MILLPOND_FREE(cuMemHostUnregister, p, pinned)),
      MILLPOND_ONE(cuMemUnmap, &MILLPOND_FREE(cuMemUnmap, ptr, device)),
      MILLPOND_ASYNC(cuMemFreeAsync, &MILLPOND_FREE(cuMemFreeAsync, dptr, driver_pool)),
      MILLPOND_ONE(cuDeviceSetMemPool, &set_current_pool),
      MILLPOND_ONE(cuMemPoolSetAttribute, &where_successful<set_pool>),
      MILLPOND_SYNC(cuMemcpyHtoD_v2,
                    &MILLPOND_COPY(cuMemcpyHtoD_v2, dstDevice, srcHost, host_to_device)),
      MILLPOND_ASYNC(cuMemcpyHtoDAsync_v2,
                     &MILLPOND_COPY(cuMemcpyHtoDAsync_v2, dstDevice, srcHost, host_to_device)),
      MILLPOND_SYNC(cuMemcpyDtoH_v2,
                    &MILLPOND_COPY(cuMemcpyDtoH_v2, dstHost, srcDevice, device_to_host)),
      MILLPOND_ASYNC(cuMemcpyDtoHAsync_v2,
                     &MILLPOND_COPY(cuMemcpyDtoHAsync_v2, dstHost, srcDevice, device_to_host)),
      MILLPOND_SYNC(cuMemcpyDtoD_v2,
                    &MILLPOND_COPY(cuMemcpyDtoD_v2, dstDevice, srcDevice, device_to_device)),
      MILLPOND_ASYNC(cuMemcpyDtoDAsync_v2,
                     &MILLPOND_COPY(cuMemcpyDtoDAsync_v2, dstDevice, srcDevice, device_to_device)),
      MILLPOND_SYNC(cuMemcpy, &MILLPOND_COPY(cuMemcpy, dst, src, unknown)),
      MILLPOND_ASYNC(cuMemcpyAsync, &MILLPOND_COPY(cuMemcpyAsync, dst, src, unknown)),
      MILLPOND_SYNC(cuMemcpyPeer,
                    &MILLPOND_COPY(cuMemcpyPeer, dstDevice, srcDevice, device_to_device)),
      MILLPOND_ASYNC(cuMemcpyPeerAsync,
                     &MILLPOND_COPY(cuMemcpyPeerAsync, dstDevice, srcDevice, device_to_device)),
      MILLPOND_SYNC(cuMemcpy2D_v2, &copy_shape<cuMemcpy2D_v2_params>),
      MILLPOND_SYNC(cuMemcpy2DUnaligned_v2, &copy_shape<cuMemcpy2DUnaligned_v2_params>),
      MILLPOND_ASYNC(cuMemcpy2DAsync_v2, &copy_shape<cuMemcpy2DAsync_v2_params>),
      MILLPOND_SYNC(cuMemcpy3D_v2, &copy_shape<cuMemcpy3D_v2_params>),
      MILLPOND_ASYNC(cuMemcpy3DAsync_v2, &copy_shape<cuMemcpy3DAsync_v2_params>),
      MILLPOND_SYNC(cuMemsetD8_v2, &set<cuMemsetD8_v2_params, 1>),
      MILLPOND_ASYNC(cuMemsetD8Async, &set<cuMemsetD8Async_params, 1>),
      MILLPOND_SYNC(cuMemsetD16_v2, &set<cuMemsetD16_v2_params, 2>),
      MILLPOND_ASYNC(cuMemsetD16Async, &set<cuMemsetD16Async_params, 2>),
      MILLPOND_SYNC(cuMemsetD32_v2, &set<cuMemsetD32_v2_params, 4>),
      MILLPOND_ASYNC(cuMemsetD32Async, &set<cuMemsetD32Async_params, 4>),
      MILLPOND_ASYNC(cuMemsetD2D8Async, &set_rows),
      MILLPOND_ASYNC(cuMemPrefetchAsync,
                     &prefetch<cuMemPrefetchAsync_params, &cuMemPrefetchAsync_params::dstDevice>),
      MILLPOND_ASYNC(
          cuMemPrefetchAsync_v2,
          &prefetch<cuMemPrefetchAsync_v2_params, &cuMemPrefetchAsync_v2_params::location>),
      MILLPOND_ONE(cuMemAdvise, &advise<cuMemAdvise_params, &cuMemAdvise_params::device>),
      MILLPOND_ONE(cuMemAdvise_v2,
                   &advise<cuMemAdvise_v2_params, &cuMemAdvise_v2_params::location>),
      MILLPOND_ONE(cuCtxSynchronize, &device_synchronize),
      MILLPOND_ONE(cuCtxSynchronize_v2, &device_synchronize),
      MILLPOND_ASYNC(cuStreamSynchronize,
                     &on_stream<cuStreamSynchronize_params, action::stream_synchronize>),
      MILLPOND_ASYNC(
          cuStreamQuery,
          &where_successful<on_stream<cuStreamQuery_params, action::stream_synchronize>>),
      MILLPOND_ONE(cuEventSynchronize,
                   &with_object<cuEventSynchronize_params, action::event_synchronize,
                                &cuEventSynchronize_params::hEvent>),
      MILLPOND_ONE(cuEventQuery,
                   &where_successful<with_object<cuEventQuery_params, action::event_synchronize,
                                                 &cuEventQuery_params::hEvent>>),
      MILLPOND_ASYNC(
          cuEventRecord,
          &with_object<cuEventRecord_params, action::event_record, &cuEventRecord_params::hEvent>),
      MILLPOND_ASYNC(cuEventRecordWithFlags,
                     &with_object<cuEventRecordWithFlags_params, action::event_record,
                                  &cuEventRecordWithFlags_params::hEvent>),
      MILLPOND_ASYNC(cuStreamWaitEvent, &with_object<cuStreamWaitEvent_params, action::event_wait,
                                                     &cuStreamWaitEvent_params::hEvent>),
      MILLPOND_ONE(
          cuStreamCreate,
          &where_successful<stream_create<cuStreamCreate_params, &cuStreamCreate_params::Flags>>),
      MILLPOND_ONE(cuStreamCreateWithPriority,
                   &where_successful<stream_create<cuStreamCreateWithPriority_params,
                                                   &cuStreamCreateWithPriority_params::flags>>),
      MILLPOND_ASYNC(
          cuStreamBeginCapture_v2,
          &where_successful<on_stream<cuStreamBeginCapture_v2_params, action::capture_begin>>),
      MILLPOND_ASYNC(cuStreamEndCapture, &capture_end),
      MILLPOND_ONE(cuGraphInstantiateWithFlags, &graph_made<cuGraphInstantiateWithFlags_params>),
      MILLPOND_ONE(cuGraphInstantiate_v2, &graph_made<cuGraphInstantiate_v2_params>),
      MILLPOND_ASYNC(cuGraphInstantiateWithParams,
                     &graph_made<cuGraphInstantiateWithParams_params>),
      MILLPOND_ASYNC(
          cuGraphLaunch,
          &with_object<cuGraphLaunch_params, action::graph_launch, &cuGraphLaunch_params::hGraph>)};
  // The first forms of the first two have a way of their own (launch_call).
  static constexpr std::array launches{
      MILLPOND_ASYNC(cuLaunchKernel, &launch<cuLaunchKernel_params>),
      MILLPOND_ASYNC(cuLaunchKernelEx, &launch<cuLaunchKernelEx_params>),
      MILLPOND_ASYNC(cuLaunchCooperativeKernel, &launch<cuLaunchCooperativeKernel_params>)};
};

#undef MILLPOND_ONE
#undef MILLPOND_SYNC
#undef MILLPOND_ASYNC
#undef MILLPOND_ALLOCATE
#undef MILLPOND_FREE
#undef MILLPOND_COPY

bool translator::work(CUpti_CallbackId id, call& of) {
  using table = work_calls::table;
  using row = work_calls::row;
  // A row's number plus one, by the call's; 0: no call of work.
  static constexpr auto by_id = [] {
    std::array<std::uint8_t, CUPTI_DRIVER_TRACE_CBID_SIZE> made{};
    std::uint8_t number = 0;
    for (const row& each : table::work) made[each.id] = ++number;
    for (const row& each : table::launches) made[each.id] = ++number;
    return made;
  }();
  static_assert(table::work.size() + table::launches.size() < 255);
  if (id >= by_id.size() || by_id[id] == 0) return false;
  const std::size_t number = by_id[id] - 1u;
  const row& found = number < table::work.size() ? table::work[number]
                                                 : table::launches[number - table::work.size()];
  if (found.form == row::default_stream::of_the_thread) of.per_thread = true;
  found.note(*this, of);
  return true;
}

void translator::prefetched(call& of, std::uint64_t address, std::uint64_t bytes,
                            trace::page_side to, CUstream stream) {
  note made = begin(of, action::prefetch);
  made.at.address = address;
  made.at.bytes = bytes;
  set_operands(made.at, trace::prefetch_operands{to});
  made.at.stream = handle_of(of, stream);
  made.at.stack = to_.stack(recorder::call_sort::memory);
  to_.put(made);
}

void translator::advised(call& of, std::uint64_t address, std::uint64_t bytes,
                         trace::memory_advice advice, trace::page_side side) {
  note made = begin(of, action::advise);
  made.at.address = address;
  made.at.bytes = bytes;
  set_operands(made.at, trace::advice_operands{advice, side});
  made.at.stack = to_.stack(recorder::call_sort::memory);
  to_.put(made);
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
  // What is noted when the call begins alone (entered).
  static constexpr auto others = std::to_array<CUpti_CallbackId>({
      MILLPOND_ID(cuStreamDestroy_v2),
      MILLPOND_ID(cuGraphDestroy),
      MILLPOND_ID(cuModuleUnload),
      MILLPOND_ID(cuLibraryUnload),
      MILLPOND_ID(cuDevicePrimaryCtxReset_v2),
      MILLPOND_ID(cuDevicePrimaryCtxReset),
      MILLPOND_ID(cuCtxDestroy_v2),
  });
  using table = work_calls::table;
  static constexpr auto ids = [] {
    std::array<CUpti_CallbackId, others.size() + table::work.size()> made{};
    auto next = std::copy(others.begin(), others.end(), made.begin());
    for (const auto& each : table::work) *next++ = each.id;
    return made;
  }();
  return ids;
}

std::span<const CUpti_CallbackId> translator::launch_ids() noexcept {
  using table = work_calls::table;
  static constexpr auto ids = [] {
    std::array<CUpti_CallbackId, table::launches.size()> made{};
    auto next = made.begin();
    for (const auto& each : table::launches) *next++ = each.id;
    return made;
  }();
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
