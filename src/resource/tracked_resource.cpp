#include "millpond/detail/tracked_resource.hpp"

#include <fmt/format.h>

#include "base/bits.hpp"
#include "base/raise_to.hpp"
#include "driver/insist.hpp"
#include "millpond/base/units.hpp"
#include "resource/quiet_stream.hpp"
#include "resource/wait.hpp"

namespace millpond {
namespace {

// Every kind's call gives blocks aligned so: CUDA promises 256, and 512 is what it does (H200,
// driver 580.159, and every simulated GPU). A block found otherwise is asked for again with room to
// spare.
constexpr std::uint64_t usual_alignment = 512;

}  // namespace

tracked_resource::tracked_resource(std::shared_ptr<driver> gpu,
                                   std::shared_ptr<pointer_registry> registry, block_owner owner)
    : gpu_(std::move(gpu)),
      registry_(registry ? std::move(registry) : std::make_shared<pointer_registry>()),
      owner_(registry_->enrol(std::move(owner))) {}

void tracked_resource::give_back_all() noexcept {
  if (forked()) return;
  const std::vector<block_facts> left = registry_->dismiss(owner_);
  if (left.empty()) return;
  const bool alive = gpu_ != nullptr && gpu_->alive();
  // Their streams may be gone, so nothing less than the whole device is waited for; a leak is worth
  // a wait. Then any stream will do, and the default one may be kept from us by a capture.
  detail::quiet_stream quiet;
  stream_handle on = nullptr;
  if (alive) {
    static_cast<void>(wait_for_device(*gpu_));
    static_cast<void>(quiet.get(*gpu_, &on));
  }
  for (const block_facts& block : left) {
    if (alive || kind() == memory_kind::pageable)
      static_cast<void>(insist([&] { return give_back(block.base, on); }));
  }
  if (alive) quiet.end(*gpu_);
}

result<block_facts> tracked_resource::obtain_aligned(std::uint64_t bytes, std::uint64_t alignment,
                                                     stream_handle stream) {
  const bool by_call = aligned_by() == alignment_by::the_call;
  std::uint64_t extra = by_call || alignment <= usual_alignment ? 0 : alignment - usual_alignment;
  for (bool again = false;; again = true) {
    block_facts block;
    block.bytes = bytes;
    block.reserved = bytes + extra;
    call_result answer = obtain(&block.base, block.reserved, alignment, stream);
    if (answer.status == driver_status::invalid_context && gpu_ != nullptr &&
        gpu_->bind_thread().ok()) {
      // A thread's first call: the driver wants a context per thread.
      answer = obtain(&block.base, block.reserved, alignment, stream);
    }
    if (!answer.ok()) {
      return to_error(answer, fmt::format("{}: allocate {} bytes ({}), alignment {}", name(), bytes,
                                          format_bytes(bytes), alignment));
    }
    block.address = align_up(block.base, alignment);
    if (block.address + bytes <= block.base + block.reserved) return block;
    if (const call_result freed = give_back(block.base, stream); !freed.ok()) {
      return to_error(freed, fmt::format("{}: give back a block aligned too little", name()));
    }
    if (again) {
      return error{error_code::driver_failure,
                   fmt::format("{}: {} answered {:#x}, which holds no {} bytes aligned to {}",
                               name(), answer.call, block.base, bytes, alignment)};
    }
    extra = alignment;
  }
}

result<void*> tracked_resource::do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                            stream_handle stream) {
  if (auto allowed = may_allocate(bytes); !allowed) {
    failed_allocations_.fetch_add(1, std::memory_order_relaxed);
    return allowed.error();
  }
  auto obtained = obtain_aligned(bytes, alignment, stream);
  if (!obtained) {
    failed_allocations_.fetch_add(1, std::memory_order_relaxed);
    return obtained.error();
  }
  block_facts block = *obtained;
  block.stream = stream;
  block.owner = owner_;
  block.allocated = current_call_site();
  if (const auto added = registry_->add(block); !added) {
    failed_allocations_.fetch_add(1, std::memory_order_relaxed);
    static_cast<void>(give_back(block.base, stream));
    return added.error();
  }
  count_allocation(block);
  return reinterpret_cast<void*>(block.address);
}

