#include "millpond/memory/kinds.hpp"

#include "driver/own_calls.hpp"

namespace millpond {

device_resource::device_resource(std::shared_ptr<driver> gpu,
                                 std::shared_ptr<pointer_registry> registry)
    : tracked_resource(std::move(gpu), std::move(registry),
                       {"device_resource", memory_kind::device, "cuMemAlloc", "cuMemFree"}) {}

call_result device_resource::obtain(device_address* out, std::uint64_t bytes, std::uint64_t,
                                    stream_handle) noexcept {
  const own_calls_scope own_calls(*gpu());
  if (!own_calls.entered()) return own_calls.entered();
  return gpu()->memory_allocate(out, bytes);
}

call_result device_resource::give_back(device_address base, stream_handle) noexcept {
  const own_calls_scope own_calls(*gpu());
  if (!own_calls.entered()) return own_calls.entered();
  return gpu()->memory_free(base);
}

}  // namespace millpond
