// The pool of pinned memory: the stream-ordered pool over memory that many threads pinned, and
// small blocks in it that CPU and GPU talk through.
#pragma once
#include "millpond/detail/language.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "millpond/detail/allocate_and_wait.hpp"
#include "millpond/memory/host_pinner.hpp"
#include "millpond/pool/pool.hpp"

namespace millpond {

struct pinned_pool_options {
  host_pinner_options pinning = {};
  std::uint64_t initial_bytes =
      0;  // pinned when the pool is made, 8 times faster than by cuMemHostAlloc
  std::uint64_t limit_bytes = 0;  // of the pool; 0: the pinning budget
  // write_combined: past the CPU's caches: for blocks that the CPU only writes and the GPU reads;
  // the CPU reads it very slowly. It comes by cuMemHostAlloc, one thread at a time, since
  // registered memory cannot be so. Each piece takes 2 MiB more for its alignment; with those the
  // sum stays within limit_bytes and the budget as they are when the pool is made.
  driver::host_flags caching = driver::host_flags::none;
  reuse_policy reuse = reuse_policy::idle;
};

// Blocks split and join to the byte (rounded to 512), where a power of two would waste up to half.
// Freed on a stream they serve others when that stream has passed: a copy that still reads a block
// keeps it. So the CPU writes a new block only when the stream has run what was put on it before.
// Nothing is unpinned before the pool ends, so no call waits for the device. Errors:
// invalid_argument; out_of_memory where initial_bytes passes the budget.
[[nodiscard]] result<std::shared_ptr<pool>> make_pinned_pool(
    std::shared_ptr<driver> gpu, const pinned_pool_options& options = {});

// One T that CPU and GPU both see, in mapped pinned memory on cache lines of its own. What a round
// trip through it costs: 10 us where the same in managed memory has a p99 of 800 (H200, driver
// 580.159, 2026-11-30).
//
// The CPU writes with store and reads with load; both are whole and ordered (release, acquire). For
// the GPU: a kernel launched after store sees it; what a kernel writes is seen by load once the
// kernel is done, or while it runs if it writes with system scope (__threadfence_system).
// Move-only; any thread. The resource must outlive it.
template <class T>
class control_block {
  static_assert(std::is_trivially_copyable_v<T>, "the GPU reads a control block as bytes");
  static_assert(std::atomic_ref<T>::is_always_lock_free,
                "a control block holds what one instruction writes: at most 8 bytes");

 public:
  // from: a pinned resource. Waits until what is on the stream has run, since the block may have
  // been freed there by work that still uses it. Throws out_of_memory or memory_error;
  // not_permitted where the stream captures: make the block before.
  control_block(memory_resource& from, stream_handle stream, T initial = {})
      : from_(&from), stream_(stream), at_(take(from, stream)) {
    new (at_) T(initial);
  }
  control_block(control_block&& other) noexcept
      : from_(other.from_), stream_(other.stream_), at_(std::exchange(other.at_, nullptr)) {}
  control_block& operator=(control_block&& other) noexcept {
    if (this == &other) return *this;
    if (at_ != nullptr) from_->deallocate(at_, line, stream_);
    from_ = other.from_;
    stream_ = other.stream_;
    at_ = std::exchange(other.at_, nullptr);
    return *this;
  }
  ~control_block() {
    if (at_ != nullptr) from_->deallocate(at_, line, stream_);
  }

  void store(T value) noexcept { std::atomic_ref<T>(*at_).store(value, std::memory_order_release); }
  [[nodiscard]] T load() const noexcept {
    return std::atomic_ref<T>(*at_).load(std::memory_order_acquire);
  }
  // For kernels' parameters.
  [[nodiscard]] device_address address() const noexcept {
    return reinterpret_cast<device_address>(at_);
  }

 private:
  static constexpr std::uint64_t line = 512;  // a block of the pool: shared with nothing
  static T* take(memory_resource& from, stream_handle stream) {
    if (!from.host_accessible()) {
      throw memory_error({error_code::wrong_kind,
                          "control_block: the resource's memory is not the CPU's to touch"});
    }
    return static_cast<T*>(
        or_throw(detail::allocate_and_wait(from, line, default_alignment, stream)));
  }
  memory_resource* from_;
  stream_handle stream_;
  T* at_;
};

}  // namespace millpond
