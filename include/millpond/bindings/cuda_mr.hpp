// millpond's memory for the CUDA C++ libraries: a resource of cuda::mr, of both generations of that
// interface, so that one object serves with the CCCL of CUDA 12.9 and 13.0 (async_resource) and
// from CCCL 3.1 on (resource, stream first). RMM 26 takes it as rmm::device_async_resource_ref.
//
//     const millpond::cuda_device_resource memory(*pool);
//     rmm::device_uvector<float> x(1000, stream, memory);
//
// A reference: two words, copied freely; the millpond::memory_resource must outlive all copies.
// Thread-safe as that is. allocate throws millpond::out_of_memory (a std::bad_alloc) or
// memory_error; deallocate throws nothing, and its errors go to the resource's error sink.
//
// Includes the CUDA toolkit's headers, which are the user's to have; with CCCL before 3.1 it
// defines LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE, so include it before other headers of
// CUDA, or define that yourself.
#pragma once
#include "millpond/detail/language.hpp"

#if !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif
#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <cstddef>
#include <string>
#include <type_traits>

#include "millpond/detail/allocate_and_wait.hpp"
#include "millpond/memory/memory_resource.hpp"

// cuda::mr::properties_list and default_queries came with CCCL 3.2.
#if CCCL_MAJOR_VERSION > 3 || (CCCL_MAJOR_VERSION == 3 && CCCL_MINOR_VERSION >= 1)
#define MILLPOND_CUDA_MR_STREAM_FIRST 1
#else
#define MILLPOND_CUDA_MR_STREAM_FIRST 0
#endif

namespace millpond {

template <class... Properties>
class cuda_resource {
  template <class Property>
  static constexpr bool promises = (std::is_same_v<Property, Properties> || ...);

 public:
#if CCCL_MAJOR_VERSION > 3 || (CCCL_MAJOR_VERSION == 3 && CCCL_MINOR_VERSION >= 2)
  using default_queries = cuda::mr::properties_list<Properties...>;
#endif
  // CUDA's own default alignment of memory; millpond gives default_alignment (512) at least.
  static constexpr std::size_t alignment = 256;

  // Throws memory_error (wrong_kind) where the memory cannot be reached from where the properties
  // say.
  explicit cuda_resource(memory_resource& memory) : memory_(&memory) {
    if (promises<cuda::mr::host_accessible> && !memory.host_accessible()) refuse("the CPU");
    if (promises<cuda::mr::device_accessible> && !memory.device_accessible()) refuse("the GPU");
  }

  // --- In the order of a stream
  // -------------------------------------------------------------------------------
#if MILLPOND_CUDA_MR_STREAM_FIRST
  [[nodiscard]] void* allocate(cuda::stream_ref stream, std::size_t bytes,
                               std::size_t align = alignment) {
    return memory_->allocate(bytes, align, stream.get());
  }
  void deallocate(cuda::stream_ref stream, void* ptr, std::size_t bytes,
                  std::size_t = alignment) noexcept {
    memory_->deallocate(ptr, bytes, stream.get());
  }
#endif
  [[nodiscard]] void* allocate_async(std::size_t bytes, std::size_t align,
                                     cuda::stream_ref stream) {
    return memory_->allocate(bytes, align, stream.get());
  }
  [[nodiscard]] void* allocate_async(std::size_t bytes, cuda::stream_ref stream) {
    return memory_->allocate(bytes, alignment, stream.get());
  }
  void deallocate_async(void* ptr, std::size_t bytes, std::size_t,
                        cuda::stream_ref stream) noexcept {
    memory_->deallocate(ptr, bytes, stream.get());
  }
  void deallocate_async(void* ptr, std::size_t bytes, cuda::stream_ref stream) noexcept {
    memory_->deallocate(ptr, bytes, stream.get());
  }

  // --- With no stream: usable at once anywhere; freed when the caller knows that all work on it is
  // done -----------
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t align = alignment) {
    // A pool's block may have been freed by work that is still to come on the default stream.
    return or_throw(detail::allocate_and_wait(*memory_, bytes, align, nullptr));
  }
  void deallocate_sync(void* ptr, std::size_t bytes, std::size_t = alignment) noexcept {
    memory_->deallocate(ptr, bytes, nullptr);
  }
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t align = alignment) {
    return allocate_sync(bytes, align);
  }
  void deallocate(void* ptr, std::size_t bytes, std::size_t align = alignment) noexcept {
    deallocate_sync(ptr, bytes, align);
  }

  [[nodiscard]] memory_resource& resource() const noexcept { return *memory_; }

  friend bool operator==(const cuda_resource& a, const cuda_resource& b) noexcept {
    return a.memory_ == b.memory_;
  }
  friend bool operator!=(const cuda_resource& a, const cuda_resource& b) noexcept {
    return a.memory_ != b.memory_;
  }
  template <class Property, std::enable_if_t<promises<Property>, int> = 0>
  friend constexpr void get_property(const cuda_resource&, Property) noexcept {}

 private:
  [[noreturn]] void refuse(const char* whom) const {
    throw memory_error({error_code::wrong_kind, std::string("cuda_resource: ") + whom +
                                                    " cannot reach " + to_string(memory_->kind()) +
                                                    " memory"});
  }
  memory_resource* memory_;
};

// Device memory; pinned, managed (and host pools), which both sides reach; pageable memory.
using cuda_device_resource = cuda_resource<cuda::mr::device_accessible>;
using cuda_host_device_resource =
    cuda_resource<cuda::mr::device_accessible, cuda::mr::host_accessible>;
using cuda_host_resource = cuda_resource<cuda::mr::host_accessible>;

#if MILLPOND_CUDA_MR_STREAM_FIRST
static_assert(cuda::mr::resource_with<cuda_device_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource_with<cuda_host_device_resource, cuda::mr::device_accessible,
                                      cuda::mr::host_accessible>);
static_assert(cuda::mr::resource_with<cuda_host_resource, cuda::mr::host_accessible>);
static_assert(!cuda::mr::resource_with<cuda_device_resource, cuda::mr::host_accessible>);
#else
static_assert(cuda::mr::async_resource_with<cuda_device_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::async_resource_with<cuda_host_device_resource, cuda::mr::device_accessible,
                                            cuda::mr::host_accessible>);
static_assert(cuda::mr::async_resource_with<cuda_host_resource, cuda::mr::host_accessible>);
static_assert(!cuda::mr::async_resource_with<cuda_device_resource, cuda::mr::host_accessible>);
#endif

}  // namespace millpond
