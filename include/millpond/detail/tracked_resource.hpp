// What the five kinds have in common: the registry that knows their blocks, alignment, counters,
// and errors that carry the name of the call. A kind adds its two driver calls and nothing else.
#pragma once
#include "millpond/detail/language.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "millpond/detail/pointer_registry.hpp"
#include "millpond/memory/call_site.hpp"
#include "millpond/memory/memory_resource.hpp"

namespace millpond {

// A moment's numbers of one kind. Exact when no call is in flight.
struct resource_usage {
  std::uint64_t allocations = 0;  // that succeeded
  std::uint64_t deallocations = 0;
  std::uint64_t failed_allocations = 0;
  std::uint64_t failed_deallocations = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t live_bytes = 0;  // as asked for
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t reserved_bytes = 0;  // as asked of the driver: alignment beyond its own costs more
  std::uint64_t left_to_driver = 0;  // blocks freed when the driver was gone: its end freed them
};

// A resource whose calls note where they were made; the place is shown in errors and leak reports.
// The same calls through memory_resource& take the thread's scoped_call_site.
class placed_resource : public memory_resource {
 public:
  [[nodiscard]] result<void*> try_allocate(
      std::uint64_t bytes, std::uint64_t alignment, stream_handle stream,
      std::source_location where = std::source_location::current()) {
    const scoped_call_site here{call_site(where)};
    return memory_resource::try_allocate(bytes, alignment, stream);
  }
  [[nodiscard]] void* allocate(std::uint64_t bytes, std::uint64_t alignment, stream_handle stream,
                               std::source_location where = std::source_location::current()) {
    const scoped_call_site here{call_site(where)};
    return memory_resource::allocate(bytes, alignment, stream);
  }
  [[nodiscard]] void* allocate(std::uint64_t bytes, stream_handle stream,
                               std::source_location where = std::source_location::current()) {
    const scoped_call_site here{call_site(where)};
    return memory_resource::allocate(bytes, default_alignment, stream);
  }
  void deallocate(void* ptr, std::uint64_t bytes, stream_handle stream,
                  std::source_location where = std::source_location::current()) noexcept {
    const scoped_call_site here{call_site(where)};
    memory_resource::deallocate(ptr, bytes, stream);
  }
  [[nodiscard]] result<void> try_deallocate(
      void* ptr, std::uint64_t bytes, stream_handle stream,
      std::source_location where = std::source_location::current()) noexcept {
    const scoped_call_site here{call_site(where)};
    return memory_resource::try_deallocate(ptr, bytes, stream);
  }
};

// The base of the kinds. A block that outlives its resource is reported to the registry's leak sink
// and given back (left to the driver where that is gone).
class tracked_resource : public placed_resource {
 public:
  [[nodiscard]] memory_kind kind() const noexcept final { return owner_->kind; }
  [[nodiscard]] driver* gpu() const noexcept final { return gpu_.get(); }
  [[nodiscard]] const std::string& name() const noexcept { return owner_->name; }
  [[nodiscard]] const std::shared_ptr<pointer_registry>& registry() const noexcept {
    return registry_;
  }

  [[nodiscard]] resource_usage usage() const noexcept;
  [[nodiscard]] std::vector<block_facts> live_blocks() const { return registry_->live(owner_); }

 protected:
  // registry: nullptr makes one of this resource's own.
  tracked_resource(std::shared_ptr<driver> gpu, std::shared_ptr<pointer_registry> registry,
                   block_owner owner);

  // The kind's own calls. alignment matters to pageable memory alone, which is aligned by its call;
  // the others are aligned here by asking for more.
  virtual call_result obtain(device_address* out, std::uint64_t bytes, std::uint64_t alignment,
                             stream_handle stream) noexcept = 0;
  virtual call_result give_back(device_address base, stream_handle stream) noexcept = 0;
  // Asked before each allocation: a kind's own reason to refuse this one.
  virtual result<void> may_allocate(std::uint64_t) { return {}; }
  // What the kind's call aligns by itself, as seen; a block that is not so is asked for again with
  // more.
  enum class alignment_by : std::uint8_t { asking_for_more, the_call };
  [[nodiscard]] virtual alignment_by aligned_by() const noexcept {
    return alignment_by::asking_for_more;
  }

  // For the destructor of each kind, while its calls still exist.
  void give_back_all() noexcept;

 private:
  result<void*> do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                            stream_handle stream) final;
  result<void> do_deallocate(void* ptr, std::uint64_t bytes, stream_handle stream) noexcept final;
  result<block_facts> obtain_aligned(std::uint64_t bytes, std::uint64_t alignment,
                                     stream_handle stream);
  void count_allocation(const block_facts& block) noexcept;
  void count_deallocation(const block_facts& block) noexcept;

  std::shared_ptr<driver> gpu_;
  std::shared_ptr<pointer_registry> registry_;
  const block_owner* owner_;
  // Counts alone: they publish nothing. Two a call, the rest are derived or rare; a driver call
  // costs far more than the line they share.
  std::atomic<std::uint64_t> allocations_{0}, deallocations_{0}, live_bytes_{0},
      peak_live_bytes_{0};
  std::atomic<std::uint64_t> extra_bytes_{0};  // reserved for alignment, beyond live_bytes_
  std::atomic<std::uint64_t> failed_allocations_{0}, failed_deallocations_{0};
  std::atomic<std::uint64_t> left_to_driver_{0};
};

}  // namespace millpond
