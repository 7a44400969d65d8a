// The driver's calls that put work on a stream.
#include <algorithm>

#include "driver/sim/state.hpp"

namespace millpond {
namespace {

using sim::call;
using sim::call_scope;
using sim::stream_record;

// Queues one operation by one call. `name` is what messages call it.
call_result enqueue(simulated_gpu::state& gpu, call which, stream_handle stream, sim::work what,
                    const std::string& name) {
  call_scope c(gpu, which);
  if (c.refused()) return c.refusal();
  stream_record* const s = gpu.find_stream(stream);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  if (const auto implicit = gpu.implicit_capture(*s); implicit != driver_status::success)
    return c.answer(implicit);
  gpu.check_pollution(*s, which);
  return c.answer(gpu.queue(*s, std::move(what), name).status);
}

bool valid(std::span<const identity_block> blocks) noexcept {
  return blocks.size() <= max_identity_blocks;
}

std::vector<identity_block> without_empty(std::span<const identity_block> blocks) {
  std::vector<identity_block> out(blocks.begin(), blocks.end());
  std::erase_if(out, [](const identity_block& b) { return b.bytes == 0; });
  return out;
}

}  // namespace

call_result simulated_gpu::launch(kernel_description kernel, stream_handle stream) {
  const std::string name = "kernel " + kernel.name;
  return enqueue(*state_, call::launch, stream,
                 sim::kernel_work{std::make_shared<const kernel_description>(std::move(kernel))},
                 name);
}

call_result simulated_gpu::copy_async(device_address to, device_address from, std::uint64_t bytes,
                                      stream_handle stream) noexcept {
  call_scope c(*state_, call::copy);
  if (c.refused()) return c.refusal();
  stream_record* const s = state_->find_stream(stream);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  if (bytes == 0) return c.done();
  if (const auto implicit = state_->implicit_capture(*s); implicit != driver_status::success) {
    return c.answer(implicit);
  }
  state_->check_pollution(*s, call::copy);
  std::uint64_t start = 0;
  const bool pageable =
      state_->memory->find(to, start) == nullptr || state_->memory->find(from, start) == nullptr;
  const auto queued = state_->queue(*s, sim::copy_work{to, from, bytes}, "copy");
  if (queued.status != driver_status::success) return c.answer(queued.status);
  // The driver stages pageable memory itself and comes back when it no longer needs it.
  if (pageable && s->capture == nullptr) {
    state_->wait_until(c.lock(), queued.end_ns);
    if (bytes >= sim::cold_bytes) state_->cold_calls = sim::cold_calls_after_copy;
  }
  return c.done();
}

call_result simulated_gpu::set_async(device_address at, unsigned char value, std::uint64_t bytes,
                                     stream_handle stream) noexcept {
  return enqueue(*state_, call::fill, stream, sim::fill_work{at, bytes, value}, "memset");
}

call_result simulated_gpu::prefetch_async(device_address at, std::uint64_t bytes,
                                          memory_location to, stream_handle stream) noexcept {
  call_scope c(*state_, call::prefetch);
  if (c.refused()) return c.refusal();
  stream_record* const s = state_->find_stream(stream);
  if (s == nullptr) return c.answer(driver_status::invalid_handle);
  std::uint64_t start = 0;
  const sim::region* const r = state_->memory->find(at, start);
  if (r == nullptr || r->kind != sim::region_kind::managed || bytes == 0 ||
      start + r->bytes - at < bytes) {
    return c.answer(driver_status::invalid_value);
  }
  if (const auto implicit = state_->implicit_capture(*s); implicit != driver_status::success) {
    return c.answer(implicit);
  }
  state_->check_pollution(*s, call::prefetch);
  return c.answer(state_->queue(*s, sim::prefetch_work{at, bytes, to}, "prefetch").status);
}

call_result simulated_gpu::advise(device_address at, std::uint64_t bytes, managed_advice advice,
                                  memory_location location) noexcept {
  call_scope c(*state_, call::advise);
  if (c.refused()) return c.refusal();
  std::uint64_t start = 0;
  const sim::region* const r = state_->memory->find(at, start);
  if (r == nullptr || r->kind != sim::region_kind::managed || bytes == 0 ||
      start + r->bytes - at < bytes) {
    return c.answer(driver_status::invalid_value);
  }
  state_->managed.advise(at, bytes, advice, location);
  return c.done();
}

call_result simulated_gpu::host_function(stream_handle stream, void (*function)(void*),
                                         void* data) noexcept {
  if (function == nullptr) return {driver_status::invalid_value, sim::name_of(call::host_function)};
  return enqueue(*state_, call::host_function, stream, sim::host_work{function, data},
                 "host function");
}

call_result simulated_gpu::identity_write(std::span<const identity_block> blocks,
                                          stream_handle stream) noexcept {
  if (!valid(blocks)) return {driver_status::invalid_value, sim::name_of(call::launch)};
  return enqueue(*state_, call::launch, stream, sim::identity_write_work{without_empty(blocks)},
                 "identity write");
}

call_result simulated_gpu::identity_check(std::span<const identity_block> blocks,
                                          identity_report* report, stream_handle stream) noexcept {
  if (!valid(blocks) || report == nullptr)
    return {driver_status::invalid_value, sim::name_of(call::launch)};
  return enqueue(*state_, call::launch, stream,
                 sim::identity_check_work{without_empty(blocks), report}, "identity check");
}

call_result simulated_gpu::spin(std::uint64_t nanoseconds, stream_handle stream) noexcept {
  return enqueue(*state_, call::launch, stream, sim::spin_work{nanoseconds}, "spin");
}

}  // namespace millpond
