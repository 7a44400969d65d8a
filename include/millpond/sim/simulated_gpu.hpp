// The simulated GPU: a driver with no device behind it, in virtual time, deterministic from a seed.
//
// It is three things at once. A model: every call costs host time from a profile, every operation
// takes device time, and its effect on memory happens when it completes, so that a program that
// races sees corruption. A checker: from the blocks that an allocator hands out it finds every
// reuse that its stream order does not allow, whatever the timing happened to be. A fault injector:
// any call can fail. docs/internals/simulated_gpu.md says what is modelled, from which measurement,
// and what is not.
//
// Thread-safe by one mutex. There is one host clock, shared by all threads. A run is deterministic
// when one OS thread makes the calls (it may speak for many logical threads, see set_thread).
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"

struct CUctx_st;  // CUDA's own opaque type, so that a CUcontext is a context without a cast

namespace millpond {

// The host time of one call at one size. A call's time is sampled between the two: half of the
// samples are at most p50, one in a hundred is over p99.
struct cost_point {
  std::uint64_t bytes = 0;
  double p50_ns = 0;
  double p99_ns = 0;
};
// Points by rising size. Between two points time is on the straight line through both; below the
// first it is the first's; above the last it goes on along the last line, if that rises.
struct cost_table {
  std::vector<cost_point> points = {};
  [[nodiscard]] double p50_ns(std::uint64_t bytes) const noexcept;
  [[nodiscard]] double p99_ns(std::uint64_t bytes) const noexcept;
};

// What the simulator knows of one machine. A profile file is TOML with these names.
struct gpu_profile {
  std::string name = {};    // "h200"
  std::string source = {};  // where the numbers come from
  // name, sizes and abilities; `name` is printed with "simulated " before it
  device_info device = {};
  std::uint64_t host_bytes = 0;  // host memory that can be pinned
  // Host time by CUDA function name ("cuMemAlloc"); a call without a table costs `default_call_ns`.
  // cuMemSetAccess, cuMemUnmap and cuMemMap are by the bytes of each handle in the range, and add
  // up.
  std::map<std::string, cost_table, std::less<>> calls = {};
  double default_call_ns = 200;
  // Driver pools: a request that is served from what the pool has reserved costs the calls' own
  // tables; one that makes it reserve more adds pool_growth by the bytes added.
  cost_table pool_growth = {};
  cost_table pool_shrink = {};  // of the synchronise or trim that gives so many bytes back
  double after_pageable_factor =
      1;  // on these calls and an allocator's own paths, just after a pageable copy
  std::uint64_t pool_step_bytes = 0;  // pools reserve in multiples of this
  // Device time.
  double launch_latency_ns = 0;   // from the call's end to the start on an idle stream
  double kernel_overhead_ns = 0;  // of the shortest kernel
  double memory_bytes_per_s = 0;  // a kernel that reads or writes device memory in order
  double host_to_device_bytes_per_s = 0, device_to_host_bytes_per_s = 0;  // pinned
  double pageable_to_device_bytes_per_s = 0, device_to_pageable_bytes_per_s = 0;
  double host_memory_bytes_per_s = 0;  // a kernel straight on pinned memory
  // Managed memory, 256 MiB at once: what the page machine (docs/how_to/managed_memory.md) is
  // scaled by.
  double managed_fault_in_bytes_per_s = 0;  // faulted to the device by a kernel
  double managed_together_share = 1;        // of that time, where one kernel touches several blocks
  double managed_prefetch_bytes_per_s = 0;  // cuMemPrefetchAsync to the device
  double managed_prefetch_back_bytes_per_s = 0;  // to the host
  double managed_fault_back_bytes_per_s = 0;     // faulted back by the CPU
  // An allocator's own host time a path, measured on the profile's machine, and the file it is
  // from.
  std::map<std::string, double, std::less<>> allocator_path_ns = {};
  std::string allocator_path_source = {};