result<void> tracked_resource::do_deallocate(void* ptr, std::uint64_t bytes,
                                             stream_handle stream) noexcept {
  const auto address = reinterpret_cast<std::uint64_t>(ptr);
  const auto taken = registry_->take(owner_, address, bytes, stream, current_call_site());
  if (!taken) {
    failed_deallocations_.fetch_add(1, std::memory_order_relaxed);
    error why = taken.error();
    driver::pointer_facts facts;
    if (why.code == error_code::foreign_pointer && gpu_ != nullptr &&
        gpu_->pointer_info(address, &facts).ok() && facts.bytes != 0) {
      why.message += fmt::format("; the driver knows it as {} memory, {} bytes from {:#x}",
                                 to_string(facts.kind), facts.bytes, facts.start);
      if (facts.kind != kind() && facts.kind != memory_kind::driver_pool &&
          kind() != memory_kind::driver_pool) {
        why.code = error_code::wrong_kind;
      }
    }
    return why;
  }
  const block_facts& block = *taken;
  if (kind() != memory_kind::pageable && gpu_ != nullptr && !gpu_->alive()) {
    left_to_driver_.fetch_add(1, std::memory_order_relaxed);
    count_deallocation(block);
    return {};
  }
  call_result answer = give_back(block.base, stream);
  if (answer.status == driver_status::invalid_context && gpu_ != nullptr &&
      gpu_->bind_thread().ok()) {
    answer = give_back(block.base, stream);
  }
  if (!answer.ok()) {
    registry_->restore(block);
    failed_deallocations_.fetch_add(1, std::memory_order_relaxed);
    return to_error(answer, fmt::format("{}: free {:#x}, {} bytes, which stays allocated", name(),
                                        block.address, block.bytes));
  }
  count_deallocation(block);
  return {};
}

void tracked_resource::count_allocation(const block_facts& block) noexcept {
  allocations_.fetch_add(1, std::memory_order_relaxed);
  if (block.reserved != block.bytes)
    extra_bytes_.fetch_add(block.reserved - block.bytes, std::memory_order_relaxed);
  const std::uint64_t live =
      live_bytes_.fetch_add(block.bytes, std::memory_order_relaxed) + block.bytes;
  raise_to(peak_live_bytes_, live);
}

void tracked_resource::count_deallocation(const block_facts& block) noexcept {
  deallocations_.fetch_add(1, std::memory_order_relaxed);
  live_bytes_.fetch_sub(block.bytes, std::memory_order_relaxed);
  if (block.reserved != block.bytes)
    extra_bytes_.fetch_sub(block.reserved - block.bytes, std::memory_order_relaxed);
}

resource_usage tracked_resource::usage() const noexcept {
  resource_usage now;
  // Frees first: a free seen has its allocation seen.
  now.deallocations = deallocations_.load(std::memory_order_relaxed);
  now.allocations = allocations_.load(std::memory_order_relaxed);
  now.failed_allocations = failed_allocations_.load(std::memory_order_relaxed);
  now.failed_deallocations = failed_deallocations_.load(std::memory_order_relaxed);
  now.live_blocks = now.allocations - now.deallocations;
  now.live_bytes = live_bytes_.load(std::memory_order_relaxed);
  now.peak_live_bytes = peak_live_bytes_.load(std::memory_order_relaxed);
  now.reserved_bytes = now.live_bytes + extra_bytes_.load(std::memory_order_relaxed);
  now.left_to_driver = left_to_driver_.load(std::memory_order_relaxed);
  return now;
}

}  // namespace millpond
