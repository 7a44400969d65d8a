#include "millpond/memory/kinds.hpp"

#include <algorithm>
#include <cstdlib>

#include "driver/own_calls.hpp"
#include "resource/host_room.hpp"
#include "resource/wait.hpp"

namespace millpond {

pageable_resource::pageable_resource(std::shared_ptr<driver> gpu,
                                     std::shared_ptr<pointer_registry> registry, on_free what)
    : tracked_resource(std::move(gpu), std::move(registry),
                       {"pageable_resource", memory_kind::pageable, "posix_memalign", "free"}),
      what_(what) {}

// On this machine, whatever GPU is simulated.
result<void> pageable_resource::may_allocate(std::uint64_t bytes) {
  return pageable_can_exist(room_of(nullptr), bytes, name());
}

call_result pageable_resource::obtain(device_address* out, std::uint64_t bytes,
                                      std::uint64_t alignment, stream_handle) noexcept {
  void* at = nullptr;
  // posix_memalign wants a multiple of a pointer's size.
  const std::uint64_t aligned = std::max<std::uint64_t>(alignment, sizeof(void*));
  const bool there = posix_memalign(&at, aligned, bytes) == 0;
  *out = reinterpret_cast<device_address>(at);
  return {there ? driver_status::success : driver_status::out_of_memory, "posix_memalign"};
}

call_result pageable_resource::give_back(device_address base, stream_handle stream) noexcept {
  // With the driver gone nothing can be using the block any more.
  if (what_ == on_free::wait_for_stream && gpu() != nullptr && gpu()->alive()) {
    const own_calls_scope own_calls(*gpu());
    if (!own_calls.entered()) return own_calls.entered();
    if (const call_result waited = wait_for_stream(*gpu(), stream); !waited.ok()) return waited;
  }
  std::free(reinterpret_cast<void*>(base));
  return {driver_status::success, "free"};
}

}  // namespace millpond