  // One NVIDIA H200, driver 580.159, measured 2026-11-30.
  [[nodiscard]] static gpu_profile h200();
};
// Reads a profile file. Errors: bad_input with "FILE:LINE:", what was expected and what was there.
[[nodiscard]] result<gpu_profile> load_profile(const std::string& path);
[[nodiscard]] result<void> save_profile(const gpu_profile& profile, const std::string& path);
// "h200" (built in) or the path of a profile file.
[[nodiscard]] result<gpu_profile> find_profile(const std::string& name_or_path);

struct simulated_gpu_options {
  gpu_profile profile = gpu_profile::h200();
  std::uint64_t memory_bytes = 0;  // device memory; 0: the profile's
  std::uint64_t host_bytes = 0;    // host memory that can be pinned; 0: the profile's
  std::uint64_t seed = 1;          // of the sampled call times
  // tags: device memory is only numbers; what identity kernels, memsets and copies write is
  // remembered
  //   as a tag a range, so that 100 GB replay in a few MB. The addresses must not be dereferenced.
  // bytes: all memory is really there (a sparse file mapped wherever it is mapped), and a kernel's
  // body may use it. In both, pinned, managed and host-place memory is real for the CPU.
  enum class contents : std::uint8_t { tags, bytes };
  contents mode = contents::tags;
  enum class checker : std::uint8_t { off, on };
  checker check = checker::on;
  // Also report two streams' kernels that touch one live block in no order (a bug of the program
  // rather than of the allocator; off because a recorded trace does not hold all of the program's
  // order).
  enum class races : std::uint8_t { ignored, reported };
  races race_check = races::ignored;
  // The capture rules of the checker: pollution, calls that a capture forbids.
  enum class capture_rules : std::uint8_t { ignored, checked };
  capture_rules check_capture = capture_rules::checked;
  // What a thread has that has set no context: the primary one, or none, as on a card, where nearly
  // every call then answers CUDA_ERROR_INVALID_CONTEXT. The thread that makes the simulated GPU has
  // the primary.
  enum class new_threads : std::uint8_t { have_primary, have_no_context };
  new_threads threads = new_threads::have_primary;
  // Two addresses of one physical page in one kernel are reported when they come nearer than this.
  std::uint64_t alias_granule = std::uint64_t{2} << 20;
  // Sampled tails, or every call at its p50.
  enum class call_times : std::uint8_t { sampled, median };
  call_times times = call_times::sampled;
};

// A range that a kernel touches, and how.
enum class access_kind : std::uint8_t { read, write, read_write };
struct kernel_access {
  device_address address = 0;
  std::uint64_t bytes = 0;
  access_kind kind = access_kind::read;
};
struct kernel_description {
  std::string name = {};
  std::uint64_t duration_ns = 0;  // on top of the profile's kernel_overhead_ns
  std::vector<kernel_access> accesses = {};
  // Run when the kernel completes, with the simulator's lock held: it makes no driver call and
  // takes no lock that is held over one. May use device addresses as pointers in bytes mode only.
  std::function<void()> body = {};
};

// One broken rule. The rules' names are in docs/internals/simulated_gpu.md.
struct violation {
  std::string rule = {};              // "reuse_before_order"
  std::string first_call_site = {};   // where the block, access or mapping came from
  std::string second_call_site = {};  // the call that broke the rule
  std::string text = {};              // one sentence with addresses, streams and both places
  std::uint64_t time_ns = 0;
};

// One planned fault. It counts the calls that match from set_faults on, the first is 1.
struct fault {
  // A CUDA function name ("cuMemCreate"); "allocation": any call that takes memory; "": any call at
  // all.
  std::string call = {};
  std::uint64_t at = 1;
  std::uint64_t count = 1;  // this many matching calls in a row
  enum class what : std::uint8_t { fail, slow, lose_device };
  what effect = what::fail;
  driver_status status = driver_status::out_of_memory;  // of a failing call
  std::uint64_t slow_ns = 0;                            // added to a slow call
};
struct fault_plan {
  std::vector<fault> faults = {};
  // Physical memory in one piece: larger requests (a handle, an allocation, a pool's growth) are
  // out of memory.
  std::uint64_t largest_piece = std::numeric_limits<std::uint64_t>::max();
  // Device memory that another process has taken.
  std::uint64_t taken_bytes = 0;
};

// Objects of the driver that exist now.
struct live_objects {
  std::uint64_t device_allocations = 0, host_allocations = 0, managed_allocations = 0;
  std::uint64_t registered_ranges = 0, pool_blocks = 0, pools = 0;
  std::uint64_t handles = 0, reservations = 0, mappings = 0;
  std::uint64_t streams = 0, events = 0, graphs = 0, graph_execs = 0, captures = 0;
  [[nodiscard]] std::uint64_t total() const noexcept;
};
// "2 handles, 1 event"; "nothing".
[[nodiscard]] std::string to_string(const live_objects& objects);

// What managed memory has done so far, as the card's counters would tell it, exactly.
struct managed_counters {
  std::uint64_t device_faults = 0;  // of kernels, duplicates merged
  std::uint64_t host_faults = 0;    // of the CPU
  std::uint64_t bytes_to_device = 0, bytes_to_host = 0;
  std::uint64_t remote_bytes = 0;  // touched by kernels over the link
  std::uint64_t collapses = 0;     // pages duplicated for reading and then written
  std::uint64_t throttles = 0;     // faults delayed because their pages moved to and fro
};

struct call_count {
  std::string call = {};
  std::uint64_t count = 0;
  std::uint64_t host_ns = 0;  // virtual time spent in it, waits included
};

class simulated_gpu final : public driver {
 public:
  // Errors: invalid_argument for a profile that makes no sense, driver_failure where the system
  // gives no memory.
  [[nodiscard]] static result<std::shared_ptr<simulated_gpu>> create(
      simulated_gpu_options options = {});
  ~simulated_gpu() override;
  class state;  // the inside, src/driver/sim/state.hpp

