// A test double of the part of TensorRT's NvInferRuntime.h that the adapter implements, by the
// signatures and the shape of TensorRT 10 and 11: interfaces with a version, in a namespace of
// their own, and without copies; the calls without a stream are deprecated there, and must be
// overridable without a warning.
#pragma once
#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace nvinfer1 {

struct InterfaceInfo {
  const char* kind;
  std::int32_t major;
  std::int32_t minor;
};

class IVersionedInterface {
 public:
  virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
  virtual ~IVersionedInterface() noexcept = default;

 protected:
  IVersionedInterface() = default;
  IVersionedInterface(IVersionedInterface const&) = default;
  IVersionedInterface& operator=(IVersionedInterface const&) & = default;
};

using AllocatorFlags = std::uint32_t;
enum class AllocatorFlag : std::int32_t { kRESIZABLE = 0 };

namespace v_1_0 {

class IGpuAllocator : public IVersionedInterface {
 public:
  ~IGpuAllocator() override = default;
  IGpuAllocator() = default;
  [[deprecated]] virtual void* allocate(std::uint64_t const size, std::uint64_t const alignment,
                                        AllocatorFlags const flags) noexcept = 0;
  virtual void* reallocate(void* const, std::uint64_t, std::uint64_t) noexcept { return nullptr; }
  [[deprecated]] virtual bool deallocate(void* const memory) noexcept = 0;
  virtual void* allocateAsync(std::uint64_t const size, std::uint64_t const alignment,
                              AllocatorFlags const flags, cudaStream_t) noexcept {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return allocate(size, alignment, flags);
  }
  virtual bool deallocateAsync(void* const memory, cudaStream_t) noexcept {
    return deallocate(memory);
  }
#pragma GCC diagnostic pop
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"IGpuAllocator", 1, 0}; }

 protected:
  IGpuAllocator(IGpuAllocator const&) = default;
  IGpuAllocator& operator=(IGpuAllocator const&) & = default;
};

class IGpuAsyncAllocator : public IGpuAllocator {
 public:
  IGpuAsyncAllocator() = default;
  ~IGpuAsyncAllocator() override = default;
  void* allocateAsync(std::uint64_t const size, std::uint64_t const alignment,
                      AllocatorFlags const flags, cudaStream_t) noexcept override = 0;
  bool deallocateAsync(void* const memory, cudaStream_t) noexcept override = 0;
  [[deprecated]] void* allocate(std::uint64_t const size, std::uint64_t const alignment,
                                AllocatorFlags const flags) noexcept override {
    return allocateAsync(size, alignment, flags, nullptr);
  }
  [[deprecated]] bool deallocate(void* const memory) noexcept override {
    return deallocateAsync(memory, nullptr);
  }
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"IGpuAllocator", 1, 0}; }
};

}  // namespace v_1_0

using IGpuAllocator = v_1_0::IGpuAllocator;
using IGpuAsyncAllocator = v_1_0::IGpuAsyncAllocator;

}  // namespace nvinfer1
