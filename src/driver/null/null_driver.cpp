#include "driver/null/null_driver.hpp"

#include <cstdlib>
#include <new>

#include "base/bits.hpp"

namespace millpond {
namespace {

using sim::call;

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::uint64_t first_address = std::uint64_t{1}
                                        << 45;  // no program memory is there on Linux
constexpr std::uintptr_t stream_base = 0x610000000000;
constexpr std::uintptr_t event_base = 0x620000000000;
constexpr std::uintptr_t pool_base = 0x630000000000;
constexpr std::uintptr_t stride = 64;
// A physical handle carries its size, in pages of 2 MiB, so that its release needs no table.
constexpr unsigned page_bits = 24;

std::atomic<std::uint64_t> next_thread{
    2};  // identities of per-thread streams; 1 is the legacy stream

std::uint64_t this_threads_stream() noexcept {
  thread_local const std::uint64_t id =
      (std::uint64_t{1} << 32) + next_thread.fetch_add(1, relaxed);
  return id;
}

}  // namespace

null_driver::null_driver(settings given) : settings_(given), next_address_(first_address) {
  info_.name = "null device";
  info_.compute_major = 9;
  info_.multiprocessors = 132;
  info_.total_bytes = given.memory_bytes;
  info_.granularity = info_.host_granularity = 2 * MiB;
  info_.virtual_memory = info_.memory_pools = info_.unified_addressing = true;
}

null_driver::~null_driver() {
  for (auto& page : event_pages_) delete[] page.load(relaxed);
}

std::uint64_t null_driver::calls(std::string_view call) const noexcept {
  for (std::size_t i = 0; i < sim::call_count; ++i) {
    if (call == sim::call_table[i].name) return counters_[i].value.load(relaxed);
  }
  return 0;
}
std::uint64_t null_driver::total_calls() const noexcept {
  std::uint64_t total = 0;
  for (const counter& each : counters_) total += each.value.load(relaxed);
  return total;
}
void null_driver::reset_counters() noexcept {
  for (counter& each : counters_) each.value.store(0, relaxed);
}

// --- Memory
// -----------------------------------------------------------------------------------------

device_address null_driver::bump(std::uint64_t bytes, std::uint64_t alignment) noexcept {
  const std::uint64_t most = bytes + alignment;
  return align_up(next_address_.fetch_add(align_up(most, 512), relaxed), alignment);
}

bool null_driver::take(std::uint64_t bytes) noexcept {
  if (bytes > settings_.memory_bytes) return false;
  if (used_.fetch_add(bytes, relaxed) + bytes <= settings_.memory_bytes) return true;
  used_.fetch_sub(bytes, relaxed);
  return false;
}

call_result null_driver::bind_thread() noexcept {
  return count(call::set_current);
}
call_result null_driver::memory_info(std::uint64_t* free, std::uint64_t* total) noexcept {
  const std::uint64_t used = used_.load(relaxed);
  *total = settings_.memory_bytes;
  *free = used > settings_.memory_bytes ? 0 : settings_.memory_bytes - used;
  return count(call::memory_info);
}
call_result null_driver::context_synchronize() noexcept {
  return count(call::context_synchronize);
}
call_result null_driver::memory_allocate(device_address* out, std::uint64_t bytes) noexcept {
  if (bytes == 0) return count(call::memory_allocate, driver_status::invalid_value);
  if (!take(bytes)) return count(call::memory_allocate, driver_status::out_of_memory);
  *out = bump(bytes, bytes >= 1 * MiB ? 2 * MiB : 512);
  return count(call::memory_allocate);
}
call_result null_driver::memory_free(device_address) noexcept {
  return count(call::memory_free);
}
call_result null_driver::host_allocate(void** out, std::uint64_t bytes, host_flags) noexcept {
  *out = std::aligned_alloc(4096, align_up(bytes, 4096));
  return count(call::host_allocate,
               *out == nullptr ? driver_status::out_of_memory : driver_status::success);
}
call_result null_driver::host_free(void* at) noexcept {
  std::free(at);
  return count(call::host_free);
}
call_result null_driver::host_register(void*, std::uint64_t) noexcept {
  return count(call::host_register);
}
call_result null_driver::host_unregister(void*) noexcept {
  return count(call::host_unregister);
}
call_result null_driver::managed_allocate(device_address* out, std::uint64_t bytes) noexcept {
  *out = bump(bytes, 2 * MiB);
  return count(call::managed_allocate);
}
call_result null_driver::pointer_info(device_address, pointer_facts* out) noexcept {
  *out = {};
  return count(call::pointer_info);
}

call_result null_driver::pool_create(pool_handle* out, memory_location, std::uint64_t) noexcept {
  *out = reinterpret_cast<pool_handle>(pool_base + stride * next_handle_.fetch_add(1, relaxed));
  return count(call::pool_create);
}
call_result null_driver::pool_destroy(pool_handle) noexcept {
  return count(call::pool_destroy);
}
call_result null_driver::pool_set_release_threshold(pool_handle, std::uint64_t) noexcept {
  return count(call::pool_attribute);
}
call_result null_driver::pool_get_usage(pool_handle, pool_usage* out) noexcept {
  *out = {};
  return count(call::pool_usage);
}
call_result null_driver::pool_trim(pool_handle, std::uint64_t) noexcept {
  return count(call::pool_trim);
}
call_result null_driver::pool_allocate(device_address* out, std::uint64_t bytes, pool_handle,
                                       stream_handle) noexcept {
  *out = bump(bytes, 512);
  return count(call::pool_allocate);
}
call_result null_driver::pool_free(device_address, stream_handle) noexcept {
  return count(call::pool_free);
}

call_result null_driver::address_reserve(device_address* out, std::uint64_t bytes,
                                         std::uint64_t alignment) noexcept {
  *out = bump(bytes, alignment < 2 * MiB ? 2 * MiB : alignment);
  return count(call::address_reserve);
}
call_result null_driver::address_free(device_address, std::uint64_t) noexcept {
  return count(call::address_free);
}
call_result null_driver::physical_create(physical_handle* out, std::uint64_t bytes, memory_location,
                                         shareable) noexcept {
  if (bytes == 0 || !is_aligned(bytes, 2 * MiB))
    return count(call::physical_create, driver_status::invalid_value);
  if (!take(bytes)) return count(call::physical_create, driver_status::out_of_memory);
  *out = next_handle_.fetch_add(1, relaxed) << page_bits | bytes / (2 * MiB);
  return count(call::physical_create);
}
call_result null_driver::physical_release(physical_handle handle) noexcept {
  used_.fetch_sub((handle & ((1u << page_bits) - 1)) * 2 * MiB, relaxed);
  return count(call::physical_release);
}
call_result null_driver::map(device_address, std::uint64_t, physical_handle) noexcept {
  return count(call::map);
}
call_result null_driver::unmap(device_address, std::uint64_t) noexcept {
  return count(call::unmap);
}
call_result null_driver::set_access(device_address, std::uint64_t, memory_location) noexcept {
  return count(call::set_access);
}
call_result null_driver::export_handle(int*, physical_handle) noexcept {
  return count(call::export_handle, driver_status::not_supported);
}
call_result null_driver::import_handle(physical_handle*, int) noexcept {
  return count(call::import_handle, driver_status::not_supported);
}

// --- Streams
// ----------------------------------------------------------------------------------------

call_result null_driver::stream_create(stream_handle* out) noexcept {
  *out = reinterpret_cast<stream_handle>(stream_base + stride * next_stream_.fetch_add(1, relaxed));
  return count(call::stream_create);
}
call_result null_driver::stream_destroy(stream_handle) noexcept {
  return count(call::stream_destroy);
}
call_result null_driver::stream_id(stream_handle stream, std::uint64_t* id) noexcept {
  if (stream == nullptr || stream == legacy_stream) {
    *id = 1;
  } else if (stream == per_thread_stream) {
    *id = this_threads_stream();
  } else {
    *id = (reinterpret_cast<std::uintptr_t>(stream) - stream_base) / stride;
  }
  return count(call::stream_id);
}
call_result null_driver::stream_device(stream_handle, int* ordinal) noexcept {
  *ordinal = 0;
  return count(call::stream_device);
}
call_result null_driver::stream_query(stream_handle) noexcept {
  return count(call::stream_query);
}
call_result null_driver::stream_synchronize(stream_handle) noexcept {
  return count(call::stream_synchronize);
}
call_result null_driver::stream_wait_event(stream_handle, event_handle) noexcept {
  return count(call::stream_wait_event);
}

// --- Events
// -----------------------------------------------------------------------------------------

null_driver::event_slot& null_driver::slot_at(std::uint32_t index) noexcept {
  // Acquire: the page's slots were set to zero by whoever made the page.
  return event_pages_[index / slots_a_page].load(std::memory_order_acquire)[index % slots_a_page];
}

null_driver::event_slot* null_driver::slot(event_handle event) noexcept {
  const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(event) - event_base;
  const std::uint64_t index = offset / stride;
  if (index >= next_event_.load(relaxed)) return nullptr;
  return &slot_at(static_cast<std::uint32_t>(index));
}

call_result null_driver::event_create(event_handle* out) noexcept {
  std::uint64_t head = free_events_.load(relaxed);
  while ((head & 0xffffffffu) != 0) {
    const auto index = static_cast<std::uint32_t>(head & 0xffffffffu) - 1;
    const std::uint64_t next = ((head >> 32) + 1) << 32 | slot_at(index).load(relaxed);
    if (free_events_.compare_exchange_weak(head, next, relaxed)) {
      slot_at(index).store(0, relaxed);
      *out = reinterpret_cast<event_handle>(event_base + stride * index);
      return count(call::event_create);
    }
  }
  const std::uint32_t index = next_event_.fetch_add(1, relaxed);
  if (index >= slots_a_page * pages) return count(call::event_create, driver_status::out_of_memory);
  auto& page = event_pages_[index / slots_a_page];
  event_slot* there = page.load(std::memory_order_acquire);
  if (there == nullptr) {
    auto* const fresh = new (std::nothrow) event_slot[slots_a_page]();
    if (fresh == nullptr) return count(call::event_create, driver_status::out_of_memory);
    if (!page.compare_exchange_strong(there, fresh, std::memory_order_acq_rel)) delete[] fresh;
  }
  *out = reinterpret_cast<event_handle>(event_base + stride * index);
  return count(call::event_create);
}

call_result null_driver::event_destroy(event_handle event) noexcept {
  event_slot* const s = slot(event);
  if (s == nullptr) return count(call::event_destroy, driver_status::invalid_handle);
  const auto index =
      static_cast<std::uint32_t>((reinterpret_cast<std::uintptr_t>(event) - event_base) / stride);
  std::uint64_t head = free_events_.load(relaxed);
  do {
    s->store(static_cast<std::uint32_t>(head & 0xffffffffu), relaxed);
  } while (
      !free_events_.compare_exchange_weak(head, ((head >> 32) + 1) << 32 | (index + 1), relaxed));
  return count(call::event_destroy);
}

call_result null_driver::event_record(event_handle event, stream_handle) noexcept {
  event_slot* const s = slot(event);
  if (s == nullptr) return count(call::event_record, driver_status::invalid_handle);
  s->store(settings_.queries_until_done, relaxed);
  return count(call::event_record);
}
call_result null_driver::event_query(event_handle event) noexcept {
  event_slot* const s = slot(event);
  if (s == nullptr) return count(call::event_query, driver_status::invalid_handle);
  std::uint32_t left = s->load(relaxed);
  while (left != 0) {
    if (s->compare_exchange_weak(left, left - 1, relaxed))
      return count(call::event_query, driver_status::not_ready);
  }
  return count(call::event_query);
}
call_result null_driver::event_synchronize(event_handle event) noexcept {
  event_slot* const s = slot(event);
  if (s == nullptr) return count(call::event_synchronize, driver_status::invalid_handle);
  s->store(0, relaxed);
  return count(call::event_synchronize);
}
call_result null_driver::context_record_event(event_handle event) noexcept {
  event_slot* const s = slot(event);
  if (s == nullptr) return count(call::context_record_event, driver_status::invalid_handle);
  s->store(settings_.queries_until_done, relaxed);
  return count(call::context_record_event);
}

// --- Captures: none
// ---------------------------------------------------------------------------------

call_result null_driver::stream_capture(stream_handle, capture_info* out) noexcept {
  *out = {};
  return count(call::stream_capture);
}
call_result null_driver::exchange_capture_mode(capture_mode* mode) noexcept {
  thread_local capture_mode own = capture_mode::global;
  const capture_mode before = own;
  own = *mode;
  *mode = before;
  return count(call::exchange_capture_mode);
}
call_result null_driver::capture_begin(stream_handle, capture_mode) noexcept {
  return count(call::capture_begin, driver_status::not_supported);
}
call_result null_driver::capture_end(stream_handle, graph_handle*) noexcept {
  return count(call::capture_end, driver_status::not_supported);
}
call_result null_driver::graph_retain(graph_handle, void (*)(void*), void*) noexcept {
  return count(call::graph_retain, driver_status::not_supported);
}
call_result null_driver::graph_instantiate(graph_exec_handle*, graph_handle) noexcept {
  return count(call::graph_instantiate, driver_status::not_supported);
}
call_result null_driver::graph_launch(graph_exec_handle, stream_handle) noexcept {
  return count(call::graph_launch, driver_status::not_supported);
}
call_result null_driver::graph_destroy(graph_handle) noexcept {
  return count(call::graph_destroy, driver_status::not_supported);
}
call_result null_driver::graph_exec_destroy(graph_exec_handle) noexcept {
  return count(call::graph_exec_destroy, driver_status::not_supported);
}

// --- Work: done at once
// -----------------------------------------------------------------------------

call_result null_driver::copy_async(device_address, device_address, std::uint64_t,
                                    stream_handle) noexcept {
  return count(call::copy);
}
call_result null_driver::set_async(device_address, unsigned char, std::uint64_t,
                                   stream_handle) noexcept {
  return count(call::fill);
}
call_result null_driver::prefetch_async(device_address, std::uint64_t, memory_location,
                                        stream_handle) noexcept {
  return count(call::prefetch);
}
call_result null_driver::advise(device_address, std::uint64_t, managed_advice,
                                memory_location) noexcept {
  return count(call::advise);
}
call_result null_driver::host_function(stream_handle, void (*function)(void*),
                                       void* data) noexcept {
  if (function != nullptr) function(data);
  return count(call::host_function);
}
call_result null_driver::identity_write(std::span<const identity_block>, stream_handle) noexcept {
  return count(call::launch);
}
call_result null_driver::identity_check(std::span<const identity_block>, identity_report*,
                                        stream_handle) noexcept {
  return count(call::launch);
}
call_result null_driver::spin(std::uint64_t, stream_handle) noexcept {
  return count(call::launch);
}

}  // namespace millpond