  // --- Time
  // -----------------------------------------------------------------------------------------
  // Virtual host nanoseconds since creation.
  [[nodiscard]] std::uint64_t now_ns() const;
  // The host computes for this long; the device goes on meanwhile.
  void advance(std::uint64_t nanoseconds);
  // Until everything on the device is done, without telling the checker that the host saw it.
  void drain();

  // --- Threads
  // -------------------------------------------------------------------------------------- From now
  // on, calls from this OS thread count as made by logical thread `number` (below 2^32), for
  // per-thread streams and capture modes of every simulated GPU. Without it a thread has a number
  // of its own.
  static void set_thread(std::uint64_t number) noexcept;
  [[nodiscard]] static std::uint64_t thread_number() noexcept;
  // While one lives on an OS thread, that thread's calls are the library's and not the program's:
  // none of them may end up in a capture (rule capture_pollution).
  class library_scope {
   public:
    library_scope() noexcept;
    ~library_scope();
    library_scope(const library_scope&) = delete;
    library_scope& operator=(const library_scope&) = delete;
  };

  // --- Contexts
  // ------------------------------------------------------------------------------------- Each
  // thread has a stack of contexts of which the last is current. Calls that ask for the current
  // context (cuCtxSynchronize, cuEventCreate, cuStreamCreate, the default streams 0, 1 and 2) get
  // the calling thread's. Errors are the driver's: CUDA_ERROR_INVALID_CONTEXT (201) for what is no
  // context, for the end of the primary one, and for a call on a thread that has none;
  // CUDA_ERROR_CONTEXT_IS_DESTROYED (709) where the current one is gone.
  using context = CUctx_st*;
  [[nodiscard]] context primary_context() const noexcept;
  // cuCtxGetCurrent; null where there is none.
  [[nodiscard]] context current_context() const noexcept;
  // cuCtxCreate: one beside the primary, current on this thread from now on.
  call_result context_create(context* out) noexcept;
  // cuGreenCtxCreate and cuCtxFromGreenCtx: a part of the primary, current nowhere yet.
  call_result green_context_create(context* out) noexcept;
  // cuCtxDestroy, cuGreenCtxDestroy: waits for its work; its streams and events are gone then.
  call_result context_destroy(context which) noexcept;
  call_result context_push(context which) noexcept;         // cuCtxPushCurrent
  call_result context_pop(context* out) noexcept;           // cuCtxPopCurrent; out may be null
  call_result context_set_current(context which) noexcept;  // cuCtxSetCurrent; null: none

  // --- Work
  // -----------------------------------------------------------------------------------------
  // cuLaunchKernel with a host function as the kernel. illegal_address (and a lost device, as on
  // the card) when a range is not mapped and accessible.
  call_result launch(kernel_description kernel, stream_handle stream);

