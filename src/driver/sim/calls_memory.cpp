// The driver's calls on plain memory and virtual memory.
#include "driver/sim/state.hpp"

namespace millpond {
namespace {

using sim::call;
using sim::call_scope;
using sim::region;
using sim::region_kind;

constexpr driver_status ok = driver_status::success;
// Below it managed blocks share pages, as those of cuMemAlloc do.
constexpr std::uint64_t small_managed_limit = 1 * MiB;

}  // namespace

call_result simulated_gpu::memory_info(std::uint64_t* free, std::uint64_t* total) noexcept {
  call_scope c(*state_, call::memory_info);
  if (c.refused()) return c.refusal();
  *free = state_->memory->device_free();
  *total = state_->memory->device_total();
  return c.done();
}

// --- Plain kinds
// ------------------------------------------------------------------------------------

call_result simulated_gpu::memory_allocate(device_address* out, std::uint64_t bytes) noexcept {
  call_scope c(*state_, call::memory_allocate, call_scope::later);
  if (c.refused()) return c.refusal();
  const std::uint64_t before = state_->memory->device_used();
  const driver_status status =
      bytes == 0 ? driver_status::invalid_value : state_->memory->allocate_device(bytes, *out);
  // A small block that finds room in a page that is there already is an order of magnitude cheaper.
  const bool shared = status == ok && state_->memory->device_used() == before;
  state_->charge_named({shared ? "cuMemAlloc.shared" : ""}, call::memory_allocate, bytes);
  return c.answer(status);
}

call_result simulated_gpu::memory_free(device_address at) noexcept {
  call_scope c(*state_, call::memory_free, call_scope::later);
  if (c.refused()) return c.refusal();
  if (at == 0) return c.done();
  region* const r = state_->memory->find_start(at);
  const bool frees =
      r != nullptr && (r->kind == region_kind::device || r->kind == region_kind::managed ||
                       r->kind == region_kind::pool_block);
  if (!frees) {
    state_->charge(call::memory_free, 0);
    if (r != nullptr && state_->check)
      state_->check->wrong_kind_free(at, *r, "cuMemFree", state_->now_ns);
    return c.answer(driver_status::invalid_value);
  }
  // Everything on the device is over first: 10.16 ms behind a 10 ms kernel on another stream.
  state_->wait_for_device(c.lock());
  region* const still = state_->memory->find_start(at);
  if (still != r) return c.answer(driver_status::invalid_value);
  if (state_->check) state_->check->check_removal(at, *r, "cuMemFree", true, state_->now_ns);
  if (r->kind == region_kind::pool_block) {
    state_->charge(call::memory_free, r->bytes);
    state_->pools.find(r->pool)->free(at, state_->order.now(state_->primary().legacy.line), {}, 0,
                                      state_->now_ns);
    return c.done();
  }
  if (r->kind == region_kind::managed) {
    // Pages that are there are taken down one by one; blocks of less than a page share one.
    const bool small = r->bytes < small_managed_limit;
    if (small) --state_->small_managed;
    const bool there = state_->managed.resident(at, r->bytes) > 0;
    const char* const table = small && state_->small_managed > 0 ? "cuMemFree.managed_shared"
                              : there                            ? "cuMemFree.managed_resident"
                                                                 : "cuMemFree.managed";
    state_->charge_named({table, "cuMemFree.managed"}, call::memory_free, r->bytes);
    state_->managed.remove(at);
    state_->memory->free_region(at);
    return c.done();
  }
  const std::uint64_t bytes = r->bytes, before = state_->memory->device_used();
  state_->memory->free_region(at);
  const bool shared = state_->memory->device_used() == before;
  state_->charge_named({shared ? "cuMemFree.shared" : ""}, call::memory_free, bytes);
  return c.done();
}

call_result simulated_gpu::host_allocate(void** out, std::uint64_t bytes, host_flags) noexcept {
  call_scope c(*state_, call::host_allocate, bytes);
  if (c.refused()) return c.refusal();
  if (bytes == 0) return c.answer(driver_status::invalid_value);
  std::uint64_t at = 0;
  const driver_status status = state_->memory->allocate_pinned(bytes, at);
  if (status == ok) *out = reinterpret_cast<void*>(at);
  return c.answer(status);
}

call_result simulated_gpu::host_free(void* at) noexcept {
  call_scope c(*state_, call::host_free, call_scope::later);
  if (c.refused()) return c.refusal();
  if (at == nullptr) return c.done();
  const auto address = reinterpret_cast<std::uint64_t>(at);
  region* const r = state_->memory->find_start(address);
  if (r == nullptr || r->kind != region_kind::pinned) {
    state_->charge(call::host_free, 0);
    if (r != nullptr && state_->check) {
      state_->check->wrong_kind_free(address, *r, "cuMemFreeHost", state_->now_ns);
    }
    return c.answer(driver_status::invalid_value);
  }
  state_->wait_for_device(c.lock());
  if (state_->memory->find_start(address) != r) return c.answer(driver_status::invalid_value);
  if (state_->check)
    state_->check->check_removal(address, *r, "cuMemFreeHost", true, state_->now_ns);
  state_->charge(call::host_free, r->bytes);
  state_->memory->free_region(address);
  return c.done();
}

call_result simulated_gpu::host_register(void* at, std::uint64_t bytes) noexcept {
  call_scope c(*state_, call::host_register, bytes);
  if (c.refused()) return c.refusal();
  return c.answer(state_->memory->register_host(reinterpret_cast<std::uint64_t>(at), bytes));
}

call_result simulated_gpu::host_unregister(void* at) noexcept {
  call_scope c(*state_, call::host_unregister, call_scope::later);
  if (c.refused()) return c.refusal();
  const auto address = reinterpret_cast<std::uint64_t>(at);
  region* const r = state_->memory->find_start(address);
  // CUDA answers CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED.
  if (r == nullptr || r->kind != region_kind::registered)
    return c.answer(static_cast<driver_status>(713));
  state_->wait_for_device(c.lock());
  state_->charge(call::host_unregister, r->bytes);
  if (state_->check) state_->check->forget_addresses(address, address + r->bytes);
  state_->memory->free_region(address);
  return c.done();
}

call_result simulated_gpu::managed_allocate(device_address* out, std::uint64_t bytes) noexcept {
  call_scope c(*state_, call::managed_allocate, call_scope::later);
  if (c.refused()) return c.refusal();
  const bool small = bytes < small_managed_limit;
  const bool shared = small && state_->small_managed > 0;
  state_->charge_named({shared ? "cuMemAllocManaged.shared" : ""}, call::managed_allocate, bytes);
  if (bytes == 0) return c.answer(driver_status::invalid_value);
  const driver_status status = state_->memory->allocate_managed(bytes, *out);
  if (status == ok) {
    state_->managed.add(*out, bytes);
    if (small) ++state_->small_managed;
  }
  return c.answer(status);
}

call_result simulated_gpu::pointer_info(device_address at, pointer_facts* out) noexcept {
  call_scope c(*state_, call::pointer_info);
  if (c.refused()) return c.refusal();
  std::uint64_t start = 0;
  const region* const r = state_->memory->find(at, start);
  *out = {};
  if (r != nullptr && r->kind != region_kind::pool_segment) *out = {kind_of(*r), start, r->bytes};
  return c.done();
}

// --- Virtual memory
// ---------------------------------------------------------------------------------

call_result simulated_gpu::address_reserve(device_address* out, std::uint64_t bytes,
                                           std::uint64_t alignment) noexcept {
  call_scope c(*state_, call::address_reserve, bytes);
  if (c.refused()) return c.refusal();
  return c.answer(state_->memory->reserve(bytes, alignment, *out));
}

call_result simulated_gpu::address_free(device_address at, std::uint64_t bytes) noexcept {
  call_scope c(*state_, call::address_free, bytes);
  if (c.refused()) return c.refusal();
  const driver_status status = state_->memory->free_reservation(at, bytes);
  if (status == ok && state_->check) state_->check->forget_addresses(at, at + bytes);
  return c.answer(status);
}

call_result simulated_gpu::physical_create(physical_handle* out, std::uint64_t bytes,
                                           memory_location location, shareable share) noexcept {
  call_scope c(*state_, call::physical_create, bytes);
  if (c.refused()) return c.refusal();
  if (share == shareable::posix_fd && !state_->info.posix_fd_export)
    return c.answer(driver_status::not_supported);
  return c.answer(state_->memory->create_handle(bytes, location, share, *out));
}

call_result simulated_gpu::physical_release(physical_handle handle) noexcept {
  call_scope c(*state_, call::physical_release, call_scope::later);
  if (c.refused()) return c.refusal();
  const sim::physical* const p = state_->memory->find_handle(handle);
  state_->charge(call::physical_release, p != nullptr ? p->bytes : 0);
  return c.answer(state_->memory->release_handle(handle));
}

call_result simulated_gpu::map(device_address at, std::uint64_t bytes,
                               physical_handle handle) noexcept {
  call_scope c(*state_, call::map, bytes);
  if (c.refused()) return c.refusal();
  return c.answer(state_->memory->map(at, bytes, handle));
}

call_result simulated_gpu::unmap(device_address at, std::uint64_t bytes) noexcept {
  call_scope c(*state_, call::unmap, call_scope::later);
  if (c.refused()) return c.refusal();
  const auto mappings = state_->memory->mappings_in(at, bytes);
  if (mappings.empty()) {
    state_->charge(call::unmap, 0);
    return c.answer(driver_status::invalid_value);
  }
  for (const auto& [address, r] : mappings) {
    state_->charge(call::unmap, r->bytes);
    if (state_->check)
      state_->check->check_removal(address, *r, "cuMemUnmap", false, state_->now_ns);
  }
  // The time has passed: what ended meanwhile ended before the memory goes.
  state_->settle();
  for (const auto& [address, r] : state_->memory->mappings_in(at, bytes))
    state_->memory->unmap(address);
  return c.done();
}

call_result simulated_gpu::set_access(device_address at, std::uint64_t bytes,
                                      memory_location location) noexcept {
  call_scope c(*state_, call::set_access, call_scope::later);
  if (c.refused()) return c.refusal();
  const auto mappings = state_->memory->mappings_in(at, bytes);
  if (mappings.empty()) {
    state_->charge(call::set_access, 0);
    return c.answer(driver_status::invalid_value);
  }
  for (const auto& [address, r] : mappings) {
    // The CPU cannot be given access to device memory.
    if (location == memory_location::host && r->memory->location == memory_location::device) {
      return c.answer(driver_status::invalid_value);
    }
    state_->charge(call::set_access, r->bytes);
    r->accessible = true;
  }
  return c.done();
}

call_result simulated_gpu::export_handle(int* fd, physical_handle handle) noexcept {
  call_scope c(*state_, call::export_handle);
  if (c.refused()) return c.refusal();
  return c.answer(state_->memory->export_handle(handle, *fd));
}

call_result simulated_gpu::import_handle(physical_handle* out, int fd) noexcept {
  call_scope c(*state_, call::import_handle);
  if (c.refused()) return c.refusal();
  return c.answer(state_->memory->import_handle(fd, *out));
}

}  // namespace millpond
