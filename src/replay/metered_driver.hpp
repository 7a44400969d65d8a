// A driver that passes every call on and keeps account of what a strategy asks: memory held now and
// at most, and the calls that wait for the whole device with the time they took. One indirect call
// is added to each.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "millpond/driver/driver.hpp"

namespace millpond::replay {

// What was asked of the driver so far. Bytes as asked, not as the driver rounds them.
struct driver_account {
  std::uint64_t device_bytes = 0;  // cuMemAlloc, managed, cuMemCreate on the device
  std::uint64_t peak_device_bytes =
      0;                         // the driver pools' own reservations are in pool_reserved_high
  std::uint64_t host_bytes = 0;  // cuMemHostAlloc, cuMemCreate on the host
  std::uint64_t peak_host_bytes = 0;
  std::uint64_t pool_reserved_high = 0;  // sum of all driver pools' high marks
  std::uint64_t waiting_calls = 0;       // cuMemFree, cuMemFreeHost, cuCtxSynchronize
  std::uint64_t waiting_ns = 0;          // time in them
};

// Thread-safe, as the driver below it.
class metered_driver final : public driver {
 public:
  metered_driver(std::shared_ptr<driver> gpu, std::function<std::uint64_t()> clock)
      : gpu_(std::move(gpu)), clock_(std::move(clock)) {}

  // Asks the driver pools that exist for their high marks.
  [[nodiscard]] driver_account account();

