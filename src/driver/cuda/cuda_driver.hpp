// The real driver: one device's primary context behind the table of functions.
//
// Every function is the CUDA function of its name and no more: a load that asks whether this is a
// forked child, the call, and on failure a look whether the device is lost.
#pragma once
#include <atomic>

#include "base/fork.hpp"
#include "driver/cuda/kernels.hpp"
#include "driver/cuda/library.hpp"

namespace millpond::cuda {

class cuda_driver final : public driver {
 public:
  // Takes over one reference to the primary context, and the module in `kernels`.
  cuda_driver(const library& loaded, device_ordinal device, context_handle context,
              device_info info, const kernel_set& kernels);
  ~cuda_driver() override;

  bool simulated() const noexcept override { return false; }
  const device_info& info() const noexcept override { return info_; }
  bool alive() const noexcept override;

  call_result bind_thread() noexcept override;
  bool in_own_context() noexcept override;
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

  call_result pool_create(pool_handle* out, memory_location location,
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
  call_result physical_create(physical_handle* out, std::uint64_t bytes, memory_location location,
                              shareable share) noexcept override;
  call_result physical_release(physical_handle handle) noexcept override;
  call_result map(device_address at, std::uint64_t bytes, physical_handle handle) noexcept override;
  call_result unmap(device_address at, std::uint64_t bytes) noexcept override;
  call_result set_access(device_address at, std::uint64_t bytes,
                         memory_location location) noexcept override;
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
  bool id_outside_capture(stream_handle stream, std::uint64_t* id) noexcept override;
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
                     memory_location location) noexcept override;
  call_result host_function(stream_handle stream, void (*function)(void*),
                            void* data) noexcept override;

  call_result identity_write(std::span<const identity_block> blocks,
                             stream_handle stream) noexcept override;
  call_result identity_check(std::span<const identity_block> blocks, identity_report* report,
                             stream_handle stream) noexcept override;
  call_result spin(std::uint64_t nanoseconds, stream_handle stream) noexcept override;

 private:
  [[nodiscard]] bool in_forked_child() const noexcept { return fork_count() != forks_; }
  // Remembers a failure after which nothing on this device works.
  void note_failure(status_value status) const noexcept;

  template <class... Parameters, class... Arguments>
  call_result ask(const entry<status_value(Parameters...)>& call,
                  Arguments... arguments) const noexcept {
    if (in_forked_child()) [[unlikely]]
      return {driver_status::not_permitted, call.name_in_child};
    const status_value status = call.function(arguments...);
    if (status != 0) [[unlikely]]
      note_failure(status);
    return {static_cast<driver_status>(status), call.name};
  }
  call_result launch(function_handle kernel, unsigned ctas, unsigned threads, stream_handle stream,
                     void** parameters) const noexcept;

  const function_table functions_;
  const std::uint32_t forks_;  // when opened
  const context_handle context_;
  const device_ordinal device_;
  const device_info info_;
  const kernel_set kernels_;
  const mem_location device_location_;
  const mem_location host_location_;
  // Set once, by whoever sees the failure first; publishes nothing else.
  mutable std::atomic<bool> lost_{false};
};

// Where host memory near the device is asked for: its NUMA node, or the host at large without one.
[[nodiscard]] inline mem_location host_location_of(int numa_id) noexcept {
  if (numa_id < 0) return {location_host, 0};
  return {location_host_numa, numa_id};
}

// What physical memory at a place is created with.
[[nodiscard]] inline allocation_properties physical_properties(mem_location location,
                                                               int handle_types) noexcept {
  allocation_properties properties;
  properties.type = allocation_pinned;
  properties.handle_types = handle_types;
  properties.location = location;
  return properties;
}

}  // namespace millpond::cuda
