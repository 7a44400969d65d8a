// The driver: every operation that millpond takes from CUDA, as one table of functions for one
// device.
//
// Three drivers fill the table: the real one (open_cuda_driver: libcuda.so.1 loaded at run time),
// the simulated GPU (millpond/sim/simulated_gpu.hpp), and, in the tests, a lock-free null driver.
// Each function does what the CUDA driver function named beside it does, with its stream order and
// its errors; nothing here throws, waits unless it says so, or keeps state of its own.
//
// Thread-safety: every function may be called from any thread at once. On the real driver a thread
// must have called bind_thread() once before other calls.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "millpond/base/result.hpp"

// CUDA's own opaque types, so that a cudaStream_t is a stream_handle without a cast.
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUmemPoolHandle_st;

namespace millpond {

using stream_handle = CUstream_st*;
using event_handle = CUevent_st*;
using graph_handle = CUgraph_st*;
using graph_exec_handle = CUgraphExec_st*;
using pool_handle = CUmemPoolHandle_st*;
using physical_handle = std::uint64_t;  // CUmemGenericAllocationHandle
using device_address = std::uint64_t;   // CUdeviceptr

// CUDA's special stream handles: many streams under one value, so identity is always asked for.
inline const stream_handle legacy_stream = reinterpret_cast<stream_handle>(std::uintptr_t{1});
inline const stream_handle per_thread_stream = reinterpret_cast<stream_handle>(std::uintptr_t{2});

// CUresult's values, those that we tell apart. Others are carried as they are.
enum class driver_status : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  file_not_found = 301,
  operating_system = 304,
  invalid_handle = 400,
  illegal_state = 401,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  launch_failed = 719,
  not_permitted = 800,
  not_supported = 801,
  device_unavailable = 46,
  capture_unsupported = 900,
  capture_invalidated = 901,
  capture_unjoined = 904,
  capture_implicit = 906,
  captured_event = 907,
  capture_wrong_thread = 908,
  unknown = 999,
};

// What a call answered, with the name of the CUDA function, for every message about it.
struct [[nodiscard]] call_result {
  driver_status status = driver_status::success;
  const char* call = "";
  [[nodiscard]] bool ok() const noexcept { return status == driver_status::success; }
  explicit operator bool() const noexcept { return ok(); }
};
// "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)".
[[nodiscard]] std::string to_string(call_result answer);
// An error whose message is `doing` and the call: out_of_memory, not_supported or driver_failure.
[[nodiscard]] error to_error(call_result answer, const std::string& doing);

enum class memory_kind : std::uint8_t { device, driver_pool, pinned, managed, pageable };
[[nodiscard]] const char* to_string(memory_kind kind) noexcept;

enum class memory_location : std::uint8_t {
  device,
  host
};  // host: the host NUMA node nearest the device

enum class managed_advice : std::uint8_t {
  set_read_mostly,
  unset_read_mostly,
  set_preferred_location,
  unset_preferred_location,
  set_accessed_by,
  unset_accessed_by,
};

enum class capture_mode : int { global = 0, thread_local_ = 1, relaxed = 2 };
enum class capture_status : int { none = 0, active = 1, invalidated = 2 };

struct capture_info {
  capture_status status = capture_status::none;
  std::uint64_t id = 0;          // unique to the capture, in the process
  graph_handle graph = nullptr;  // the graph being built
};

// Facts about the device, read once when the driver is opened.
struct device_info {
  std::string name = {};  // "NVIDIA H200"; the simulated one says "simulated h200"
  int ordinal = 0;
  int driver_version = 0;  // 13000 for 13.0; 0 on a simulated GPU
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t granularity = 0;       // of physical memory and mappings, device; 0 without VMM
  std::uint64_t host_granularity = 0;  // the same for host memory by cuMemCreate; 0 where refused
  bool virtual_memory = false;
  bool memory_pools = false;
  bool concurrent_managed_access = false;
  bool pageable_memory_access = false;  // HMM or ATS
  bool posix_fd_export = false;
  bool unified_addressing = false;
  int host_numa_id = -1;
  std::uint64_t l2_bytes = 0;
};

// One block that an identity kernel writes or checks: every 8-byte word (and the tail bytes) is a
// function of the identity and the word's index.
struct identity_block {
  device_address address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t identity = 0;
};
// Where a check kernel reports. In memory that host and device both see (pinned or managed).
struct identity_report {
  std::uint64_t mismatches = 0;  // words that differ, added up over all checks
  std::uint64_t expected = 0;    // identity that the first mismatch should have had
  std::uint64_t found_word = 0;  // the word that was there
  std::uint64_t address = 0;     // where the first mismatch is
};
inline constexpr std::size_t max_identity_blocks = 64;  // blocks a launch

class driver {
 public:
  virtual ~driver() = default;
  driver() = default;
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;

