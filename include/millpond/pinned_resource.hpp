// Pinned host memory by cuMemHostAlloc, a call a block.
#pragma once
#include "millpond/tracked_resource.hpp"

namespace millpond {

// CPU and GPU both reach it, at the same address. Not stream-ordered: a block may be used at once
// anywhere, and freeing WAITS FOR THE WHOLE DEVICE, as cuMemFree does. Dear: 1 MiB costs 0.5 ms and
// 1 GiB 0.4 s to pin (measured on an H200's host, driver 580.159, 2026-11-30), so keep the blocks,
// or pool them. Thread-safe. Errors: out_of_memory (more than the machine's memory: before the
// driver is asked), driver_failure naming cuMemHostAlloc or cuMemFreeHost.
class pinned_resource final : public tracked_resource {
 public:
  // write_combined: past the CPU's caches. Faster for the CPU to write and the GPU to read over the
  // link; very slow for the CPU to read.
  using caching = driver::host_flags;

  explicit pinned_resource(std::shared_ptr<driver> gpu,
                           std::shared_ptr<pointer_registry> registry = nullptr,
                           caching how = caching::none);
  ~pinned_resource() override { give_back_all(); }

 private:
  call_result obtain(device_address* out, std::uint64_t bytes, std::uint64_t alignment,
                     stream_handle stream) noexcept override;
  call_result give_back(device_address base, stream_handle stream) noexcept override;
  result<void> may_allocate(std::uint64_t bytes) override;

  caching how_;
};

}  // namespace millpond
