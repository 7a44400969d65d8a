#include "millpond/memory/kinds.hpp"

#include "driver/relaxed_capture.hpp"

namespace millpond {

device_resource::device_resource(std::shared_ptr<driver> gpu,
                                 std::shared_ptr<pointer_registry> registry)
    : tracked_resource(std::move(gpu), std::move(registry),
                       {"device_resource", memory_kind::device, "cuMemAlloc", "cuMemFree"}) {}

call_result device_resource::obtain(device_address* out, std::uint64_t bytes, std::uint64_t,
                                    stream_handle) noexcept {
  const relaxed_capture_scope relaxed(*gpu());
  if (!relaxed.entered()) return relaxed.entered();
  return gpu()->memory_allocate(out, bytes);
}

call_result device_resource::give_back(device_address base, stream_handle) noexcept {
  const relaxed_capture_scope relaxed(*gpu());
  if (!relaxed.entered()) return relaxed.entered();
  return gpu()->memory_free(base);
}

}  // namespace millpond