  [[nodiscard]] virtual bool simulated() const noexcept = 0;
  [[nodiscard]] virtual const device_info& info() const noexcept = 0;
  // False once the device or the library is gone (process exit, lost device): give nothing back
  // then.
  [[nodiscard]] virtual bool alive() const noexcept = 0;

  // Context.
  virtual call_result bind_thread() noexcept = 0;  // cuCtxSetCurrent
  // Whether the driver's own context is current on the calling thread: the handles 0, 1 and 2 then
  // name its streams, and what asks for the current context means it. No driver call waits here.
  [[nodiscard]] virtual bool in_own_context() noexcept { return true; }
  // Makes the driver's own context current. *before: the one that was, for leave_context; nullptr
  // where it was the own one already, or none, and then leave_context does nothing.
  // cuCtxSynchronize, cuEventCreate and the calls that make memory mean the current context.
  virtual call_result enter_context(void** before) noexcept {
    *before = nullptr;
    return {};
  }
  virtual call_result leave_context(void* before) noexcept {
    static_cast<void>(before);
    return {};
  }
  virtual call_result memory_info(std::uint64_t* free,
                                  std::uint64_t* total) noexcept = 0;  // cuMemGetInfo
  virtual call_result context_synchronize() noexcept = 0;              // cuCtxSynchronize; waits

  // Plain kinds.
  virtual call_result memory_allocate(device_address* out,
                                      std::uint64_t bytes) noexcept = 0;  // cuMemAlloc
  virtual call_result memory_free(
      device_address at) noexcept = 0;  // cuMemFree; waits for the device
  // cuMemHostAlloc, portable and mapped; write_combined where asked.
  enum class host_flags : std::uint8_t { none, write_combined };
  virtual call_result host_allocate(void** out, std::uint64_t bytes, host_flags flags) noexcept = 0;
  virtual call_result host_free(void* at) noexcept = 0;  // cuMemFreeHost; waits for the device
  virtual call_result host_register(void* at,
                                    std::uint64_t bytes) noexcept = 0;  // cuMemHostRegister
  virtual call_result host_unregister(void* at) noexcept = 0;
  virtual call_result managed_allocate(device_address* out, std::uint64_t bytes) noexcept = 0;
  // What the driver knows of a pointer (cuPointerGetAttributes): kind and the start and length of
  // its allocation; pageable with range 0 for one it has never seen.
  struct pointer_facts {
    memory_kind kind = memory_kind::pageable;
    device_address start = 0;
    std::uint64_t bytes = 0;
  };
  virtual call_result pointer_info(device_address at, pointer_facts* out) noexcept = 0;

  // Driver pools.
  virtual call_result pool_create(pool_handle* out, memory_location location,
                                  std::uint64_t max_bytes) noexcept = 0;
  virtual call_result pool_destroy(pool_handle pool) noexcept = 0;
  virtual call_result pool_set_release_threshold(pool_handle pool,
                                                 std::uint64_t bytes) noexcept = 0;
  struct pool_usage {
    std::uint64_t reserved = 0, reserved_high = 0, used = 0, used_high = 0;
  };
  virtual call_result pool_get_usage(pool_handle pool, pool_usage* out) noexcept = 0;
  virtual call_result pool_trim(pool_handle pool, std::uint64_t keep_bytes) noexcept = 0;
  // cuMemAllocFromPoolAsync / cuMemFreeAsync: stream-ordered.
  virtual call_result pool_allocate(device_address* out, std::uint64_t bytes, pool_handle pool,
                                    stream_handle stream) noexcept = 0;
  virtual call_result pool_free(device_address at, stream_handle stream) noexcept = 0;

  // Virtual memory. Sizes are multiples of the place's granularity; a mapping covers a whole
  // handle.
  virtual call_result address_reserve(device_address* out, std::uint64_t bytes,
                                      std::uint64_t alignment) noexcept = 0;
  virtual call_result address_free(device_address at, std::uint64_t bytes) noexcept = 0;
  enum class shareable : std::uint8_t { no, posix_fd };
  virtual call_result physical_create(physical_handle* out, std::uint64_t bytes,
                                      memory_location location,
                                      shareable share) noexcept = 0;  // cuMemCreate
  virtual call_result physical_release(physical_handle handle) noexcept = 0;
  virtual call_result map(device_address at, std::uint64_t bytes,
                          physical_handle handle) noexcept = 0;
  virtual call_result unmap(device_address at,
                            std::uint64_t bytes) noexcept = 0;  // not stream-ordered
  // Read and write access for the device, and for the CPU too where the range is host memory.
  virtual call_result set_access(device_address at, std::uint64_t bytes,
                                 memory_location location) noexcept = 0;
  virtual call_result export_handle(int* fd, physical_handle handle) noexcept = 0;
  virtual call_result import_handle(physical_handle* out, int fd) noexcept = 0;

