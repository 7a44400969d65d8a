// millpond's memory in the standard library's places: std::pmr containers, allocators of
// containers, and unique_ptr.
//
//     millpond::pmr_resource pinned_for_pmr(*pinned_pool);
//     std::pmr::vector<float> staging(&pinned_for_pmr);
//
//     std::vector<float, millpond::std_allocator<float>>
//     staging(millpond::std_allocator<float>(*pinned_pool));
//
//     const auto scratch = millpond::make_unique_block<float>(*pool, 1'000'000, stream);   //
//     device memory too
//
// Containers touch their memory from the CPU, so the first two take host-accessible kinds alone
// (pinned, managed, pageable) and throw memory_error (wrong_kind) for others. Memory is allocated
// and freed on one stream, the default one unless it is named; a container frees when the CPU says
// so, so that work on other streams is the caller's to wait for.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstddef>
#include <limits>
#include <memory>
#include <memory_resource>
#include <string>
#include <type_traits>

#include "millpond/detail/allocate_and_wait.hpp"
#include "millpond/memory/memory_resource.hpp"

namespace millpond {

namespace detail {
inline memory_resource& reached_by_cpu(memory_resource& memory, const char* who) {
  if (memory.host_accessible()) return memory;
  throw memory_error({error_code::wrong_kind,
                      std::string(who) + ": the CPU cannot reach " + to_string(memory.kind()) +
                          " memory; pinned, managed or pageable memory is needed"});
}
inline void* allocate_for_cpu(memory_resource& memory, std::size_t bytes, std::size_t alignment,
                              stream_handle stream) {
  return or_throw(allocate_and_wait(
      memory, bytes, alignment < default_alignment ? default_alignment : alignment, stream));
}
}  // namespace detail

class pmr_resource final : public std::pmr::memory_resource {
 public:
  explicit pmr_resource(millpond::memory_resource& memory, stream_handle stream = nullptr)
      : memory_(&detail::reached_by_cpu(memory, "pmr_resource")), stream_(stream) {}
  [[nodiscard]] millpond::memory_resource& resource() const noexcept { return *memory_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return detail::allocate_for_cpu(*memory_, bytes == 0 ? 1 : bytes, alignment,
                                    stream_);  // 0 bytes have an address here
  }
  void do_deallocate(void* ptr, std::size_t bytes, std::size_t) override {
    memory_->deallocate(ptr, bytes == 0 ? 1 : bytes, stream_);
  }
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    const auto* const same = dynamic_cast<const pmr_resource*>(&other);
    return same != nullptr && same->memory_ == memory_ && same->stream_ == stream_;
  }
  millpond::memory_resource* memory_;
  stream_handle stream_;
};

template <class T>
class std_allocator {
 public:
  using value_type = T;
  // Containers that are moved, copied or swapped take their memory's source along.
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  explicit std_allocator(memory_resource& memory, stream_handle stream = nullptr)
      : memory_(&detail::reached_by_cpu(memory, "std_allocator")), stream_(stream) {}
  template <class U>
  std_allocator(const std_allocator<U>& other) noexcept
      : memory_(&other.resource()), stream_(other.stream()) {}

  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw std::bad_array_new_length();
    return static_cast<T*>(
        detail::allocate_for_cpu(*memory_, count * sizeof(T), alignof(T), stream_));
  }
  void deallocate(T* ptr, std::size_t count) noexcept {
    memory_->deallocate(ptr, count * sizeof(T), stream_);
  }

  [[nodiscard]] memory_resource& resource() const noexcept { return *memory_; }
  [[nodiscard]] stream_handle stream() const noexcept { return stream_; }
  template <class U>
  friend bool operator==(const std_allocator& a, const std_allocator<U>& b) noexcept {
    return &a.resource() == &b.resource() && a.stream() == b.stream();
  }

 private:
  memory_resource* memory_;
  stream_handle stream_;
};

// Gives a block back on its stream; constructs and destroys nothing. The memory must outlive it.
class block_deleter {
 public:
  block_deleter() noexcept = default;
  block_deleter(memory_resource& memory, std::uint64_t bytes, stream_handle stream) noexcept
      : memory_(&memory), bytes_(bytes), stream_(stream) {}
  void operator()(void* ptr) const noexcept {
    if (memory_ != nullptr) memory_->deallocate(ptr, bytes_, stream_);
  }
  // On which stream the block goes back; the caller orders that stream behind the block's last use.
  void set_stream(stream_handle stream) noexcept { stream_ = stream; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  memory_resource* memory_ = nullptr;
  std::uint64_t bytes_ = 0;
  stream_handle stream_ = nullptr;
};

template <class T>
using unique_block = std::unique_ptr<T[], block_deleter>;

// Memory of any kind for `count` T, with no values in it. Throws as memory_resource::allocate.
template <class T>
[[nodiscard]] unique_block<T> make_unique_block(memory_resource& memory, std::size_t count,
                                                stream_handle stream) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                "a block's contents are bytes: nothing is constructed or destroyed");
  if (count > max_bytes / sizeof(T))
    throw out_of_memory("make_unique_block: more elements than any memory holds");
  const std::uint64_t bytes = std::uint64_t{count} * sizeof(T);
  void* const ptr = memory.allocate(
      bytes, alignof(T) > default_alignment ? alignof(T) : default_alignment, stream);
  return unique_block<T>(static_cast<T*>(ptr), block_deleter(memory, bytes, stream));
}

}  // namespace millpond
