// A driver that does nothing, without any lock: every call answers at once from a few atomics.
//
// It exists for ThreadSanitizer and for counting instructions. A lock in the driver would order the
// threads that call it and so hide the races of the code above; here every atomic is relaxed and
// publishes nothing, so whatever order that code needs it must make itself. Memory is only
// addresses: nothing is behind them but for host_allocate, which gives real memory. Captures and
// graphs are not supported.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "driver/sim/calls.hpp"
#include "millpond/base/units.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

class null_driver final : public driver {
 public:
  struct settings {
    std::uint64_t memory_bytes =
        64 * GiB;  // physical_create and memory_allocate beyond it: out of memory
    std::uint32_t queries_until_done =
        0;  // an event is not ready for so many queries after its record
  };
  null_driver() : null_driver(settings{}) {}
  explicit null_driver(settings given);
  ~null_driver() override;

  // By CUDA function name; exact when no call is running.
  [[nodiscard]] std::uint64_t calls(std::string_view call) const noexcept;
  [[nodiscard]] std::uint64_t total_calls() const noexcept;
  void reset_counters() noexcept;
  // Physical handles and plain allocations that live, in bytes (plain ones are never given back to
  // it).
  [[nodiscard]] std::uint64_t physical_bytes() const noexcept {
    return used_.load(std::memory_order_relaxed);
  }
  // What alive() answers.

  bool simulated() const noexcept override { return true; }
  const device_info& info() const noexcept override { return info_; }
  bool alive() const noexcept override { return true; }
  call_result bind_thread() noexcept override;
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
  // An event: the queries that still answer not_ready; while it is free, the next free one.
  using event_slot = std::atomic<std::uint32_t>;
  static constexpr std::uint32_t slots_a_page = 4096;
  static constexpr std::uint32_t pages = 4096;
  struct alignas(64) counter {
    std::atomic<std::uint64_t> value{0};
  };

  call_result count(sim::call which, driver_status status = driver_status::success) noexcept {
    counters_[static_cast<std::size_t>(which)].value.fetch_add(1, std::memory_order_relaxed);
    return {status, sim::name_of(which)};
  }
  [[nodiscard]] device_address bump(std::uint64_t bytes, std::uint64_t alignment) noexcept;
  [[nodiscard]] bool take(std::uint64_t bytes) noexcept;
  [[nodiscard]] event_slot* slot(event_handle event) noexcept;
  [[nodiscard]] event_slot& slot_at(std::uint32_t index) noexcept;

  settings settings_;
  device_info info_;
  std::atomic<std::uint64_t> next_address_;
  std::atomic<std::uint64_t> next_stream_{16};
  std::atomic<std::uint64_t> next_handle_{1};
  std::atomic<std::uint64_t> used_{0};
  std::atomic<std::uint32_t> next_event_{0};
  std::atomic<std::uint64_t> free_events_{
      0};  // {changes, index + 1}: the count keeps a stale head from matching
  std::array<std::atomic<event_slot*>, pages> event_pages_{};
  std::array<counter, sim::call_count> counters_{};
};

}  // namespace millpond
