// A hard limit on the bytes that a part of a program may have out at once.
#pragma once
#include <atomic>
#include <memory>

#include "millpond/resource_adaptor.hpp"

namespace millpond {

class block_sizes;

// The bytes counted are those asked for. Precise under threads: an allocation fails only where the
// bytes live and being allocated at that moment leave no room for it, and the limit is never
// passed, not for an instant. Thread-safe; lock-free with free_sizes::told. Errors: out_of_memory
// with limit, live and asked; the upstream's.
class limit_resource final : public resource_adaptor {
 public:
  limit_resource(memory_resource& upstream, std::uint64_t limit_bytes,
                 free_sizes sizes = free_sizes::remembered);
  ~limit_resource() override;

  [[nodiscard]] std::uint64_t limit_bytes() const noexcept {
    return limit_.load(std::memory_order_relaxed);
  }
  // Below what is live now is legal: nothing is taken away, and allocations fail until enough is
  // freed.
  void set_limit_bytes(std::uint64_t bytes) noexcept {
    limit_.store(bytes, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t live_bytes() const noexcept {
    return live_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t refused() const noexcept {
    return refused_.load(std::memory_order_relaxed);
  }

 private:
  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) override;
  result<void> do_deallocate(void* ptr, std::uint64_t bytes,
                             stream_handle stream) noexcept override;

  // Counts alone: they publish nothing.
  std::atomic<std::uint64_t> limit_;
  std::atomic<std::uint64_t> live_{0};
  std::atomic<std::uint64_t> refused_{0};
  std::unique_ptr<block_sizes> sizes_;  // nullptr where sizes are told
};

}  // namespace millpond
