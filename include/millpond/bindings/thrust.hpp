// millpond's memory for Thrust: an allocator for thrust::device_vector, and one for the scratch
// memory of algorithms.
//
//     using memory = millpond::thrust_allocator<float>;
//     thrust::device_vector<float, memory> x(1000, memory(*pool, stream));
//
//     millpond::thrust_scratch scratch(*pool, stream);
//     thrust::sort(thrust::cuda::par(scratch).on(stream), x.begin(), x.end());
//
// device_vector works on the default stream: give it nullptr, or order its stream yourself. The
// scratch allocator must be given the stream of the policy, and goes back on it, so that algorithms
// in a row share their scratch memory.
#pragma once
#include "millpond/detail/language.hpp"

#include <thrust/device_ptr.h>
#include <thrust/device_reference.h>

#include <cstddef>
#include <limits>
#include <type_traits>

#include "millpond/memory/memory_resource.hpp"

namespace millpond {

template <class T>
class thrust_allocator {
 public:
  using value_type = T;
  using pointer = thrust::device_ptr<T>;
  using const_pointer = thrust::device_ptr<const T>;
  using reference = thrust::device_reference<T>;
  using const_reference = thrust::device_reference<const T>;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  template <class U>
  struct rebind {
    using other = thrust_allocator<U>;
  };

  explicit thrust_allocator(memory_resource& memory, stream_handle stream = nullptr) noexcept
      : memory_(&memory), stream_(stream) {}
  template <class U>
  thrust_allocator(const thrust_allocator<U>& other) noexcept
      : memory_(&other.resource()), stream_(other.stream()) {}

  [[nodiscard]] pointer allocate(size_type count) {
    if (count > max_size())
      throw out_of_memory("thrust_allocator: more elements than any memory holds");
    return pointer(static_cast<T*>(memory_->allocate(count * sizeof(T), stream_)));
  }
  void deallocate(pointer ptr, size_type count) noexcept {
    memory_->deallocate(const_cast<std::remove_cv_t<T>*>(ptr.get()), count * sizeof(T), stream_);
  }
  [[nodiscard]] static constexpr size_type max_size() noexcept { return max_bytes / sizeof(T); }
  [[nodiscard]] memory_resource& resource() const noexcept { return *memory_; }
  [[nodiscard]] stream_handle stream() const noexcept { return stream_; }
  friend bool operator==(const thrust_allocator& a, const thrust_allocator& b) noexcept {
    return a.memory_ == b.memory_ && a.stream_ == b.stream_;
  }
  friend bool operator!=(const thrust_allocator& a, const thrust_allocator& b) noexcept {
    return !(a == b);
  }

 private:
  memory_resource* memory_;
  stream_handle stream_;
};

// For thrust::cuda::par(scratch) and thrust::cuda::par_nosync(scratch). Not to be shared by threads
// on one stream.
class thrust_scratch {
 public:
  using value_type = char;
  explicit thrust_scratch(memory_resource& memory, stream_handle stream = nullptr) noexcept
      : memory_(&memory), stream_(stream) {}
  [[nodiscard]] char* allocate(std::ptrdiff_t bytes) {
    return static_cast<char*>(memory_->allocate(static_cast<std::uint64_t>(bytes), stream_));
  }
  void deallocate(char* ptr, std::size_t bytes) noexcept {
    memory_->deallocate(ptr, bytes, stream_);
  }

 private:
  memory_resource* memory_;
  stream_handle stream_;
};

}  // namespace millpond
