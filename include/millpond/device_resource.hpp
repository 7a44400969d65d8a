// Device memory by cuMemAlloc, a call a block.
#pragma once
#include "millpond/tracked_resource.hpp"

namespace millpond {

// Not stream-ordered: a block may be used at once on any stream, and freeing WAITS FOR THE WHOLE
// DEVICE (10 ms behind a 10 ms kernel, measured on an H200, driver 580.159, 2026-11-30), whatever
// stream is given. For allocations that live long; for the rest there is millpond::pool. Alignment
// above 512 bytes reserves that much more. Works on any thread, during other threads' captures too.
// Thread-safe. Errors: out_of_memory, driver_failure naming cuMemAlloc or cuMemFree.
class device_resource final : public tracked_resource {
 public:
  // registry: shared by the resources of a driver so that a pointer freed through the wrong one is
  // told apart; nullptr for one of its own.
  explicit device_resource(std::shared_ptr<driver> gpu,
                           std::shared_ptr<pointer_registry> registry = nullptr);
  ~device_resource() override { give_back_all(); }

 private:
  call_result obtain(device_address* out, std::uint64_t bytes, std::uint64_t alignment,
                     stream_handle stream) noexcept override;
  call_result give_back(device_address base, stream_handle stream) noexcept override;
};

}  // namespace millpond