  bool simulated() const noexcept override { return gpu_->simulated(); }
  const device_info& info() const noexcept override { return gpu_->info(); }
  bool alive() const noexcept override { return gpu_->alive(); }
  call_result bind_thread() noexcept override { return gpu_->bind_thread(); }
  bool in_own_context() noexcept override { return gpu_->in_own_context(); }
  call_result enter_context(void** before) noexcept override { return gpu_->enter_context(before); }
  call_result leave_context(void* before) noexcept override { return gpu_->leave_context(before); }
  call_result memory_info(std::uint64_t* free, std::uint64_t* total) noexcept override {
    return gpu_->memory_info(free, total);
  }
  call_result context_synchronize() noexcept override;
  call_result memory_allocate(device_address* out, std::uint64_t bytes) noexcept override;
  call_result memory_free(device_address at) noexcept override;
  call_result host_allocate(void** out, std::uint64_t bytes, host_flags flags) noexcept override;
  call_result host_free(void* at) noexcept override;
  call_result host_register(void* at, std::uint64_t bytes) noexcept override;
  call_result host_unregister(void* at) noexcept override { return gpu_->host_unregister(at); }
  call_result managed_allocate(device_address* out, std::uint64_t bytes) noexcept override;
  call_result pointer_info(device_address at, pointer_facts* out) noexcept override {
    return gpu_->pointer_info(at, out);
  }
  call_result pool_create(pool_handle* out, memory_location location,
                          std::uint64_t max_bytes) noexcept override;
  call_result pool_destroy(pool_handle pool) noexcept override;
  call_result pool_set_release_threshold(pool_handle pool, std::uint64_t bytes) noexcept override {
    return gpu_->pool_set_release_threshold(pool, bytes);
  }
  call_result pool_get_usage(pool_handle pool, pool_usage* out) noexcept override {
    return gpu_->pool_get_usage(pool, out);
  }
  call_result pool_trim(pool_handle pool, std::uint64_t keep_bytes) noexcept override {
    return gpu_->pool_trim(pool, keep_bytes);
  }
  call_result pool_allocate(device_address* out, std::uint64_t bytes, pool_handle pool,
                            stream_handle stream) noexcept override {
    return gpu_->pool_allocate(out, bytes, pool, stream);
  }
  call_result pool_free(device_address at, stream_handle stream) noexcept override {
    return gpu_->pool_free(at, stream);
  }
  call_result address_reserve(device_address* out, std::uint64_t bytes,
                              std::uint64_t alignment) noexcept override {
    return gpu_->address_reserve(out, bytes, alignment);
  }
  call_result address_free(device_address at, std::uint64_t bytes) noexcept override {
    return gpu_->address_free(at, bytes);
  }
  call_result physical_create(physical_handle* out, std::uint64_t bytes, memory_location location,
                              shareable share) noexcept override;
  call_result physical_release(physical_handle handle) noexcept override;
  call_result map(device_address at, std::uint64_t bytes,
                  physical_handle handle) noexcept override {
    return gpu_->map(at, bytes, handle);
  }
  call_result unmap(device_address at, std::uint64_t bytes) noexcept override {
    return gpu_->unmap(at, bytes);
  }
  call_result set_access(device_address at, std::uint64_t bytes,
                         memory_location location) noexcept override {
    return gpu_->set_access(at, bytes, location);
  }
  call_result export_handle(int* fd, physical_handle handle) noexcept override {
    return gpu_->export_handle(fd, handle);
  }
  call_result import_handle(physical_handle* out, int fd) noexcept override {
    return gpu_->import_handle(out, fd);
  }
  call_result stream_create(stream_handle* out) noexcept override {
    return gpu_->stream_create(out);
  }
  call_result stream_destroy(stream_handle stream) noexcept override {
    return gpu_->stream_destroy(stream);
  }
  call_result stream_id(stream_handle stream, std::uint64_t* id) noexcept override {
    return gpu_->stream_id(stream, id);
  }
  call_result stream_device(stream_handle stream, int* ordinal) noexcept override {
    return gpu_->stream_device(stream, ordinal);
  }
  call_result stream_query(stream_handle stream) noexcept override {
    return gpu_->stream_query(stream);
  }
  call_result stream_synchronize(stream_handle stream) noexcept override {
    return gpu_->stream_synchronize(stream);
  }
  call_result stream_wait_event(stream_handle stream, event_handle event) noexcept override {
    return gpu_->stream_wait_event(stream, event);
  }
  call_result event_create(event_handle* out) noexcept override { return gpu_->event_create(out); }
  call_result event_destroy(event_handle event) noexcept override {
    return gpu_->event_destroy(event);
  }
  call_result event_record(event_handle event, stream_handle stream) noexcept override {
    return gpu_->event_record(event, stream);
  }
  call_result event_query(event_handle event) noexcept override { return gpu_->event_query(event); }
  call_result event_synchronize(event_handle event) noexcept override {
    return gpu_->event_synchronize(event);
  }
  call_result context_record_event(event_handle event) noexcept override {
    return gpu_->context_record_event(event);
  }
  call_result stream_capture(stream_handle stream, capture_info* out) noexcept override {
    return gpu_->stream_capture(stream, out);
  }
  call_result exchange_capture_mode(capture_mode* mode) noexcept override {
    return gpu_->exchange_capture_mode(mode);
  }
  call_result capture_begin(stream_handle stream, capture_mode mode) noexcept override {
    return gpu_->capture_begin(stream, mode);
  }
  call_result capture_end(stream_handle stream, graph_handle* out) noexcept override {
    return gpu_->capture_end(stream, out);
  }
  call_result graph_retain(graph_handle graph, void (*destroy)(void*),
                           void* data) noexcept override {
    return gpu_->graph_retain(graph, destroy, data);
  }
  call_result graph_instantiate(graph_exec_handle* out, graph_handle graph) noexcept override {
    return gpu_->graph_instantiate(out, graph);
  }
  call_result graph_launch(graph_exec_handle exec, stream_handle stream) noexcept override {
    return gpu_->graph_launch(exec, stream);
  }
  call_result graph_destroy(graph_handle graph) noexcept override {
    return gpu_->graph_destroy(graph);
  }
  call_result graph_exec_destroy(graph_exec_handle exec) noexcept override {
    return gpu_->graph_exec_destroy(exec);
  }
  call_result copy_async(device_address to, device_address from, std::uint64_t bytes,
                         stream_handle stream) noexcept override {
    return gpu_->copy_async(to, from, bytes, stream);
  }
  call_result set_async(device_address at, unsigned char value, std::uint64_t bytes,
                        stream_handle stream) noexcept override {
    return gpu_->set_async(at, value, bytes, stream);
  }
  call_result prefetch_async(device_address at, std::uint64_t bytes, memory_location to,
                             stream_handle stream) noexcept override {
    return gpu_->prefetch_async(at, bytes, to, stream);
  }
  call_result advise(device_address at, std::uint64_t bytes, managed_advice advice,
                     memory_location location) noexcept override {
    return gpu_->advise(at, bytes, advice, location);
  }
  call_result host_function(stream_handle stream, void (*function)(void*),
                            void* data) noexcept override {
    return gpu_->host_function(stream, function, data);
  }
  call_result identity_write(std::span<const identity_block> blocks,
                             stream_handle stream) noexcept override {
    return gpu_->identity_write(blocks, stream);
  }
  call_result identity_check(std::span<const identity_block> blocks, identity_report* report,
                             stream_handle stream) noexcept override {
    return gpu_->identity_check(blocks, report, stream);
  }
  call_result spin(std::uint64_t nanoseconds, stream_handle stream) noexcept override {
    return gpu_->spin(nanoseconds, stream);
  }

 private:
  // Remembers a piece of memory by the address or handle that gives it back.
  enum class memory_side_of : std::uint8_t { device, host };
  void take(std::unordered_map<std::uint64_t, std::uint64_t>& pieces, std::uint64_t key,
            std::uint64_t bytes, memory_side_of location);
  void give(std::unordered_map<std::uint64_t, std::uint64_t>& pieces, std::uint64_t key,
            memory_side_of location);
  template <class Call>
  call_result waiting(Call&& call) noexcept;

  std::shared_ptr<driver> gpu_;
  std::function<std::uint64_t()> clock_;
  std::mutex mutex_;  // a leaf: no driver call is made under it, except reading a pool's usage
  driver_account account_;
  std::unordered_map<std::uint64_t, std::uint64_t> device_, host_, device_handles_, host_handles_;
  std::unordered_map<pool_handle, std::uint64_t> pools_;  // high mark last seen
};

}  // namespace millpond::replay
