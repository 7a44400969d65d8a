#include "millpond/memory/memory_resource.hpp"

#include <cstdio>
#include <memory>

#include "base/bits.hpp"
#include "base/fork.hpp"
#include "millpond/base/units.hpp"

namespace millpond {

void throw_error(const error& failure) {
  if (failure.code == error_code::out_of_memory) throw out_of_memory(failure);
  throw memory_error(failure);
}

error_sink default_error_sink() {
  auto printed = std::make_shared<std::atomic<int>>(0);
  return [printed](const error& failure) {
    if (printed->fetch_add(1, std::memory_order_relaxed) < 10) {
      std::fprintf(stderr, "millpond: %s: %s\n", to_string(failure.code), failure.message.c_str());
    }
  };
}

memory_resource::memory_resource() noexcept : born_in_fork_(fork_count()) {}

bool memory_resource::forked() const noexcept {
  return born_in_fork_ != fork_count();
}

bool memory_resource::host_accessible() const noexcept {
  return kind() == memory_kind::pinned || kind() == memory_kind::managed ||
         kind() == memory_kind::pageable;
}

bool memory_resource::device_accessible() const noexcept {
  if (kind() != memory_kind::pageable) return true;
  const driver* const used = gpu();
  return used != nullptr && used->info().pageable_memory_access;
}

result<void*> memory_resource::try_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                            stream_handle stream) {
  if (!is_power_of_two(alignment) || alignment > max_alignment) {
    return error{error_code::invalid_argument, "allocate: alignment " + std::to_string(alignment) +
                                                   " is not a power of two up to " +
                                                   std::to_string(max_alignment)};
  }
  if (forked()) return refused_in_child("allocate");
  if (bytes == 0) return static_cast<void*>(nullptr);
  if (bytes > max_bytes) {
    return error{error_code::out_of_memory, "allocate: " + std::to_string(bytes) + " bytes (" +
                                                format_bytes(bytes) +
                                                ") is more than any device has"};
  }
  return do_allocate(bytes, alignment, stream);
}

void* memory_resource::allocate(std::uint64_t bytes, std::uint64_t alignment,
                                stream_handle stream) {
  return or_throw(try_allocate(bytes, alignment, stream));
}

result<void> memory_resource::try_deallocate(void* ptr, std::uint64_t bytes,
                                             stream_handle stream) noexcept {
  if (ptr == nullptr) return {};
  if (forked()) return refused_in_child("deallocate");
  return do_deallocate(ptr, bytes, stream);
}

void memory_resource::deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept {
  const auto answer = try_deallocate(ptr, bytes, stream);
  if (!answer) report(answer.error());
}

void memory_resource::report(const error& failure) noexcept {
  deallocation_errors_.fetch_add(1, std::memory_order_relaxed);
  error_sink sink;
  {
    // In a forked child the lock's holder may not exist, so it is not waited for.
    std::unique_lock lock(sink_mutex_, std::defer_lock);
    if (!forked()) lock.lock();
    if (lock.owns_lock() || lock.try_lock()) sink = sink_;
  }
  if (sink) sink(failure);
}

void memory_resource::set_error_sink(error_sink sink) {
  const std::lock_guard lock(sink_mutex_);
  sink_ = std::move(sink);
}

}  // namespace millpond