  // Streams and events.
  virtual call_result stream_create(stream_handle* out) noexcept = 0;  // non-blocking
  virtual call_result stream_destroy(stream_handle stream) noexcept = 0;
  virtual call_result stream_id(stream_handle stream,
                                std::uint64_t* id) noexcept = 0;  // cuStreamGetId
  virtual call_result stream_device(stream_handle stream, int* ordinal) noexcept = 0;
  virtual call_result stream_query(stream_handle stream) noexcept = 0;  // success or not_ready
  virtual call_result stream_synchronize(stream_handle stream) noexcept = 0;  // waits
  virtual call_result stream_wait_event(stream_handle stream, event_handle event) noexcept = 0;
  virtual call_result event_create(event_handle* out) noexcept = 0;  // no timing
  virtual call_result event_destroy(event_handle event) noexcept = 0;
  virtual call_result event_record(event_handle event, stream_handle stream) noexcept = 0;
  virtual call_result event_query(event_handle event) noexcept = 0;        // success or not_ready
  virtual call_result event_synchronize(event_handle event) noexcept = 0;  // waits
  // cuCtxRecordEvent: covers all work of the context so far, a destroyed stream's too. Refused, and
  // breaks the capture, while any stream captures.
  virtual call_result context_record_event(event_handle event) noexcept = 0;

  // Capture and graphs.
  virtual call_result stream_capture(stream_handle stream,
                                     capture_info* out) noexcept = 0;  // cuStreamGetCaptureInfo
  // Both questions of a plain allocation in one call, the capture first: asking a capturing
  // stream's identity ends its capture. True, and *id set, where the stream captures nothing;
  // otherwise stream_capture() and stream_id() say why not.
  virtual bool id_outside_capture(stream_handle stream, std::uint64_t* id) noexcept {
    capture_info capture;
    return stream_capture(stream, &capture).ok() && capture.status == capture_status::none &&
           stream_id(stream, id).ok();
  }
  // Swaps the calling thread's capture interaction mode with *mode
  // (cuThreadExchangeStreamCaptureMode).
  virtual call_result exchange_capture_mode(capture_mode* mode) noexcept = 0;
  virtual call_result capture_begin(stream_handle stream, capture_mode mode) noexcept = 0;
  virtual call_result capture_end(stream_handle stream, graph_handle* out) noexcept = 0;
  // Calls destroy(data) once, from any thread and at any time, when the graph and everything made
  // from it is gone, an aborted capture's graph too (cuUserObjectCreate + cuGraphRetainUserObject).
  // destroy must make no driver call.
  virtual call_result graph_retain(graph_handle graph, void (*destroy)(void*),
                                   void* data) noexcept = 0;
  virtual call_result graph_instantiate(graph_exec_handle* out, graph_handle graph) noexcept = 0;
  virtual call_result graph_launch(graph_exec_handle exec, stream_handle stream) noexcept = 0;
  virtual call_result graph_destroy(graph_handle graph) noexcept = 0;
  virtual call_result graph_exec_destroy(graph_exec_handle exec) noexcept = 0;

  // Work. Addresses may be device, managed, pinned, and (for copies) pageable memory.
  virtual call_result copy_async(device_address to, device_address from, std::uint64_t bytes,
                                 stream_handle stream) noexcept = 0;
  virtual call_result set_async(device_address at, unsigned char value, std::uint64_t bytes,
                                stream_handle stream) noexcept = 0;
  virtual call_result prefetch_async(device_address at, std::uint64_t bytes, memory_location to,
                                     stream_handle stream) noexcept = 0;
  virtual call_result advise(device_address at, std::uint64_t bytes, managed_advice advice,
                             memory_location location) noexcept = 0;
  virtual call_result host_function(stream_handle stream, void (*function)(void*),
                                    void* data) noexcept = 0;

  // The identity kernels: at most max_identity_blocks blocks a launch, any sizes and alignments.
  virtual call_result identity_write(std::span<const identity_block> blocks,
                                     stream_handle stream) noexcept = 0;
  virtual call_result identity_check(std::span<const identity_block> blocks,
                                     identity_report* report, stream_handle stream) noexcept = 0;
  // A kernel that keeps one multiprocessor of the stream busy for about this long.
  virtual call_result spin(std::uint64_t nanoseconds, stream_handle stream) noexcept = 0;
};

// Opens device `ordinal` of the real driver and its primary context. Errors: no library, a driver
// too old (12.5 is needed), no device, no such device, a function missing; each message says what
// to do.
[[nodiscard]] result<std::shared_ptr<driver>> open_cuda_driver(int ordinal);
// Devices that the real driver sees; the same errors.
[[nodiscard]] result<int> count_cuda_devices();

// The word that identity kernels write at word `index` of a block: the same on host, device,
// simulator.
[[nodiscard]] constexpr std::uint64_t identity_word(std::uint64_t identity,
                                                    std::uint64_t index) noexcept {
  std::uint64_t z = identity * 0x9e3779b97f4a7c15ULL + index;
  z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93ULL;
  return z ^ (z >> 32);
}

}  // namespace millpond
