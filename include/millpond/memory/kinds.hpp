// The five kinds of memory, each as a memory_resource that makes one driver call, or one call of
// the C library, a block:
//
//   device_resource       device memory by cuMemAlloc
//   driver_pool_resource  the driver's own stream-ordered pool (cudaMallocFromPoolAsync)
//   pinned_resource       pinned host memory by cuMemHostAlloc
//   managed_resource      managed memory by cuMemAllocManaged
//   pageable_resource     the C library's malloc, aligned
//
// All are thread-safe. `registry` is shared by the resources of a driver, so that a pointer freed
// through the wrong one is recognised; nullptr for one of its own. Measured times are of an H200
// and its host, driver 580.159, 2026-11-30.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <memory>

#include "millpond/detail/tracked_resource.hpp"
#include "millpond/managed/managed_use.hpp"

namespace millpond {

namespace detail {
class quiet_stream;
}

// Device memory. Not stream-ordered: a block may be used at once on any stream, and freeing WAITS
// FOR THE WHOLE DEVICE (10 ms behind a 10 ms kernel), whatever stream is given. For allocations
// that live long; for the rest there is millpond::pool. Alignment above 512 bytes reserves that
// much more. Works on any thread, during other threads' captures too. Errors: out_of_memory,
// driver_failure naming cuMemAlloc or cuMemFree.
class device_resource final : public tracked_resource {
 public:
  explicit device_resource(std::shared_ptr<driver> gpu,
                           std::shared_ptr<pointer_registry> registry = nullptr);
  ~device_resource() override { give_back_all(); }

 private:
  call_result obtain(device_address* out, std::uint64_t bytes, std::uint64_t alignment,
                     stream_handle stream) noexcept override;
  call_result give_back(device_address base, stream_handle stream) noexcept override;
};

struct driver_pool_options {
  memory_location location =
      memory_location::device;    // host: pinned memory that the CPU reaches too
  std::uint64_t limit_bytes = 0;  // the pool's maxSize; 0: the device's memory
  // Unused bytes that the pool keeps when a stream, an event or the context is synchronised. CUDA's
  // own default is 0, which gives everything back each time: 46 us an allocation where keeping
  // costs 0.32.
  std::uint64_t keep_bytes = ~std::uint64_t{0};
};

// A pool of the driver's, of this resource's own. Stream-ordered: a block may be used by work put
// on its stream after the allocation, and the stream it is freed on decides when its memory serves
// again. Both streams may differ if the caller has ordered them. An allocation on a capturing
// stream becomes a node of the graph; free it in the same capture. Errors: out_of_memory,
// not_supported, driver_failure naming the call.
class driver_pool_resource final : public tracked_resource {
 public:
  [[nodiscard]] static result<std::unique_ptr<driver_pool_resource>> create(
      std::shared_ptr<driver> gpu, driver_pool_options options = {},
      std::shared_ptr<pointer_registry> registry = nullptr);
  // Throws memory_error where the pool cannot be made.
  explicit driver_pool_resource(std::shared_ptr<driver> gpu, driver_pool_options options = {},
                                std::shared_ptr<pointer_registry> registry = nullptr);
  // The driver keeps the pool's memory until the frees on their streams have passed. Does not wait.
  ~driver_pool_resource() override;

  // True for a pool of host memory.
  [[nodiscard]] bool host_accessible() const noexcept override {
    return location_ == memory_location::host;
  }

  // Gives back unused memory until keep_bytes are reserved. Sees only frees whose completion the
  // host has observed.
  result<void> trim(std::uint64_t keep_bytes = 0);
  result<void> set_keep_bytes(std::uint64_t keep_bytes);
  // What the driver says of the pool: reserved and used bytes now, and the peaks.
  [[nodiscard]] result<driver::pool_usage> driver_usage() const;
  // For the caller's own driver calls; owned by this resource.
  [[nodiscard]] pool_handle handle() const noexcept { return pool_; }

 private:
  driver_pool_resource(std::shared_ptr<driver> gpu, pool_handle pool, memory_location location,
                       std::shared_ptr<pointer_registry> registry);
  call_result obtain(device_address* out, std::uint64_t bytes, std::uint64_t alignment,
                     stream_handle stream) noexcept override;
  call_result give_back(device_address base, stream_handle stream) noexcept override;

  pool_handle pool_;
  memory_location location_;
};

// Pinned host memory. CPU and GPU both reach it, at the same address. Not stream-ordered: a block
// may be used at once anywhere, and freeing WAITS FOR THE WHOLE DEVICE, as cuMemFree does. Dear: 1
// MiB costs 0.5 ms and 1 GiB 0.4 s to pin, so keep the blocks, or pool them. Errors: out_of_memory
// (more than the machine's memory: before the driver is asked), driver_failure naming
// cuMemHostAlloc or cuMemFreeHost.
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

// Managed memory. CPU and GPU both reach it and its pages move to who touches them. Cheap to
// allocate (8 us whatever the size) and dear to touch: 256 MiB written by the CPU and then used by
// a kernel costs 33 to 42 ms, and 5.6 ms where it is prefetched first (driver::prefetch_async). A
// block may be used at once anywhere. deallocate waits for `stream`, then frees: work on other
// streams that uses the block must have been waited for by the caller, since a page that a kernel
// still reads must not go. Not for a stream that captures: refused, with the capture intact. With a
// use stated, blocks are whole 2 MiB (the unit of the driver's books), advised as the use asks, and
// gpu-resident ones are prefetched on the stream that they were allocated for. An allocation
// answers invalid_argument for a use that is slow by construction and not_supported without
// concurrent managed access; managed_use.hpp has the rules. managed_buffer.hpp makes the
// synchronisation between CPU and GPU impossible to forget. Errors: out_of_memory (before the
// driver is asked, where it is more than the machine's memory and its devices' together),
// driver_failure naming cuMemAllocManaged, cuMemAdvise, cuMemPrefetchAsync, cuStreamSynchronize or
// cuMemFree.
class managed_resource final : public tracked_resource {
 public:
  explicit managed_resource(std::shared_ptr<driver> gpu,
                            std::shared_ptr<pointer_registry> registry = nullptr,
                            managed_use use = {});
  ~managed_resource() override;
  [[nodiscard]] const managed_use& use() const noexcept { return use_; }
  // A stream of its own, made at the first call, which never captures and lives as long as this:
  // for prefetches and frees of blocks whose work is done, when the stream that they were allocated
  // for may be gone. Any thread. Errors: the driver's.
  [[nodiscard]] result<stream_handle> own_stream();

 private:
  call_result obtain(device_address* out, std::uint64_t bytes, std::uint64_t alignment,
                     stream_handle stream) noexcept override;
  call_result give_back(device_address base, stream_handle stream) noexcept override;
  result<void> may_allocate(std::uint64_t bytes) override;

  managed_use use_;
  std::unique_ptr<detail::quiet_stream> own_;
};

// Pageable memory, for the CPU and for copies to and from the GPU, which run at 8 to 15 GB/s where
// pinned memory runs at 55. Kernels reach it only where the device has pageable memory access. The
// C library knows no streams: memory may be freed only after the GPU is done with it. deallocate
// therefore waits for `stream` first (on_free::wait_for_stream); work on other streams is the
// caller's to wait for. Where no GPU work ever touches the blocks, on_free::nothing frees at once,
// as does a resource made without a driver. Errors: out_of_memory (more than memory and swap, with
// the numbers, unless the system overcommits), driver_failure naming cuStreamSynchronize.
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
