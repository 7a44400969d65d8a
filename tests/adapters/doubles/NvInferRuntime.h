// A test double of the part of TensorRT's NvInferRuntime.h that the adapter implements, by the signatures of TensorRT 10 and 11.
#pragma once
#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace nvinfer1 {

using AllocatorFlags = std::uint32_t;
enum class AllocatorFlag : std::int32_t { kRESIZABLE = 0 };

class IGpuAllocator {
 public:
  virtual ~IGpuAllocator() = default;
  virtual void* allocate(std::uint64_t size, std::uint64_t alignment, AllocatorFlags flags) noexcept = 0;
  virtual void* reallocate(void*, std::uint64_t, std::uint64_t) noexcept { return nullptr; }
  virtual bool deallocate(void* memory) noexcept = 0;
  virtual void* allocateAsync(std::uint64_t size, std::uint64_t alignment, AllocatorFlags flags, cudaStream_t) noexcept {
    return allocate(size, alignment, flags);
  }
  virtual bool deallocateAsync(void* memory, cudaStream_t) noexcept { return deallocate(memory); }
};

class IGpuAsyncAllocator : public IGpuAllocator {
 public:
  void* allocateAsync(std::uint64_t size, std::uint64_t alignment, AllocatorFlags flags, cudaStream_t stream) noexcept override = 0;
  bool deallocateAsync(void* memory, cudaStream_t stream) noexcept override = 0;
  void* allocate(std::uint64_t size, std::uint64_t alignment, AllocatorFlags flags) noexcept override {
    return allocateAsync(size, alignment, flags, nullptr);
  }
  bool deallocate(void* memory) noexcept override { return deallocateAsync(memory, nullptr); }
};

}  // namespace nvinfer1
