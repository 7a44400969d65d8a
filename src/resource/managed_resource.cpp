#include "millpond/managed_resource.hpp"

#include "driver/relaxed_capture.hpp"
#include "resource/wait.hpp"

namespace millpond {

managed_resource::managed_resource(std::shared_ptr<driver> gpu, std::shared_ptr<pointer_registry> registry)
    : tracked_resource(std::move(gpu), std::move(registry),
                       {"managed_resource", memory_kind::managed, "cuMemAllocManaged", "cuMemFree"}) {}

call_result managed_resource::obtain(device_address* out, std::uint64_t bytes, std::uint64_t,
                                     stream_handle) noexcept {
  const relaxed_capture_scope relaxed(*gpu());
  if (!relaxed.entered()) return relaxed.entered();
  return gpu()->managed_allocate(out, bytes);
}

call_result managed_resource::give_back(device_address base, stream_handle stream) noexcept {
  const relaxed_capture_scope relaxed(*gpu());
  if (!relaxed.entered()) return relaxed.entered();
  if (const call_result waited = wait_for_stream(*gpu(), stream); !waited.ok()) return waited;
  return gpu()->memory_free(base);
}

}  // namespace millpond
