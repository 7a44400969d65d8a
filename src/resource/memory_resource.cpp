#include "millpond/memory_resource.hpp"

#include <cstdio>
#include <memory>

#include "base/bits.hpp"

namespace millpond {

error_sink default_error_sink() {
  auto printed = std::make_shared<std::atomic<int>>(0);
  return [printed](const error& failure) {
    if (printed->fetch_add(1, std::memory_order_relaxed) < 10) {
      std::fprintf(stderr, "millpond: %s: %s\n", to_string(failure.code), failure.message.c_str());
    }
  };
}

result<void*> memory_resource::try_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                            stream_handle stream) {
  if (!is_power_of_two(alignment) || alignment > max_alignment) {
    return error{error_code::invalid_argument,
                 "allocate: alignment " + std::to_string(alignment) +
                     " is not a power of two up to " + std::to_string(max_alignment)};
  }
  if (bytes == 0) return static_cast<void*>(nullptr);
  return do_allocate(bytes, alignment, stream);
}

void* memory_resource::allocate(std::uint64_t bytes, std::uint64_t alignment, stream_handle stream) {
  auto answer = try_allocate(bytes, alignment, stream);
  if (answer) return *answer;
  if (answer.error().code == error_code::out_of_memory) throw out_of_memory(answer.error().message);
  throw memory_error(answer.error());
}

result<void> memory_resource::try_deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept {
  if (ptr == nullptr) return {};
  return do_deallocate(ptr, bytes, stream);
}

void memory_resource::deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept {
  const auto answer = try_deallocate(ptr, bytes, stream);
  if (answer) return;
  deallocation_errors_.fetch_add(1, std::memory_order_relaxed);
  error_sink sink;
  {
    const std::lock_guard lock(sink_mutex_);
    sink = sink_;
  }
  if (sink) sink(answer.error());
}

void memory_resource::set_error_sink(error_sink sink) {
  const std::lock_guard lock(sink_mutex_);
  sink_ = std::move(sink);
}

}  // namespace millpond
