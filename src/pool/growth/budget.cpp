// Physical memory within limits and a budget: taking it, giving it back, what would fit, and the
// end.
#include <algorithm>
#include <limits>

#include "heap/stitch.hpp"
#include "millpond/base/units.hpp"
#include "pool/growth/physical_memory.hpp"

namespace millpond {

bool physical_memory::take_budget(std::uint64_t bytes) noexcept {
  return budget_ == nullptr || budget_->try_take(bytes);
}
void physical_memory::give_budget(std::uint64_t bytes) noexcept {
  if (budget_ != nullptr) budget_->give(bytes);
}

call_result physical_memory::create(physical_handle* out, std::uint64_t bytes) {
  if (!take_budget(bytes)) return {driver_status::out_of_memory, "memory_budget"};
  const call_result answer = gpu_.physical_create(out, bytes, location(), driver::shareable::no);
  if (!answer.ok()) give_budget(bytes);
  return answer;
}

call_result physical_memory::release(physical_handle handle, std::uint64_t bytes) noexcept {
  const call_result answer = gpu_.physical_release(handle);
  if (answer.ok()) give_budget(bytes);
  return answer;
}

error physical_memory::growth_error(call_result answer, std::uint64_t bytes) const {
  if (budget_ == nullptr || std::string_view(answer.call) != "memory_budget") {
    return to_error(answer, "growing the pool by " + format_bytes(bytes));
  }
  const memory_budget& shared = budget_->budget();
  return {error_code::out_of_memory,
          "the budget's limit of " + format_bytes(shared.limits().hard_bytes) +
              " would be passed: " + format_bytes(shared.used_bytes()) +
              " in use by all its members, " + format_bytes(bytes) + " more needed"};
}

bool physical_memory::past_soft_limit(std::uint64_t more) {
  if (budget_ != nullptr && budget_->budget().passes_soft(more)) return true;
  if (options_.soft_limit_bytes == 0) return false;
  return block_store::locked(blocks_).reserved() + more > options_.soft_limit_bytes;
}

void physical_memory::relieve(std::uint64_t bytes) {
  soft_limit_passes_.fetch_add(1, std::memory_order_relaxed);
  if (give_back(0) < bytes) reclaim_from_others(bytes);
}

std::uint64_t physical_memory::reclaim_from_others(std::uint64_t bytes) {
  return budget_ == nullptr ? 0 : budget_->budget().reclaim(bytes, budget_.get());
}

void physical_memory::fell_asleep(std::uint64_t bytes) noexcept {
  asleep_bytes_.store(bytes, std::memory_order_relaxed);
  block_store::locked(blocks_).remove_reserved(bytes);
}
void physical_memory::woke(std::uint64_t bytes) noexcept {
  block_store::locked(blocks_).add_reserved(bytes);
  asleep_bytes_.store(0, std::memory_order_relaxed);
}

pool::admission physical_memory::would_fit(std::uint64_t bytes, heap::owner_id owner) {
  const std::uint64_t size = align_up(bytes, heap::granule);
  const std::uint64_t granularity = std::max<std::uint64_t>(granularity_, 2 * MiB);
  std::uint64_t room = std::numeric_limits<std::uint64_t>::max();  // for new memory
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  if (options_.kind == memory_kind::device && gpu_.memory_info(&free, &total).ok()) room = free;
  if (budget_ != nullptr) room = std::min(room, budget_->budget().headroom());
  const block_store::locked books(blocks_);
  const heap::heap& in = books.heap();
  if (limit_bytes() != 0)
    room = std::min(room, limit_bytes() - std::min(limit_bytes(), books.reserved()));
  if (std::max(in.largest_free(owner), in.largest_free(heap::anyone)) >= size)
    return {pool::fit::now, 0, 0};
  // Growth at the end of the primary view, or a stitched range of free spans with fewer new bytes.
  std::uint64_t grown = align_up(size, granularity);
  if (granularity_ != 0) {
    const std::uint64_t tail =
        books.primary() != heap::no_view ? in.tail_bytes(books.primary(), owner) : 0;
    grown = align_up(size - std::min(size, tail), granularity);
    const auto stitched = heap::plan_stitch(in, size, owner);
    if (stitched.possible) grown = std::min(grown, align_up(stitched.new_bytes, granularity));
  } else {
    grown += 2 * MiB;
  }
  if (grown <= room) return {pool::fit::by_growing, grown, 0};
  // Every handle that nothing live lies in can be moved or given back once the GPU has passed the
  // frees in it.
  std::uint64_t loose = 0;
  for (heap::handle_id id = 0; id < in.handles().size(); ++id) {
    if (in.handles()[id].present && !in.holds_used(id)) loose += in.handles()[id].bytes;
  }
  if (granularity_ != 0 && grown <= room + loose)
    return {pool::fit::by_waiting, grown - std::min(grown, loose), 0};
  return {pool::fit::no, 0, grown - std::min(grown, room + loose)};
}

}  // namespace millpond
