// millpond's memory for ONNX Runtime: an OrtAllocator over any memory_resource.
//
//     OrtMemoryInfo* info;   // api->CreateMemoryInfo("Cuda", OrtDeviceAllocator, 0,
//     OrtMemTypeDefault, &info) millpond::onnxruntime_allocator memory(*pool, info);
//     api->RegisterAllocator(environment, &memory);
//
// ONNX Runtime frees without a size or a stream: memory is allocated and freed on the stream given
// here, which must be the one that its CUDA execution provider computes on (user_compute_stream),
// or the default one. Thread-safe as the resource is. Alloc gives nullptr for 0 bytes and for
// failure; last_error() has the reason. ONNX Runtime before 1.23 reads no further than Reserve.
// Includes <onnxruntime_c_api.h>.
#pragma once
#include "millpond/detail/language.hpp"

#include <onnxruntime_c_api.h>

#include <cstddef>
#include <mutex>
#include <string>

#include "millpond/detail/allocate_and_wait.hpp"
#include "millpond/memory/memory_resource.hpp"

namespace millpond {

class onnxruntime_allocator final : public OrtAllocator {
 public:
  onnxruntime_allocator(memory_resource& memory, const OrtMemoryInfo* info,
                        stream_handle stream = nullptr) noexcept
      : OrtAllocator{}, memory_(&memory), info_(info), stream_(stream) {
    OrtAllocator::version =
        ORT_API_VERSION;  // the rest stays null: ONNX Runtime asks before it calls
    OrtAllocator::Alloc = [](OrtAllocator* self, std::size_t bytes) {
      return of(self).take(bytes);
    };
    OrtAllocator::Free = [](OrtAllocator* self, void* ptr) {
      of(self).memory_->deallocate(ptr, 0, of(self).stream_);
    };
    OrtAllocator::Info = [](const OrtAllocator* self) {
      return static_cast<const onnxruntime_allocator*>(self)->info_;
    };
    OrtAllocator::Reserve = [](OrtAllocator* self, std::size_t bytes) {
      return of(self).take(bytes);
    };
  }
  onnxruntime_allocator(const onnxruntime_allocator&) = delete;
  onnxruntime_allocator& operator=(const onnxruntime_allocator&) = delete;

  [[nodiscard]] std::string last_error() const {
    const std::lock_guard lock(mutex_);
    return last_error_;
  }

 private:
  static onnxruntime_allocator& of(OrtAllocator* self) noexcept {
    return *static_cast<onnxruntime_allocator*>(self);
  }
  void* take(std::size_t bytes) noexcept {
    try {
      // What the CPU can reach it writes at once.
      auto got = memory_->host_accessible()
                     ? detail::allocate_and_wait(*memory_, bytes, default_alignment, stream_)
                     : memory_->try_allocate(bytes, default_alignment, stream_);
      if (got) return *got;
      const std::lock_guard lock(mutex_);
      last_error_ = got.error().message;
    } catch (const std::exception&) {  // no memory on the host
    }
    return nullptr;
  }

  memory_resource* memory_;
  const OrtMemoryInfo* info_;
  stream_handle stream_;
  mutable std::mutex mutex_;  // a leaf, taken only when something fails
  std::string last_error_;
};

}  // namespace millpond
