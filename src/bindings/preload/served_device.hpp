// What a program that knows nothing of millpond gets on one device: memory that behaves as
// cudaMalloc's, cudaMallocAsync's, cudaHostAlloc's and cudaMallocManaged's does.
//
// cudaMalloc's memory may be used at once on any stream, so that it comes from a pool of its own,
// on a stream that never has work: what lies there is done on the device. What the program frees
// gets there when the device has been waited for (free_mode::waits), or when an event over the
// whole context has passed (free_mode::later).
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "bindings/preload/segments.hpp"
#include "bindings/preload/settings.hpp"
#include "millpond/pool/pool.hpp"

namespace millpond::preload {

class served_device {
 public:
  static result<std::unique_ptr<served_device>> create(std::shared_ptr<driver> gpu,
                                                       const settings& chosen);
  // Gives all back, live blocks too. Waits for the device.
  ~served_device();

  // nullptr where the kind is not served here or there is no memory: the program's own call is made
  // then.
  [[nodiscard]] void* allocate(memory_kind kind, std::uint64_t bytes);
  [[nodiscard]] void* allocate_async(std::uint64_t bytes, stream_handle stream);

  // Who has the block that starts, or merely lies, at this address.
  enum class owner : std::uint8_t { nobody, device, ordered, pinned, managed, segment };
  [[nodiscard]] owner find(const void* ptr, pool::block_range* range) const;
  // Freed by the program, and still an allocation of the driver's (--ipc).
  [[nodiscard]] bool keeps(const void* ptr) const;

  // As cudaFree, cudaFreeHost; and as cudaFreeAsync. False where the address is not the start of a
  // live block.
  bool deallocate(void* ptr);
  bool deallocate_async(void* ptr, stream_handle stream);

  // Reserved and not live: what cudaMemGetInfo adds to what is free.
  [[nodiscard]] std::uint64_t unused_bytes() const;
  struct numbers {
    std::uint64_t allocations = 0, live_bytes = 0, reserved_bytes = 0, peak_reserved_bytes = 0;
  };
  [[nodiscard]] numbers count() const;
  [[nodiscard]] driver& gpu() const noexcept { return *gpu_; }
  [[nodiscard]] bool serves(memory_kind kind) const noexcept;
  [[nodiscard]] const settings& chosen() const noexcept { return settings_; }

 private:
  // free_mode::later: freed and not yet done.
  struct freed_block {
    pool* of;
    void* ptr;
  };

  served_device(std::shared_ptr<driver> gpu, const settings& chosen)
      : gpu_(std::move(gpu)), settings_(chosen) {}
  result<std::shared_ptr<pool>> make_pool(memory_kind kind, std::uint64_t limit);
  [[nodiscard]] pool* pool_of(owner who) const noexcept;
  void give(pool& to, void* ptr, stream_handle stream);
  void take_in_passed();  // under later_mutex_, as the next
  void give_all(std::vector<freed_block>& blocks);
  bool relieve();

  std::shared_ptr<driver> gpu_;
  const settings settings_;
  stream_handle quiet_ = nullptr;  // a stream that never has work
  std::shared_ptr<pool> device_, ordered_, pinned_, managed_;
  std::unique_ptr<segments> segments_;

  // One event is out at a time, over all that was freed before it.
  std::mutex later_mutex_;  // before the pools' own locks
  std::vector<freed_block> open_, fenced_;
  std::unordered_set<void*> waiting_;  // both lists' blocks
  event_handle fence_ = nullptr;
  bool fence_out_ = false;
};

}  // namespace millpond::preload
