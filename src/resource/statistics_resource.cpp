#include "millpond/memory/adaptors.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/bits.hpp"
#include "base/raise_to.hpp"
#include "base/thread_number.hpp"
#include "millpond/base/units.hpp"
#include "resource/block_sizes.hpp"

namespace millpond {
namespace {}  // namespace

statistics_resource::statistics_resource(memory_resource& upstream, free_sizes sizes)
    : resource_adaptor(upstream), stripes_(std::make_unique<stripe[]>(stripe_count)) {
  static_assert((std::uint64_t{1} << (class_count - 1)) == max_bytes);
  if (sizes == free_sizes::remembered) sizes_ = std::make_unique<block_sizes>();
}

statistics_resource::~statistics_resource() = default;

statistics_resource::stripe& statistics_resource::mine() noexcept {
  return stripes_[thread_number() % stripe_count];
}

result<void*> statistics_resource::do_allocate(std::uint64_t bytes, std::uint64_t alignment,
                                               stream_handle stream) {
  auto answer = upstream().try_allocate(bytes, alignment, stream);
  if (answer && sizes_ && !sizes_->remember(reinterpret_cast<std::uint64_t>(*answer), bytes)) {
    upstream().deallocate(*answer, bytes, stream);
    answer = error{error_code::out_of_memory,
                   "statistics_resource: no host memory for the block's size"};
  }
  stripe& counts = mine();
  if (!answer) {
    counts.failed_allocations.fetch_add(1, std::memory_order_relaxed);
    return answer;
  }
  counts.allocated_bytes.fetch_add(bytes, std::memory_order_relaxed);
  counts.allocations[floor_log2(bytes)].fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t live = live_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  raise_to(peak_live_bytes_, live);
  return answer;
}

result<void> statistics_resource::do_deallocate(void* ptr, std::uint64_t bytes,
                                                stream_handle stream) noexcept {
  stripe& counts = mine();
  if (!sizes_ && bytes == 0) {
    counts.failed_deallocations.fetch_add(1, std::memory_order_relaxed);
    return error{error_code::invalid_argument,
                 "statistics_resource: a free without a size, where sizes are required; the "
                 "block stays allocated"};
  }
  const auto address = reinterpret_cast<std::uint64_t>(ptr);
  const std::uint64_t counted = sizes_ ? sizes_->take(address) : bytes;
  // Before the memory goes, or another thread that gets it at once would be counted on top of it
  // and the peak come out too high.
  if (counted != 0) live_bytes_.fetch_sub(counted, std::memory_order_relaxed);
  auto answer = upstream().try_deallocate(ptr, bytes, stream);
  if (answer) {
    if (counted != 0) {
      // A size that the caller told, which an upstream without books takes whatever it is.
      const std::size_t of = std::min<std::size_t>(floor_log2(counted), class_count - 1);
      counts.deallocations[of].fetch_add(1, std::memory_order_relaxed);
    }
    return answer;
  }
  counts.failed_deallocations.fetch_add(1, std::memory_order_relaxed);
  if (counted != 0) {
    live_bytes_.fetch_add(counted, std::memory_order_relaxed);
    if (sizes_) static_cast<void>(sizes_->remember(address, counted));
  }
  return answer;
}

allocation_statistics statistics_resource::statistics() const {
  allocation_statistics now;
  std::array<std::uint64_t, class_count> allocations{}, deallocations{};
  for (std::size_t at = 0; at < stripe_count; ++at) {
    const stripe& each = stripes_[at];
    now.allocated_bytes += each.allocated_bytes.load(std::memory_order_relaxed);
    now.failed_allocations += each.failed_allocations.load(std::memory_order_relaxed);
    now.failed_deallocations += each.failed_deallocations.load(std::memory_order_relaxed);
    for (std::size_t of = 0; of < class_count; ++of) {
      // Frees first: a free seen has its allocation seen.
      deallocations[of] += each.deallocations[of].load(std::memory_order_relaxed);
      allocations[of] += each.allocations[of].load(std::memory_order_relaxed);
    }
  }
  for (std::size_t of = 0; of < class_count; ++of) {
    now.allocations += allocations[of];
    now.deallocations += deallocations[of];
    if (allocations[of] == 0) continue;
    const std::uint64_t from = std::uint64_t{1} << of;
    const std::uint64_t live = allocations[of] - std::min(allocations[of], deallocations[of]);
    now.classes.push_back({from, 2 * from, allocations[of], live});
  }
  now.live_blocks = now.allocations - std::min(now.allocations, now.deallocations);
  now.live_bytes = live_bytes_.load(std::memory_order_relaxed);
  now.peak_live_bytes = peak_live_bytes_.load(std::memory_order_relaxed);
  return now;
}

void statistics_resource::reset_peak() noexcept {
  peak_live_bytes_.store(live_bytes_.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

std::string allocation_statistics::text() const {
  std::string out = fmt::format(
      "live {} in {} blocks, peak {}; {} allocations of {} in all, {} frees, {} + {} failed\n",
      format_bytes(live_bytes), live_blocks, format_bytes(peak_live_bytes), allocations,
      format_bytes(allocated_bytes), deallocations, failed_allocations, failed_deallocations);
  for (const size_class& each : classes) {
    out += fmt::format("  {:>9} to {:>9}: {:>10} allocations, {:>8} live\n",
                       format_bytes(each.from_bytes), format_bytes(each.to_bytes), each.allocations,
                       each.live_blocks);
  }
  return out;
}

}  // namespace millpond
