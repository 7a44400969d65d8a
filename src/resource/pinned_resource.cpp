#include "millpond/memory/kinds.hpp"

#include "driver/own_calls.hpp"
#include "resource/host_room.hpp"

namespace millpond {

pinned_resource::pinned_resource(std::shared_ptr<driver> gpu,
                                 std::shared_ptr<pointer_registry> registry, caching how)
    : tracked_resource(std::move(gpu), std::move(registry),
                       {"pinned_resource", memory_kind::pinned, "cuMemHostAlloc", "cuMemFreeHost"}),
      how_(how) {}

result<void> pinned_resource::may_allocate(std::uint64_t bytes) {
  return pinned_can_exist(room_of(gpu()), bytes, name());
}

call_result pinned_resource::obtain(device_address* out, std::uint64_t bytes, std::uint64_t,
                                    stream_handle) noexcept {
  const own_calls_scope own_calls(*gpu());
  if (!own_calls.entered()) return own_calls.entered();
  void* at = nullptr;
  const call_result answer = gpu()->host_allocate(&at, bytes, how_);
  *out = reinterpret_cast<device_address>(at);
  return answer;
}

call_result pinned_resource::give_back(device_address base, stream_handle) noexcept {
  const own_calls_scope own_calls(*gpu());
  if (!own_calls.entered()) return own_calls.entered();
  return gpu()->host_free(reinterpret_cast<void*>(base));
}

}  // namespace millpond
