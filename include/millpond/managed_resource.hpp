// Managed memory by cuMemAllocManaged, a call a block.
#pragma once
#include "millpond/managed_use.hpp"
#include "millpond/tracked_resource.hpp"

namespace millpond {

// CPU and GPU both reach it and its pages move to who touches them. Cheap to allocate (8 us
// whatever the size) and dear to touch: 256 MiB written by the CPU and then used by a kernel costs
// 33 to 42 ms, and 5.6 ms where it is prefetched first (driver::prefetch_async); measured on an
// H200, driver 580.159, 2026-11-30. A block may be used at once anywhere. deallocate waits for
// `stream`, then frees: work on other streams that uses the block must have been waited for by the
// caller, since a page that a kernel still reads must not go. Not for a stream that captures:
// refused, with the capture intact. With a use stated, blocks are whole 2 MiB (the unit of the
// driver's books), advised as the use asks, and gpu-resident ones are prefetched on the stream that
// they were allocated for. An allocation answers invalid_argument for a use that is slow by
// construction and not_supported without concurrent managed access; managed_use.hpp has the rules.
// managed_buffer.hpp makes the synchronisation between CPU and GPU impossible to forget.
// Thread-safe. Errors: out_of_memory (before the driver is asked, where it is more than the
// machine's memory and its devices' together), driver_failure naming cuMemAllocManaged,
// cuMemAdvise, cuMemPrefetchAsync, cuStreamSynchronize or cuMemFree.
class managed_resource final : public tracked_resource {
 public:
  explicit managed_resource(std::shared_ptr<driver> gpu,
                            std::shared_ptr<pointer_registry> registry = nullptr,
                            managed_use use = {});
  ~managed_resource() override { give_back_all(); }
  [[nodiscard]] const managed_use& use() const noexcept { return use_; }

 private:
  call_result obtain(device_address* out, std::uint64_t bytes, std::uint64_t alignment,
                     stream_handle stream) noexcept override;
  call_result give_back(device_address base, stream_handle stream) noexcept override;
  result<void> may_allocate(std::uint64_t bytes) override;

  managed_use use_;
};

}  // namespace millpond