  // --- What the checker learns
  // --------------------------------------------------------------------- A block that the
  // allocator under test handed out for `stream` just now.
  void note_allocate(device_address at, std::uint64_t bytes, stream_handle stream,
                     std::string_view call_site);
  // The program frees it on `stream`; noted before the allocator is called.
  void note_free(device_address at, std::uint64_t bytes, stream_handle stream,
                 std::string_view call_site);
  // The program let the allocator know that `stream` uses the block too (record_use): all that
  // `stream` has queued when the block is freed must be done before the block is reused.
  void note_use(device_address at, stream_handle stream, std::string_view call_site);
  // Memory of capture `one` may be handed out in capture `other` while both graphs live (one
  // private arena), and what they never freed is the program's when they are gone, since the arena
  // may be held. The first capture of an arena is noted with itself.
  void note_shared_captures(std::uint64_t one, std::uint64_t other);
  // Nobody holds the arena of `capture` any more: what its captures never freed ends with the last
  // of their graphs.
  void note_arena_let_go(std::uint64_t capture);
  // Broken rules so far, oldest first; at most the first thousand are kept, violation_count() has
  // them all.
  [[nodiscard]] std::vector<violation> violations() const;
  [[nodiscard]] std::uint64_t violation_count() const;
  void clear_violations();

  // --- Faults
  // ---------------------------------------------------------------------------------------
  // Replaces the plan; counting starts again. A lost device stays lost.
  void set_faults(fault_plan plan);

  // --- What happened
  // --------------------------------------------------------------------------------
  [[nodiscard]] std::uint64_t calls(std::string_view call) const;  // by CUDA function name
  [[nodiscard]] std::uint64_t total_calls() const;
  [[nodiscard]] std::vector<call_count> call_table() const;  // by name
  [[nodiscard]] std::uint64_t call_time_ns() const;          // host time in all calls
  [[nodiscard]] std::uint64_t device_waits() const;  // calls that waited for the whole device
  void reset_counters();                             // the counters above, and physical_peak
  [[nodiscard]] live_objects leaks() const;
  [[nodiscard]] std::uint64_t physical_bytes() const;  // device memory taken now
  [[nodiscard]] std::uint64_t physical_peak() const;
  [[nodiscard]] std::uint64_t host_memory_bytes() const;  // pinned now
  [[nodiscard]] const gpu_profile& profile() const noexcept;
  [[nodiscard]] const simulated_gpu_options& options() const noexcept;
  // Bytes of a managed range that are on the device now, by 2 MiB blocks.
  [[nodiscard]] std::uint64_t managed_resident_bytes(device_address at, std::uint64_t bytes) const;
  // The CPU touches every page of a managed range in order: what the device has of it comes back,
  // at the cost of the faults; pages that nobody has touched are made on the host.
  void touch_managed(device_address at, std::uint64_t bytes, access_kind kind = access_kind::write);
  [[nodiscard]] managed_counters managed_counts() const;

