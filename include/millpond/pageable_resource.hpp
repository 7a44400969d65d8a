// Pageable memory: the C library's malloc, aligned.
#pragma once
#include "millpond/tracked_resource.hpp"

namespace millpond {

// For the CPU, and for copies to and from the GPU, which run at 8 to 15 GB/s where pinned memory
// runs at 55 (measured on an H200, driver 580.159, 2026-11-30). Kernels reach it only where the
// device has pageable memory access. The C library knows no streams: memory may be freed only after
// the GPU is done with it. deallocate therefore waits for `stream` first
// (on_free::wait_for_stream); work on other streams is the caller's to wait for. Where no GPU work
// ever touches the blocks, on_free::nothing frees at once, as does a resource made without a
// driver. Thread-safe. Errors: out_of_memory (more than memory and swap, with the numbers, unless
// the system overcommits), driver_failure naming cuStreamSynchronize.
class pageable_resource final : public tracked_resource {
 public:
  enum class on_free : std::uint8_t { wait_for_stream, nothing };

  // gpu may be nullptr: memory for the CPU alone.
  explicit pageable_resource(std::shared_ptr<driver> gpu,
                             std::shared_ptr<pointer_registry> registry = nullptr,
                             on_free what = on_free::wait_for_stream);
  ~pageable_resource() override { give_back_all(); }

 private:
  call_result obtain(device_address* out, std::uint64_t bytes, std::uint64_t alignment,
                     stream_handle stream) noexcept override;
  call_result give_back(device_address base, stream_handle stream) noexcept override;
  result<void> may_allocate(std::uint64_t bytes) override;
  [[nodiscard]] alignment_by aligned_by() const noexcept override { return alignment_by::the_call; }

  on_free what_;
};

}  // namespace millpond
