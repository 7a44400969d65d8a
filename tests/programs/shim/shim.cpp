#include "programs/shim/shim.hpp"

#include <cuda.h>
#include <cupti.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "millpond/sim/simulated_gpu.hpp"
#include "programs/shim/cuda_runtime.h"
#include "record/translate.hpp"

namespace shim {
namespace {

using namespace millpond;

#define ID(name) CUPTI_DRIVER_TRACE_CBID_##name

struct managed_block {
  std::uint64_t bytes = 0;
  bool on_device = false;
  bool touched = false;  // by the CPU
};

// What a process that runs a program has; never destroyed, since the program's own static
// destructors call CUDA.
struct machine {
  std::shared_ptr<driver> gpu;
  std::unique_ptr<record::recorder> to;
  std::unique_ptr<record::translator> translate;
  pool_handle pool = nullptr;
  std::unordered_map<const void*, std::vector<std::size_t>> kernels;
  std::map<std::uint64_t, managed_block> managed;
};
machine* here = nullptr;

// Destroyed after every object of the programs: the end of the recording.
struct ending {
  ~ending() {
    if (here != nullptr) here->to->finish("exit");
  }
};
__attribute__((init_priority(101))) const ending the_end;

CUresult function_parameter(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  const auto& sizes = here->kernels[reinterpret_cast<const void*>(function)];
  if (index >= sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  for (std::size_t n = 0; n < index; ++n) *offset += (sizes[n] + 7) / 8 * 8;
  *bytes = sizes[index];
  return CUDA_SUCCESS;
}
CUresult current_pool(CUmemoryPool* pool, CUdevice) {
  *pool = reinterpret_cast<CUmemoryPool>(here->pool);
  return CUDA_SUCCESS;
}

// Both callbacks of the driver's call inside those of the runtime's, as CUPTI delivers them; `act`
// is the driver's work.
template <class Parameters, class Act>
cudaError_t call(CUpti_CallbackId id, const char* runtime, const char* driver_name,
                 Parameters& with, Act&& act, const char* symbol = nullptr) {
  CUresult answer = CUDA_SUCCESS;
  CUpti_CallbackData outer{}, inner{};
  outer.functionName = runtime;
  outer.callbackSite = CUPTI_API_ENTER;
  inner.functionName = driver_name;
  inner.functionParams = &with;
  inner.functionReturnValue = &answer;
  inner.symbolName = symbol;
  inner.callbackSite = CUPTI_API_ENTER;
  here->translate->runtime_call(outer, 0);
  here->translate->driver_call(id, inner);
  const call_result done = act();
  answer = static_cast<CUresult>(done.status);
  inner.callbackSite = CUPTI_API_EXIT;
  here->translate->driver_call(id, inner);
  outer.callbackSite = CUPTI_API_EXIT;
  here->translate->runtime_call(outer, 0);
  return static_cast<cudaError_t>(answer);
}

device_address* address_of(CUdeviceptr& at) {
  return reinterpret_cast<device_address*>(&at);
}
std::uint64_t bits(const void* at) {
  return reinterpret_cast<std::uint64_t>(at);
}
CUstream cu(cudaStream_t stream) {
  return reinterpret_cast<CUstream>(stream);
}
CUevent cu(cudaEvent_t event) {
  return reinterpret_cast<CUevent>(event);
}
stream_handle sim(cudaStream_t stream) {
  return reinterpret_cast<stream_handle>(stream);
}
event_handle sim(cudaEvent_t event) {
  return reinterpret_cast<event_handle>(event);
}

// Why pages move, by CUPTI's numbers.
constexpr std::uint64_t by_prefetch = 1, by_fault = 2;

void note_pages(std::uint64_t address, std::uint64_t bytes, trace::page_change change,
                std::uint64_t why = by_fault) {
  record::note made;
  made.at.what = trace::action::pages;
  made.at.of = trace::kind::managed;
  made.at.address = address;
  made.at.bytes = bytes;
  made.at.object = static_cast<std::uint64_t>(change);
  made.at.other = why;
  made.at.time_ns = here->to->now();
  made.at.duration_ns = 1000;
  made.in_ns = true;
  here->to->put(made);
}

std::pair<const std::uint64_t, managed_block>* managed_at(std::uint64_t address) {
  auto after = here->managed.upper_bound(address);
  if (after == here->managed.begin()) return nullptr;
  auto& found = *std::prev(after);
  return address < found.first + found.second.bytes ? &found : nullptr;
}

std::map<std::string, int (*)()>& programs() {
  static std::map<std::string, int (*)()> all;
  return all;
}

}  // namespace

shim_registration::shim_registration(const char* file, const char* variant, int (*body)()) {
  std::string name = std::strrchr(file, '/') == nullptr ? file : std::strrchr(file, '/') + 1;
  name = name.substr(0, name.find('.')) + variant;
  programs()[name] = body;
}

}  // namespace shim

using namespace shim;

const std::map<std::string, int (*)()>& shim_programs() {
  return shim::programs();
}

int shim_run(const std::string& name, const std::string& trace) {
  std::fflush(nullptr);  // what is buffered would be written by both
  const pid_t child = fork();
  if (child == 0) {
    here = new machine;
    simulated_gpu_options options;
    options.check =
        simulated_gpu_options::checker::off;  // the programs' faults are for `explain` to find
    auto gpu = simulated_gpu::create(options);
    if (!gpu) _exit(96);
    here->gpu = *gpu;
    record::settings how;
    how.path = trace;
    how.stacks = record::stack_choice::all;
    trace::metadata meta;
    meta.program = name;
    meta.recorded_by = "tests/programs over the simulated GPU";
    meta.simulated = true;
    auto to = record::recorder::start(how, meta);
    if (!to || !here->gpu->pool_create(&here->pool, memory_location::device, 0).ok()) _exit(97);
    here->to = std::move(*to);
    record::driver_entries entries;
    entries.function_parameter = function_parameter;
    entries.current_pool = current_pool;
    here->translate = std::make_unique<record::translator>(*here->to, entries);
    std::exit(programs().at(name)());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

namespace shim {

cudaError_t cudaMalloc(void** made, std::size_t bytes) {
  CUdeviceptr at = 0;
  cuMemAlloc_v2_params with{&at, bytes};
  const auto answer = call(ID(cuMemAlloc_v2), "cudaMalloc", "cuMemAlloc_v2", with,
                           [&] { return here->gpu->memory_allocate(address_of(at), bytes); });
  *made = reinterpret_cast<void*>(at);
  return answer;
}
cudaError_t cudaFree(void* at) {
  if (at == nullptr) return cudaSuccess;
  cuMemFree_v2_params with{bits(at)};
  const auto answer = call(ID(cuMemFree_v2), "cudaFree", "cuMemFree_v2", with,
                           [&] { return here->gpu->memory_free(bits(at)); });
  if (answer == cudaSuccess) here->managed.erase(bits(at));
  return answer;
}
cudaError_t cudaHostAlloc(void** made, std::size_t bytes, unsigned flags) {
  cuMemHostAlloc_params with{made, bytes, flags};
  return call(ID(cuMemHostAlloc), "cudaHostAlloc", "cuMemHostAlloc", with,
              [&] { return here->gpu->host_allocate(made, bytes, driver::host_flags::none); });
}
cudaError_t cudaFreeHost(void* at) {
  if (at == nullptr) return cudaSuccess;
  cuMemFreeHost_params with{at};
  return call(ID(cuMemFreeHost), "cudaFreeHost", "cuMemFreeHost", with,
              [&] { return here->gpu->host_free(at); });
}
cudaError_t cudaHostRegister(void* at, std::size_t bytes, unsigned flags) {
  cuMemHostRegister_v2_params with{at, bytes, flags};
  return call(ID(cuMemHostRegister_v2), "cudaHostRegister", "cuMemHostRegister_v2", with,
              [&] { return here->gpu->host_register(at, bytes); });
}
cudaError_t cudaHostUnregister(void* at) {
  cuMemHostUnregister_params with{at};
  return call(ID(cuMemHostUnregister), "cudaHostUnregister", "cuMemHostUnregister", with,
              [&] { return here->gpu->host_unregister(at); });
}
cudaError_t cudaMallocManaged(void** made, std::size_t bytes, unsigned flags) {
  CUdeviceptr at = 0;
  cuMemAllocManaged_params with{&at, bytes, flags};
  const auto answer = call(ID(cuMemAllocManaged), "cudaMallocManaged", "cuMemAllocManaged", with,
                           [&] { return here->gpu->managed_allocate(address_of(at), bytes); });
  if (answer == cudaSuccess) here->managed[at] = {bytes, false};
  *made = reinterpret_cast<void*>(at);
  return answer;
}
cudaError_t cudaMallocAsync(void** made, std::size_t bytes, cudaStream_t stream) {
  CUdeviceptr at = 0;
  cuMemAllocAsync_params with{&at, bytes, cu(stream)};
  const auto answer = call(ID(cuMemAllocAsync), "cudaMallocAsync", "cuMemAllocAsync", with, [&] {
    return here->gpu->pool_allocate(address_of(at), bytes, here->pool, sim(stream));
  });
  *made = reinterpret_cast<void*>(at);
  return answer;
}
cudaError_t cudaFreeAsync(void* at, cudaStream_t stream) {
  cuMemFreeAsync_params with{bits(at), cu(stream)};
  return call(ID(cuMemFreeAsync), "cudaFreeAsync", "cuMemFreeAsync", with,
              [&] { return here->gpu->pool_free(bits(at), sim(stream)); });
}

namespace {
template <class Parameters>
cudaError_t copy(CUpti_CallbackId id, const char* runtime, const char* name, Parameters with,
                 void* to, const void* from, std::size_t bytes, cudaStream_t stream, bool wait) {
  return call(id, runtime, name, with, [&] {
    const call_result done = here->gpu->copy_async(bits(to), bits(from), bytes, sim(stream));
    if (wait && done.ok()) return here->gpu->stream_synchronize(sim(stream));
    return done;
  });
}
}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return copy(ID(cuMemcpyHtoD_v2), "cudaMemcpy", "cuMemcpyHtoD_v2",
                  cuMemcpyHtoD_v2_params{bits(to), from, bytes}, to, from, bytes, nullptr, true);
    case cudaMemcpyDeviceToHost:
      return copy(ID(cuMemcpyDtoH_v2), "cudaMemcpy", "cuMemcpyDtoH_v2",
                  cuMemcpyDtoH_v2_params{to, bits(from), bytes}, to, from, bytes, nullptr, true);
    default:
      return copy(ID(cuMemcpyDtoD_v2), "cudaMemcpy", "cuMemcpyDtoD_v2",
                  cuMemcpyDtoD_v2_params{bits(to), bits(from), bytes}, to, from, bytes, nullptr,
                  true);
  }
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return copy(ID(cuMemcpyHtoDAsync_v2), "cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2",
                  cuMemcpyHtoDAsync_v2_params{bits(to), from, bytes, cu(stream)}, to, from, bytes,
                  stream, false);
    case cudaMemcpyDeviceToHost:
      return copy(ID(cuMemcpyDtoHAsync_v2), "cudaMemcpyAsync", "cuMemcpyDtoHAsync_v2",
                  cuMemcpyDtoHAsync_v2_params{to, bits(from), bytes, cu(stream)}, to, from, bytes,
                  stream, false);
    default:
      return copy(ID(cuMemcpyDtoDAsync_v2), "cudaMemcpyAsync", "cuMemcpyDtoDAsync_v2",
                  cuMemcpyDtoDAsync_v2_params{bits(to), bits(from), bytes, cu(stream)}, to, from,
                  bytes, stream, false);
  }
}
cudaError_t cudaMemset(void* at, int value, std::size_t bytes) {
  cuMemsetD8_v2_params with{bits(at), static_cast<unsigned char>(value), bytes};
  return call(ID(cuMemsetD8_v2), "cudaMemset", "cuMemsetD8_v2", with, [&] {
    return here->gpu->set_async(bits(at), static_cast<unsigned char>(value), bytes, nullptr);
  });
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  cuMemsetD8Async_params with{bits(at), static_cast<unsigned char>(value), bytes, cu(stream)};
  return call(ID(cuMemsetD8Async), "cudaMemsetAsync", "cuMemsetD8Async", with, [&] {
    return here->gpu->set_async(bits(at), static_cast<unsigned char>(value), bytes, sim(stream));
  });
}
cudaError_t cudaMemPrefetchAsync(const void* at, std::size_t bytes, cudaMemLocation to,
                                 unsigned flags, cudaStream_t stream) {
  const bool device = to.type == cudaMemLocationTypeDevice;
  cuMemPrefetchAsync_v2_params with{bits(at), bytes, {}, flags, cu(stream)};
  with.location.type = device ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
  if (auto* block = managed_at(bits(at)); block != nullptr && block->second.on_device != device) {
    block->second.on_device = device;
    note_pages(block->first, bytes,
               device ? trace::page_change::to_device : trace::page_change::to_host, by_prefetch);
  }
  return call(
      ID(cuMemPrefetchAsync_v2), "cudaMemPrefetchAsync", "cuMemPrefetchAsync_v2", with, [&] {
        return here->gpu->prefetch_async(
            bits(at), bytes, device ? memory_location::device : memory_location::host, sim(stream));
      });
}
cudaError_t cudaMemAdvise(const void* at, std::size_t bytes, cudaMemoryAdvise advice,
                          cudaMemLocation place) {
  const bool device = place.type == cudaMemLocationTypeDevice;
  cuMemAdvise_v2_params with{bits(at), bytes, static_cast<CUmem_advise>(advice), {}};
  with.location.type = device ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
  return call(ID(cuMemAdvise_v2), "cudaMemAdvise", "cuMemAdvise_v2", with, [&] {
    return here->gpu->advise(bits(at), bytes, static_cast<managed_advice>(advice - 1),
                             device ? memory_location::device : memory_location::host);
  });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags) {
  CUstream stream = nullptr;
  cuStreamCreate_params with{&stream, flags};
  const auto answer =
      call(ID(cuStreamCreate), "cudaStreamCreateWithFlags", "cuStreamCreate", with,
           [&] { return here->gpu->stream_create(reinterpret_cast<stream_handle*>(&stream)); });
  *made = reinterpret_cast<cudaStream_t>(stream);
  return answer;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cuStreamDestroy_v2_params with{cu(stream)};
  return call(ID(cuStreamDestroy_v2), "cudaStreamDestroy", "cuStreamDestroy_v2", with,
              [&] { return here->gpu->stream_destroy(sim(stream)); });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  cuStreamSynchronize_params with{cu(stream)};
  return call(ID(cuStreamSynchronize), "cudaStreamSynchronize", "cuStreamSynchronize", with,
              [&] { return here->gpu->stream_synchronize(sim(stream)); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  cuStreamWaitEvent_params with{cu(stream), cu(event), flags};
  return call(ID(cuStreamWaitEvent), "cudaStreamWaitEvent", "cuStreamWaitEvent", with,
              [&] { return here->gpu->stream_wait_event(sim(stream), sim(event)); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  return static_cast<cudaError_t>(
      here->gpu->event_create(reinterpret_cast<event_handle*>(made)).status);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return static_cast<cudaError_t>(here->gpu->event_destroy(sim(event)).status);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  cuEventRecord_params with{cu(event), cu(stream)};
  return call(ID(cuEventRecord), "cudaEventRecord", "cuEventRecord", with,
              [&] { return here->gpu->event_record(sim(event), sim(stream)); });
}
cudaError_t cudaDeviceSynchronize() {
  cuCtxSynchronize_v2_params with{nullptr};
  return call(ID(cuCtxSynchronize), "cudaDeviceSynchronize", "cuCtxSynchronize", with,
              [&] { return here->gpu->context_synchronize(); });
}
cudaError_t cudaDeviceReset() {
  cuDevicePrimaryCtxReset_v2_params with{0};
  return call(ID(cuDevicePrimaryCtxReset_v2), "cudaDeviceReset", "cuDevicePrimaryCtxReset_v2", with,
              [&] { return here->gpu->context_synchronize(); });
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = reinterpret_cast<cudaMemPool_t>(here->pool);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void* value) {
  cuMemPoolSetAttribute_params with{reinterpret_cast<CUmemoryPool>(pool),
                                    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, value};
  return call(ID(cuMemPoolSetAttribute), "cudaMemPoolSetAttribute", "cuMemPoolSetAttribute", with,
              [&] {
                return here->gpu->pool_set_release_threshold(
                    reinterpret_cast<pool_handle>(pool), *static_cast<const std::uint64_t*>(value));
              });
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t answer) {
  return answer == cudaSuccess ? "success" : "a refused call";
}

void shim_launch_with(const void* kernel, const char* name, cudaStream_t stream, void** arguments,
                      const std::size_t* sizes, std::size_t count) {
  here->kernels.try_emplace(kernel, sizes, sizes + count);
  cuLaunchKernel_params with{};
  with.f = reinterpret_cast<CUfunction>(const_cast<void*>(kernel));
  with.hStream = cu(stream);
  with.kernelParams = arguments;
  call(
      ID(cuLaunchKernel), "cudaLaunchKernel", "cuLaunchKernel", with,
      [&] { return here->gpu->spin(1000, sim(stream)); }, name);
  for (std::size_t n = 0; n < count; ++n) {
    if (sizes[n] != sizeof(std::uint64_t)) continue;
    auto* block = managed_at(*static_cast<const std::uint64_t*>(arguments[n]));
    if (block == nullptr || block->second.on_device) continue;
    block->second.on_device = true;
    note_pages(block->first, 0, trace::page_change::gpu_fault);
    note_pages(block->first, block->second.bytes, trace::page_change::to_device);
  }
}

void shim_cpu_touch(void* at, std::size_t bytes) {
  auto* block = managed_at(bits(at));
  if (block == nullptr) return;
  if (!block->second.touched) {
    // New pages come by faults, 64 KiB at a time at most, and nothing moves.
    block->second.touched = true;
    if (!block->second.on_device) {
      for (std::size_t n = 0; n < 12; ++n)
        note_pages(block->first + n * 4096, 0, trace::page_change::cpu_fault);
    }
  }
  if (!block->second.on_device) return;
  // Recorded times are the host's: apart from the calls around by more than a reader takes for
  // sure.
  usleep(200);
  block->second.on_device = false;
  note_pages(block->first, 0, trace::page_change::cpu_fault);
  note_pages(block->first, bytes, trace::page_change::to_host);
  usleep(200);
}

}  // namespace shim