  // --- The driver
  // -----------------------------------------------------------------------------------
  bool simulated() const noexcept override;
  const device_info& info() const noexcept override;
  bool alive() const noexcept override;
  call_result bind_thread() noexcept override;
  // The own context is the primary one. Where it is current already no call is made and no time
  // goes by, as the driver interface promises; otherwise it is a counted cuCtxSetCurrent.
  [[nodiscard]] bool in_own_context() noexcept override;
  call_result enter_context(void** before) noexcept override;
  call_result leave_context(void* before) noexcept override;
  call_result memory_info(std::uint64_t* free, std::uint64_t* total) noexcept override;
  call_result context_synchronize() noexcept override;
  call_result memory_allocate(device_address* out, std::uint64_t bytes) noexcept override;
  call_result memory_free(device_address at) noexcept override;
  call_result host_allocate(void** out, std::uint64_t bytes, host_flags flags) noexcept override;
  call_result host_free(void* at) noexcept override;
  call_result host_register(void* at, std::uint64_t bytes) noexcept override;
  call_result host_unregister(void* at) noexcept override;
  call_result managed_allocate(device_address* out, std::uint64_t bytes) noexcept override;
  call_result pointer_info(device_address at, pointer_facts* out) noexcept override;
  call_result pool_create(pool_handle* out, memory_location call_site,
                          std::uint64_t max_bytes) noexcept override;
  call_result pool_destroy(pool_handle pool) noexcept override;
  call_result pool_set_release_threshold(pool_handle pool, std::uint64_t bytes) noexcept override;
  call_result pool_get_usage(pool_handle pool, pool_usage* out) noexcept override;
  call_result pool_trim(pool_handle pool, std::uint64_t keep_bytes) noexcept override;
  call_result pool_allocate(device_address* out, std::uint64_t bytes, pool_handle pool,
                            stream_handle stream) noexcept override;
  call_result pool_free(device_address at, stream_handle stream) noexcept override;
  call_result address_reserve(device_address* out, std::uint64_t bytes,
                              std::uint64_t alignment) noexcept override;
  call_result address_free(device_address at, std::uint64_t bytes) noexcept override;
  call_result physical_create(physical_handle* out, std::uint64_t bytes, memory_location call_site,
                              shareable share) noexcept override;
  call_result physical_release(physical_handle handle) noexcept override;
  call_result map(device_address at, std::uint64_t bytes, physical_handle handle) noexcept override;
  call_result unmap(device_address at, std::uint64_t bytes) noexcept override;
  call_result set_access(device_address at, std::uint64_t bytes,
                         memory_location call_site) noexcept override;
  call_result export_handle(int* fd, physical_handle handle) noexcept override;
  call_result import_handle(physical_handle* out, int fd) noexcept override;
  call_result stream_create(stream_handle* out) noexcept override;
  call_result stream_destroy(stream_handle stream) noexcept override;
  call_result stream_id(stream_handle stream, std::uint64_t* id) noexcept override;
  call_result stream_device(stream_handle stream, int* ordinal) noexcept override;
  call_result stream_query(stream_handle stream) noexcept override;
  call_result stream_synchronize(stream_handle stream) noexcept override;
  call_result stream_wait_event(stream_handle stream, event_handle event) noexcept override;
  call_result event_create(event_handle* out) noexcept override;
  call_result event_destroy(event_handle event) noexcept override;
  call_result event_record(event_handle event, stream_handle stream) noexcept override;
  call_result event_query(event_handle event) noexcept override;
  call_result event_synchronize(event_handle event) noexcept override;
  call_result context_record_event(event_handle event) noexcept override;
  call_result stream_capture(stream_handle stream, capture_info* out) noexcept override;
  call_result exchange_capture_mode(capture_mode* mode) noexcept override;
  call_result capture_begin(stream_handle stream, capture_mode mode) noexcept override;
  call_result capture_end(stream_handle stream, graph_handle* out) noexcept override;
  call_result graph_retain(graph_handle graph, void (*destroy)(void*),
                           void* data) noexcept override;
  call_result graph_instantiate(graph_exec_handle* out, graph_handle graph) noexcept override;
  call_result graph_launch(graph_exec_handle exec, stream_handle stream) noexcept override;
  call_result graph_destroy(graph_handle graph) noexcept override;
  call_result graph_exec_destroy(graph_exec_handle exec) noexcept override;
  call_result copy_async(device_address to, device_address from, std::uint64_t bytes,
                         stream_handle stream) noexcept override;
  call_result set_async(device_address at, unsigned char value, std::uint64_t bytes,
                        stream_handle stream) noexcept override;
  call_result prefetch_async(device_address at, std::uint64_t bytes, memory_location to,
                             stream_handle stream) noexcept override;
  call_result advise(device_address at, std::uint64_t bytes, managed_advice advice,
                     memory_location call_site) noexcept override;
  call_result host_function(stream_handle stream, void (*function)(void*),
                            void* data) noexcept override;
  call_result identity_write(std::span<const identity_block> blocks,
                             stream_handle stream) noexcept override;
  call_result identity_check(std::span<const identity_block> blocks, identity_report* report,
                             stream_handle stream) noexcept override;
  call_result spin(std::uint64_t nanoseconds, stream_handle stream) noexcept override;

 private:
  explicit simulated_gpu(std::unique_ptr<state> state);
  std::unique_ptr<state> state_;
};

}  // namespace millpond
