// A driver over another: every call goes through unless a test's class changes it or refuses it.
#pragma once
#include <memory>
#include <utility>

#include "driver/sim/calls.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

class forwarding_driver : public driver {
 public:
  explicit forwarding_driver(std::shared_ptr<driver> to) : to_(std::move(to)) {}

  bool simulated() const noexcept override { return to_->simulated(); }
  const device_info& info() const noexcept override { return to_->info(); }
  bool alive() const noexcept override { return to_->alive(); }
  call_result bind_thread() noexcept override {
    return through(sim::call::set_current, [&] { return to_->bind_thread(); });
  }
  bool in_own_context() noexcept override { return to_->in_own_context(); }
  call_result enter_context(void** before) noexcept override { return to_->enter_context(before); }
  call_result leave_context(void* before) noexcept override { return to_->leave_context(before); }
  call_result memory_info(std::uint64_t* free, std::uint64_t* total) noexcept override {
    return through(sim::call::memory_info, [&] { return to_->memory_info(free, total); });
  }
  call_result context_synchronize() noexcept override {
    return through(sim::call::context_synchronize, [&] { return to_->context_synchronize(); });
  }
  call_result memory_allocate(device_address* out, std::uint64_t bytes) noexcept override {
    return through(sim::call::memory_allocate, [&] { return to_->memory_allocate(out, bytes); });
  }
  call_result memory_free(device_address at) noexcept override {
    return through(sim::call::memory_free, [&] { return to_->memory_free(at); });
  }
  call_result host_allocate(void** out, std::uint64_t bytes, host_flags flags) noexcept override {
    return through(sim::call::host_allocate, [&] { return to_->host_allocate(out, bytes, flags); });
  }
  call_result host_free(void* at) noexcept override {
    return through(sim::call::host_free, [&] { return to_->host_free(at); });
  }
  call_result host_register(void* at, std::uint64_t bytes) noexcept override {
    return through(sim::call::host_register, [&] { return to_->host_register(at, bytes); });
  }
  call_result host_unregister(void* at) noexcept override {
    return through(sim::call::host_unregister, [&] { return to_->host_unregister(at); });
  }
  call_result managed_allocate(device_address* out, std::uint64_t bytes) noexcept override {
    return through(sim::call::managed_allocate, [&] { return to_->managed_allocate(out, bytes); });
  }
  call_result pointer_info(device_address at, pointer_facts* out) noexcept override {
    return through(sim::call::pointer_info, [&] { return to_->pointer_info(at, out); });
  }
  call_result pool_create(pool_handle* out, memory_location location,
                          std::uint64_t most) noexcept override {
    return through(sim::call::pool_create, [&] { return to_->pool_create(out, location, most); });
  }
  call_result pool_destroy(pool_handle pool) noexcept override {
    return through(sim::call::pool_destroy, [&] { return to_->pool_destroy(pool); });
  }
  call_result pool_set_release_threshold(pool_handle pool, std::uint64_t bytes) noexcept override {
    return through(sim::call::pool_attribute,
                   [&] { return to_->pool_set_release_threshold(pool, bytes); });
  }
  call_result pool_get_usage(pool_handle pool, pool_usage* out) noexcept override {
    return through(sim::call::pool_usage, [&] { return to_->pool_get_usage(pool, out); });
  }
  call_result pool_trim(pool_handle pool, std::uint64_t keep_bytes) noexcept override {
    return through(sim::call::pool_trim, [&] { return to_->pool_trim(pool, keep_bytes); });
  }
  call_result pool_allocate(device_address* out, std::uint64_t bytes, pool_handle pool,
                            stream_handle stream) noexcept override {
    return through(sim::call::pool_allocate,
                   [&] { return to_->pool_allocate(out, bytes, pool, stream); });
  }
  call_result pool_free(device_address at, stream_handle stream) noexcept override {
    return through(sim::call::pool_free, [&] { return to_->pool_free(at, stream); });
  }
  call_result address_reserve(device_address* out, std::uint64_t bytes,
                              std::uint64_t alignment) noexcept override {
    return through(sim::call::address_reserve,
                   [&] { return to_->address_reserve(out, bytes, alignment); });
  }
  call_result address_free(device_address at, std::uint64_t bytes) noexcept override {
    return through(sim::call::address_free, [&] { return to_->address_free(at, bytes); });
  }
  call_result physical_create(physical_handle* out, std::uint64_t bytes, memory_location location,
                              shareable share) noexcept override {
    return through(sim::call::physical_create,
                   [&] { return to_->physical_create(out, bytes, location, share); });
  }
  call_result physical_release(physical_handle handle) noexcept override {
    return through(sim::call::physical_release, [&] { return to_->physical_release(handle); });
  }
  call_result map(device_address at, std::uint64_t bytes,
                  physical_handle handle) noexcept override {
    return through(sim::call::map, [&] { return to_->map(at, bytes, handle); });
  }
  call_result unmap(device_address at, std::uint64_t bytes) noexcept override {
    return through(sim::call::unmap, [&] { return to_->unmap(at, bytes); });
  }
  call_result set_access(device_address at, std::uint64_t bytes,
                         memory_location location) noexcept override {
    return through(sim::call::set_access, [&] { return to_->set_access(at, bytes, location); });
  }
  call_result export_handle(int* fd, physical_handle handle) noexcept override {
    return through(sim::call::export_handle, [&] { return to_->export_handle(fd, handle); });
  }
  call_result import_handle(physical_handle* out, int fd) noexcept override {
    return through(sim::call::import_handle, [&] { return to_->import_handle(out, fd); });
  }
  call_result stream_create(stream_handle* out) noexcept override {
    return through(sim::call::stream_create, [&] { return to_->stream_create(out); });
  }
  call_result stream_destroy(stream_handle stream) noexcept override {
    return through(sim::call::stream_destroy, [&] { return to_->stream_destroy(stream); });
  }
  call_result stream_id(stream_handle stream, std::uint64_t* id) noexcept override {
    return through(sim::call::stream_id, [&] { return to_->stream_id(stream, id); });
  }
  call_result stream_device(stream_handle stream, int* ordinal) noexcept override {
    return through(sim::call::stream_device, [&] { return to_->stream_device(stream, ordinal); });
  }
  call_result stream_query(stream_handle stream) noexcept override {
    return through(sim::call::stream_query, [&] { return to_->stream_query(stream); });
  }
  call_result stream_synchronize(stream_handle stream) noexcept override {
    return through(sim::call::stream_synchronize, [&] { return to_->stream_synchronize(stream); });
  }
  call_result stream_wait_event(stream_handle stream, event_handle event) noexcept override {
    return through(sim::call::stream_wait_event,
                   [&] { return to_->stream_wait_event(stream, event); });
  }
  call_result event_create(event_handle* out) noexcept override {
    return through(sim::call::event_create, [&] { return to_->event_create(out); });
  }
  call_result event_destroy(event_handle event) noexcept override {
    return through(sim::call::event_destroy, [&] { return to_->event_destroy(event); });
  }
  call_result event_record(event_handle event, stream_handle stream) noexcept override {
    return through(sim::call::event_record, [&] { return to_->event_record(event, stream); });
  }
  call_result event_query(event_handle event) noexcept override {
    return through(sim::call::event_query, [&] { return to_->event_query(event); });
  }
  call_result event_synchronize(event_handle event) noexcept override {
    return through(sim::call::event_synchronize, [&] { return to_->event_synchronize(event); });
  }
  call_result context_record_event(event_handle event) noexcept override {
    return through(sim::call::context_record_event,
                   [&] { return to_->context_record_event(event); });
  }
  call_result stream_capture(stream_handle stream, capture_info* out) noexcept override {
    return through(sim::call::stream_capture, [&] { return to_->stream_capture(stream, out); });
  }
  call_result exchange_capture_mode(capture_mode* mode) noexcept override {
    return through(sim::call::exchange_capture_mode,
                   [&] { return to_->exchange_capture_mode(mode); });
  }
  call_result capture_begin(stream_handle stream, capture_mode mode) noexcept override {
    return through(sim::call::capture_begin, [&] { return to_->capture_begin(stream, mode); });
  }
  call_result capture_end(stream_handle stream, graph_handle* out) noexcept override {
    return through(sim::call::capture_end, [&] { return to_->capture_end(stream, out); });
  }
  call_result graph_retain(graph_handle graph, void (*destroy)(void*),
                           void* data) noexcept override {
    return through(sim::call::graph_retain,
                   [&] { return to_->graph_retain(graph, destroy, data); });
  }
  call_result graph_instantiate(graph_exec_handle* out, graph_handle graph) noexcept override {
    return through(sim::call::graph_instantiate,
                   [&] { return to_->graph_instantiate(out, graph); });
  }
  call_result graph_launch(graph_exec_handle exec, stream_handle stream) noexcept override {
    return through(sim::call::graph_launch, [&] { return to_->graph_launch(exec, stream); });
  }
  call_result graph_destroy(graph_handle graph) noexcept override {
    return through(sim::call::graph_destroy, [&] { return to_->graph_destroy(graph); });
  }
  call_result graph_exec_destroy(graph_exec_handle exec) noexcept override {
    return through(sim::call::graph_exec_destroy, [&] { return to_->graph_exec_destroy(exec); });
  }
  call_result copy_async(device_address to, device_address from, std::uint64_t bytes,
                         stream_handle stream) noexcept override {
    return through(sim::call::copy, [&] { return to_->copy_async(to, from, bytes, stream); });
  }
  call_result set_async(device_address at, unsigned char value, std::uint64_t bytes,
                        stream_handle stream) noexcept override {
    return through(sim::call::fill, [&] { return to_->set_async(at, value, bytes, stream); });
  }
  call_result prefetch_async(device_address at, std::uint64_t bytes, memory_location to,
                             stream_handle stream) noexcept override {
    return through(sim::call::prefetch, [&] { return to_->prefetch_async(at, bytes, to, stream); });
  }
  call_result advise(device_address at, std::uint64_t bytes, managed_advice advice,
                     memory_location location) noexcept override {
    return through(sim::call::advise, [&] { return to_->advise(at, bytes, advice, location); });
  }
  call_result host_function(stream_handle stream, void (*function)(void*),
                            void* data) noexcept override {
    return through(sim::call::host_function,
                   [&] { return to_->host_function(stream, function, data); });
  }
  call_result identity_write(std::span<const identity_block> blocks,
                             stream_handle stream) noexcept override {
    return through(sim::call::launch, [&] { return to_->identity_write(blocks, stream); });
  }
  call_result identity_check(std::span<const identity_block> blocks, identity_report* report,
                             stream_handle stream) noexcept override {
    return through(sim::call::launch, [&] { return to_->identity_check(blocks, report, stream); });
  }
  call_result spin(std::uint64_t nanoseconds, stream_handle stream) noexcept override {
    return through(sim::call::launch, [&] { return to_->spin(nanoseconds, stream); });
  }

 protected:
  [[nodiscard]] driver& to() const noexcept { return *to_; }
  // Asked before a call that goes through: anything but success is answered in its place.
  virtual driver_status refuse(sim::call) noexcept { return driver_status::success; }
  // After one that went through.
  virtual void went_through() noexcept {}

 private:
  template <class Call>
  call_result through(sim::call which, Call&& call) noexcept {
    const driver_status status = refuse(which);
    if (status != driver_status::success) return call_result{status, sim::name_of(which)};
    const call_result answer = call();
    went_through();
    return answer;
  }
  const std::shared_ptr<driver> to_;
};

}  // namespace millpond
