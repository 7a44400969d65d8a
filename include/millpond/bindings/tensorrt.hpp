// millpond's memory for TensorRT 10 and 11: nvinfer1::IGpuAsyncAllocator over a pool, whose
// reallocate grows a block in place.
//
//     millpond::tensorrt_allocator memory(pool, growable);       // growable may be nullptr: then
//     nothing grows in place runtime->setGpuAllocator(&memory);                         // or a
//     context's, or a builder's
//
// Blocks that TensorRT marks as resizable come from the growable memory, all others from the pool,
// in the stream's order. As TensorRT asks: thread-safe, noexcept, nullptr for 0 bytes and for
// failure, whose reason last_error() keeps. The allocator must outlive the objects that use it.
// Includes <NvInferRuntime.h>, which is the user's to have.
#pragma once
#include "millpond/detail/language.hpp"

#include <NvInferRuntime.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "millpond/detail/allocate_and_wait.hpp"
#include "millpond/growable/growable_blocks.hpp"
#include "millpond/memory/memory_resource.hpp"

namespace millpond {

namespace detail {
// What both interfaces share.
class tensorrt_memory {
 public:
  tensorrt_memory(std::shared_ptr<memory_resource> memory,
                  std::shared_ptr<growable_blocks> growable)
      : memory_(std::move(memory)), growable_(std::move(growable)) {
    if (memory_ == nullptr || !memory_->device_accessible()) {
      throw memory_error(
          {error_code::wrong_kind, "tensorrt_allocator: memory that kernels reach is needed"});
    }
  }

  void* allocate(std::uint64_t bytes, std::uint64_t alignment, nvinfer1::AllocatorFlags flags,
                 stream_handle stream) noexcept {
    if (bytes == 0) return nullptr;
    const auto resizable = static_cast<nvinfer1::AllocatorFlags>(
        1U << static_cast<std::uint32_t>(nvinfer1::AllocatorFlag::kRESIZABLE));
    try {
      if (growable_ != nullptr && (flags & resizable) != 0) {
        if (auto got = growable_->allocate(bytes)) return *got;
      }
      auto got = memory_->try_allocate(
          bytes, alignment < default_alignment ? default_alignment : alignment, stream);
      if (got) return *got;
      return fail(got.error().message);
    } catch (const std::exception& why) {
      return fail(why.what());
    }
  }
  bool deallocate(void* ptr, stream_handle stream) noexcept {
    if (ptr == nullptr) return true;
    try {
      if (growable_ != nullptr && growable_->capacity(ptr) != 0) {
        // Growable memory knows no streams: the block may serve again at once.
        const call_result waited = growable_->gpu().stream_synchronize(stream);
        if (!waited.ok()) return fail(to_string(waited)) != nullptr;
        return growable_->deallocate(ptr).has_value();
      }
      const auto freed = memory_->try_deallocate(ptr, 0, stream);
      return freed ? true : fail(freed.error().message) != nullptr;
    } catch (const std::exception& why) {
      return fail(why.what()) != nullptr;
    }
  }
  void* reallocate(void* base, std::uint64_t new_bytes) noexcept {
    try {
      if (base == nullptr || growable_ == nullptr || growable_->capacity(base) == 0)
        return nullptr;  // TensorRT copies
      const auto grown = growable_->grow(base, new_bytes);
      return grown ? base : fail(grown.error().message);
    } catch (const std::exception& why) {
      return fail(why.what());
    }
  }
  [[nodiscard]] std::string last_error() const {
    const std::lock_guard lock(mutex_);
    return last_error_;
  }

 private:
  void* fail(const std::string& why) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      last_error_ = why;
    } catch (...) {  // no memory for the words
    }
    return nullptr;
  }
  const std::shared_ptr<memory_resource> memory_;
  const std::shared_ptr<growable_blocks> growable_;
  mutable std::mutex mutex_;  // a leaf, taken only when something fails
  std::string last_error_;
};
}  // namespace detail

class tensorrt_allocator final : public nvinfer1::IGpuAsyncAllocator {
 public:
  explicit tensorrt_allocator(std::shared_ptr<memory_resource> memory,
                              std::shared_ptr<growable_blocks> growable = nullptr)
      : memory_(std::move(memory), std::move(growable)) {}

  void* allocateAsync(std::uint64_t size, std::uint64_t alignment, nvinfer1::AllocatorFlags flags,
                      cudaStream_t stream) noexcept override {
    return memory_.allocate(size, alignment, flags, stream);
  }
  bool deallocateAsync(void* ptr, cudaStream_t stream) noexcept override {
    return memory_.deallocate(ptr, stream);
  }
  void* reallocate(void* base, std::uint64_t /*alignment*/,
                   std::uint64_t new_size) noexcept override {
    return memory_.reallocate(base, new_size);
  }
  [[nodiscard]] std::string last_error() const { return memory_.last_error(); }

 private:
  detail::tensorrt_memory memory_;
};

// The same for code that knows IGpuAllocator alone: no streams, so that a block is freed when its
// work is done, and an allocation waits until the default stream's frees have run.
class tensorrt_synchronous_allocator final : public nvinfer1::IGpuAllocator {
 public:
  explicit tensorrt_synchronous_allocator(std::shared_ptr<memory_resource> memory,
                                          std::shared_ptr<growable_blocks> growable = nullptr)
      : gpu_(memory == nullptr ? nullptr : memory->gpu()),
        memory_(std::move(memory), std::move(growable)) {}

  void* allocate(std::uint64_t size, std::uint64_t alignment,
                 nvinfer1::AllocatorFlags flags) noexcept override {
    void* const ptr = memory_.allocate(size, alignment, flags, nullptr);
    if (ptr != nullptr && gpu_ != nullptr && !detail::wait_on_host(*gpu_, nullptr)) {
      static_cast<void>(memory_.deallocate(ptr, nullptr));
      return nullptr;
    }
    return ptr;
  }
  bool deallocate(void* ptr) noexcept override { return memory_.deallocate(ptr, nullptr); }
  void* reallocate(void* base, std::uint64_t /*alignment*/,
                   std::uint64_t new_size) noexcept override {
    return memory_.reallocate(base, new_size);
  }
  [[nodiscard]] std::string last_error() const { return memory_.last_error(); }

 private:
  driver* gpu_;
  detail::tensorrt_memory memory_;
};

}  // namespace millpond
