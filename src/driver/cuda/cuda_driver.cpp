#include "driver/cuda/cuda_driver.hpp"

#include <utility>

namespace millpond::cuda {
namespace {

// Errors after which the context, or the process's use of CUDA, is over: each is documented in
// cuda.h as leaving the process in an inconsistent state, except the first few, which say that it
// is gone.
bool is_final(status_value status) noexcept {
  switch (status) {
    case static_cast<int>(driver_status::deinitialized):
    case error_context_is_destroyed:
    case error_mps_client_terminated:
    case error_ecc_uncorrectable:
    case error_nvlink_uncorrectable:
    case error_contained:
    case static_cast<int>(driver_status::illegal_address):
    case error_launch_timeout:
    case error_assert:
    case error_hardware_stack:
    case error_illegal_instruction:
    case error_misaligned_address:
    case error_invalid_address_space:
    case error_invalid_pc:
    case static_cast<int>(driver_status::launch_failed):
    case error_tensor_memory_leak: return true;
    default: return false;
  }
}

}  // namespace

cuda_driver::cuda_driver(const library& loaded, device_ordinal device, context_handle context,
                         device_info info, const kernel_set& kernels)
    : functions_(loaded.functions),
      forks_(loaded.forks),
      context_(context),
      device_(device),
      info_(std::move(info)),
      kernels_(kernels),
      device_location_{location_device, device},
      host_location_(host_location_of(info_.host_numa_id)) {}

cuda_driver::~cuda_driver() {
  if (!alive())
    return;  // nothing is left to give back, or a forked child would take it from its parent
  context_handle before = nullptr;
  functions_.context_get_current.function(&before);
  if (kernels_.module != nullptr && functions_.context_set_current.function(context_) == 0) {
    functions_.module_unload.function(kernels_.module);
    functions_.context_set_current.function(before);
  }
  functions_.primary_context_release.function(device_);
}

void cuda_driver::note_failure(status_value status) const noexcept {
  if (is_final(status)) lost_.store(true, std::memory_order_relaxed);
}

bool cuda_driver::alive() const noexcept {
  if (in_forked_child() || lost_.load(std::memory_order_relaxed)) return false;
  // The cheapest call that answers "deinitialized" once the library has run its own exit.
  context_handle current = nullptr;
  const status_value status = functions_.context_get_current.function(&current);
  if (status != 0) note_failure(status);
  return status == 0;
}

// Context.

call_result cuda_driver::bind_thread() noexcept {
  return ask(functions_.context_set_current, context_);
}

bool cuda_driver::in_own_context() noexcept {
  context_handle current = nullptr;
  return ask(functions_.context_get_current, &current).ok() && current == context_;
}

call_result cuda_driver::enter_context(void** before) noexcept {
  *before = nullptr;
  context_handle current = nullptr;
  if (const call_result asked = ask(functions_.context_get_current, &current); !asked) return asked;
  if (current == context_) return {driver_status::success, functions_.context_get_current.name};
  const call_result bound = bind_thread();
  if (bound) *before = current;
  return bound;
}

call_result cuda_driver::leave_context(void* before) noexcept {
  if (before == nullptr) return {};
  return ask(functions_.context_set_current, static_cast<context_handle>(before));
}

call_result cuda_driver::memory_info(std::uint64_t* free, std::uint64_t* total) noexcept {
  return ask(functions_.memory_get_info, free, total);
}

call_result cuda_driver::context_synchronize() noexcept {
  return ask(functions_.context_synchronize);
}

// Plain kinds.

call_result cuda_driver::memory_allocate(device_address* out, std::uint64_t bytes) noexcept {
  return ask(functions_.memory_allocate, out, bytes);
}

call_result cuda_driver::memory_free(device_address at) noexcept {
  return ask(functions_.memory_free, at);
}

call_result cuda_driver::host_allocate(void** out, std::uint64_t bytes, host_flags flags) noexcept {
  unsigned bits = host_alloc_portable | host_alloc_device_map;
  if (flags == host_flags::write_combined) bits |= host_alloc_write_combined;
  return ask(functions_.host_allocate, out, bytes, bits);
}

call_result cuda_driver::host_free(void* at) noexcept {
  return ask(functions_.host_free, at);
}

call_result cuda_driver::host_register(void* at, std::uint64_t bytes) noexcept {
  return ask(functions_.host_register, at, bytes,
             host_register_portable | host_register_device_map);
}

call_result cuda_driver::host_unregister(void* at) noexcept {
  return ask(functions_.host_unregister, at);
}

call_result cuda_driver::managed_allocate(device_address* out, std::uint64_t bytes) noexcept {
  return ask(functions_.managed_allocate, out, bytes, attach_global);
}

call_result cuda_driver::pointer_info(device_address at, pointer_facts* out) noexcept {
  // Eight zeroed bytes for each answer, whatever its width: the driver writes 4 for types and
  // flags.
  std::uint64_t type = 0, managed = 0, start = 0, bytes = 0, pool = 0;
  int asked[] = {pointer_memory_type, pointer_is_managed, pointer_range_start, pointer_range_bytes,
                 pointer_pool};
  void* answers[] = {&type, &managed, &start, &bytes, &pool};
  const call_result answer =
      ask(functions_.pointer_get_attributes, 5u, asked, static_cast<void**>(answers), at);
  *out = {};
  if (!answer || type == 0) return answer;  // unknown to the driver: pageable
  out->start = start;
  out->bytes = bytes;
  if (managed != 0) {
    out->kind = memory_kind::managed;
  } else if (pool != 0) {
    out->kind = memory_kind::driver_pool;
  } else {
    out->kind = type == type_host ? memory_kind::pinned : memory_kind::device;
  }
  return answer;
}

// Driver pools.

call_result cuda_driver::pool_create(pool_handle* out, memory_location location,
                                     std::uint64_t max_bytes) noexcept {
  pool_properties properties;
  properties.type = allocation_pinned;
  properties.location = location == memory_location::device ? device_location_ : host_location_;
  properties.max_bytes = max_bytes;
  pool_handle pool = nullptr;
  call_result answer = ask(functions_.pool_create, &pool, &properties);
  if (!answer) return answer;
  if (location == memory_location::host) {
    // A host pool is made for the CPU alone; the device must be let in.
    const access_descriptor access{device_location_, access_read_write};
    const call_result let_in = ask(functions_.pool_set_access, pool, &access, std::size_t{1});
    if (!let_in) {
      static_cast<void>(ask(functions_.pool_destroy, pool));
      return let_in;
    }
  }
  *out = pool;
  return answer;
}

call_result cuda_driver::pool_destroy(pool_handle pool) noexcept {
  return ask(functions_.pool_destroy, pool);
}

call_result cuda_driver::pool_set_release_threshold(pool_handle pool,
                                                    std::uint64_t bytes) noexcept {
  return ask(functions_.pool_set_attribute, pool, pool_release_threshold,
             static_cast<void*>(&bytes));
}

call_result cuda_driver::pool_get_usage(pool_handle pool, pool_usage* out) noexcept {
  struct question {
    int attribute;
    std::uint64_t* into;
  };
  pool_usage usage;
  call_result answer;
  for (const question& each :
       {question{pool_reserved_current, &usage.reserved},
        question{pool_reserved_high, &usage.reserved_high},
        question{pool_used_current, &usage.used}, question{pool_used_high, &usage.used_high}}) {
    answer =
        ask(functions_.pool_get_attribute, pool, each.attribute, static_cast<void*>(each.into));
    if (!answer) return answer;
  }
  *out = usage;
  return answer;
}

call_result cuda_driver::pool_trim(pool_handle pool, std::uint64_t keep_bytes) noexcept {
  return ask(functions_.pool_trim, pool, keep_bytes);
}

call_result cuda_driver::pool_allocate(device_address* out, std::uint64_t bytes, pool_handle pool,
                                       stream_handle stream) noexcept {
  return ask(functions_.pool_allocate, out, bytes, pool, stream);
}

call_result cuda_driver::pool_free(device_address at, stream_handle stream) noexcept {
  return ask(functions_.pool_free, at, stream);
}

// Virtual memory.

call_result cuda_driver::address_reserve(device_address* out, std::uint64_t bytes,
                                         std::uint64_t alignment) noexcept {
  return ask(functions_.address_reserve, out, bytes, alignment, device_address{0},
             std::uint64_t{0});
}

call_result cuda_driver::address_free(device_address at, std::uint64_t bytes) noexcept {
  return ask(functions_.address_free, at, bytes);
}

call_result cuda_driver::physical_create(physical_handle* out, std::uint64_t bytes,
                                         memory_location location, shareable share) noexcept {
  const allocation_properties properties =
      physical_properties(location == memory_location::device ? device_location_ : host_location_,
                          share == shareable::posix_fd ? handle_posix_fd : handle_none);
  return ask(functions_.physical_create, out, bytes, &properties, std::uint64_t{0});
}

call_result cuda_driver::physical_release(physical_handle handle) noexcept {
  return ask(functions_.physical_release, handle);
}

call_result cuda_driver::map(device_address at, std::uint64_t bytes,
                             physical_handle handle) noexcept {
  return ask(functions_.map, at, bytes, std::size_t{0}, handle, std::uint64_t{0});
}

call_result cuda_driver::unmap(device_address at, std::uint64_t bytes) noexcept {
  return ask(functions_.unmap, at, bytes);
}

call_result cuda_driver::set_access(device_address at, std::uint64_t bytes,
                                    memory_location location) noexcept {
  const access_descriptor access[] = {{device_location_, access_read_write},
                                      {host_location_, access_read_write}};
  return ask(functions_.set_access, at, bytes, static_cast<const access_descriptor*>(access),
             location == memory_location::host ? std::size_t{2} : std::size_t{1});
}

call_result cuda_driver::export_handle(int* fd, physical_handle handle) noexcept {
  return ask(functions_.export_handle, static_cast<void*>(fd), handle, handle_posix_fd,
             std::uint64_t{0});
}

call_result cuda_driver::import_handle(physical_handle* out, int fd) noexcept {
  // The descriptor itself goes in place of a pointer.
  return ask(functions_.import_handle, out, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
             handle_posix_fd);
}

// Streams and events.

call_result cuda_driver::stream_create(stream_handle* out) noexcept {
  return ask(functions_.stream_create, out, stream_non_blocking);
}

call_result cuda_driver::stream_destroy(stream_handle stream) noexcept {
  return ask(functions_.stream_destroy, stream);
}

call_result cuda_driver::stream_id(stream_handle stream, std::uint64_t* id) noexcept {
  return ask(functions_.stream_get_id, stream, id);
}

call_result cuda_driver::stream_device(stream_handle stream, int* ordinal) noexcept {
  if (functions_.stream_get_device.function != nullptr) {
    return ask(functions_.stream_get_device, stream, ordinal);
  }
  // Before CUDA 12.8: the stream's context, made current for long enough to be asked its device.
  context_handle owner = nullptr;
  call_result answer = ask(functions_.stream_get_context, stream, &owner);
  if (!answer) return answer;
  context_handle before = nullptr;
  answer = ask(functions_.context_get_current, &before);
  if (!answer) return answer;
  if (owner == before) return ask(functions_.context_get_device, ordinal);
  answer = ask(functions_.context_set_current, owner);
  if (!answer) return answer;
  answer = ask(functions_.context_get_device, ordinal);
  const call_result back = ask(functions_.context_set_current, before);
  return answer ? back : answer;
}

call_result cuda_driver::stream_query(stream_handle stream) noexcept {
  return ask(functions_.stream_query, stream);
}

call_result cuda_driver::stream_synchronize(stream_handle stream) noexcept {
  return ask(functions_.stream_synchronize, stream);
}

call_result cuda_driver::stream_wait_event(stream_handle stream, event_handle event) noexcept {
  return ask(functions_.stream_wait_event, stream, event, 0u);
}

call_result cuda_driver::event_create(event_handle* out) noexcept {
  return ask(functions_.event_create, out, event_disable_timing);
}

call_result cuda_driver::event_destroy(event_handle event) noexcept {
  return ask(functions_.event_destroy, event);
}

call_result cuda_driver::event_record(event_handle event, stream_handle stream) noexcept {
  return ask(functions_.event_record, event, stream);
}

call_result cuda_driver::event_query(event_handle event) noexcept {
  return ask(functions_.event_query, event);
}

call_result cuda_driver::event_synchronize(event_handle event) noexcept {
  return ask(functions_.event_synchronize, event);
}

call_result cuda_driver::context_record_event(event_handle event) noexcept {
  return ask(functions_.context_record_event, context_, event);
}

}  // namespace millpond::cuda
