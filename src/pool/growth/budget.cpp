// A pool's physical memory within its limits and its budget: taking it, giving it back, and what
// would fit.
#include <algorithm>
#include <limits>

#include "driver/relaxed_capture.hpp"
#include "heap/stitch.hpp"
#include "millpond/base/units.hpp"
#include "pool/core.hpp"

namespace millpond {

void pool::core::join_budget() {
  if (options_.budget == nullptr) return;
  const std::string name =
      options_.name.empty() ? std::string(to_string(options_.kind)) + " pool" : options_.name;
  budget_ =
      options_.budget->join(name, [weak = weak_from_this()](std::uint64_t bytes) -> std::uint64_t {
        const auto self = weak.lock();
        if (self == nullptr) return 0;
        std::uint64_t reserved = 0;
        {
          const std::lock_guard lock(self->heap_mutex_);
          reserved = self->reserved_;
        }
        return self->trim(reserved - std::min(reserved, bytes));
      });
}

bool pool::core::take_budget(std::uint64_t bytes) noexcept {
  return budget_ == nullptr || budget_->try_take(bytes);
}
void pool::core::give_budget(std::uint64_t bytes) noexcept {
  if (budget_ != nullptr) budget_->give(bytes);
}

call_result pool::core::create_physical(physical_handle* out, std::uint64_t bytes) {
  if (!take_budget(bytes)) return {driver_status::out_of_memory, "memory_budget"};
  const call_result answer = gpu_->physical_create(out, bytes, location(), driver::shareable::no);
  if (!answer.ok()) give_budget(bytes);
  return answer;
}

call_result pool::core::release_physical(physical_handle handle, std::uint64_t bytes) noexcept {
  const call_result answer = gpu_->physical_release(handle);
  if (answer.ok()) give_budget(bytes);
  return answer;
}

error pool::core::growth_error(call_result answer, std::uint64_t bytes) const {
  if (budget_ == nullptr || std::string_view(answer.call) != "memory_budget") {
    return to_error(answer, "growing the pool by " + format_bytes(bytes));
  }
  const memory_budget& shared = budget_->budget();
  return {error_code::out_of_memory,
          "the budget's limit of " + format_bytes(shared.limits().hard_bytes) +
              " would be passed: " + format_bytes(shared.used_bytes()) +
              " in use by all its members, " + format_bytes(bytes) + " more needed"};
}

bool pool::core::past_soft_limit(std::uint64_t more) {
  if (budget_ != nullptr && budget_->budget().passes_soft(more)) return true;
  if (options_.soft_limit_bytes == 0) return false;
  const std::lock_guard lock(heap_mutex_);
  return reserved_ + more > options_.soft_limit_bytes;
}

// Past the soft limit: what is unused goes back before more is taken.
void pool::core::relieve(std::uint64_t bytes) {
  counts_.soft_limit_passes.fetch_add(1, std::memory_order_relaxed);
  if (give_back(0) < bytes) reclaim_from_others(bytes);
}

std::uint64_t pool::core::reclaim_from_others(std::uint64_t bytes) {
  return budget_ == nullptr ? 0 : budget_->budget().reclaim(bytes, budget_.get());
}

// More memory at the end of the primary range, in one stretch with what is free there.
bool pool::core::grow_for_later(const request& what) {
  const std::lock_guard growing(growth_mutex_);
  if (!serving()) return false;
  heap::heap::place where;
  where.missing = what.size;
  if (granularity_ != 0) {
    const std::lock_guard lock(heap_mutex_);
    where = place_for(what);
  }
  const std::uint64_t missing = where.missing;
  if (missing == 0) return true;
  const auto grown = granularity_ != 0 ? extend(where) : add_chunk(missing);
  if (!grown) note_failure(grown.error());
  return grown.has_value();
}

// Reservation and admission
// ----------------------------------------------------------------------------

result<void> pool::core::reserve(std::uint64_t bytes) {
  if (!serving()) return not_serving();
  if (bytes == 0) return {};
  if (bytes > max_bytes)
    return error{error_code::out_of_memory,
                 "reserve: " + std::to_string(bytes) + " bytes is more than any device has"};
  request what;
  what.bytes = bytes;
  what.size = align_up(bytes, heap::granule);
  const relaxed_capture_scope relaxed(*gpu_);
  for (int tries = 0; tries < 8; ++tries) {
    {
      const std::lock_guard lock(heap_mutex_);
      if (heap_.largest_free(heap::anyone) >= what.size) return {};
    }
    // Not by stitching: a stitched range would answer a block, and here none is wanted yet.
    if (grow_for_later(what)) continue;
    if (tries == 0 && (give_back(0) > 0 || reclaim_from_others(what.size) > 0)) continue;
    break;
  }
  const std::lock_guard lock(heap_mutex_);
  return error{error_code::out_of_memory,
               "reserving " + format_bytes(bytes) + ": " + last_failure_.message};
}

pool::admission pool::core::would_fit(std::uint64_t bytes, stream_handle stream) {
  pool::admission out;
  out.missing_bytes = bytes;
  if (!serving() || bytes > max_bytes) return out;
  if (bytes == 0) return {pool::fit::now, 0, 0};
  const std::uint64_t size = align_up(bytes, heap::granule);
  const std::uint64_t granularity = std::max<std::uint64_t>(granularity_, 2 * MiB);
  std::uint64_t room = std::numeric_limits<std::uint64_t>::max();  // for new memory
  std::uint64_t total = 0;
  const relaxed_capture_scope relaxed(*gpu_);
  poll_fences();
  if (std::uint64_t free = 0;
      options_.kind == memory_kind::device && gpu_->memory_info(&free, &total).ok())
    room = free;
  if (budget_ != nullptr) room = std::min(room, budget_->budget().headroom());
  heap::owner_id owner = heap::anyone;
  capture_info capture;
  if (gpu_->stream_capture(stream, &capture).ok() && capture.status == capture_status::none) {
    std::uint64_t id = 0;
    if (gpu_->stream_id(stream, &id).ok()) {
      const std::shared_lock lock(streams_mutex_);
      if (const auto found = streams_.find(id); found != streams_.end())
        owner = found->second->owner;
    }
  }
  const std::lock_guard lock(heap_mutex_);
  if (limit_bytes() != 0) room = std::min(room, limit_bytes() - std::min(limit_bytes(), reserved_));
  if (std::max(heap_.largest_free(owner), heap_.largest_free(heap::anyone)) >= size)
    return {pool::fit::now, 0, 0};
  // Growth at the end of the primary view, or a stitched range of free spans with fewer new bytes.
  std::uint64_t grown = align_up(size, granularity);
  if (granularity_ != 0) {
    grown = align_up(size - std::min(size, has_primary_ ? heap_.tail_bytes(primary_, owner) : 0),
                     granularity);
    const auto stitched = heap::plan_stitch(heap_, size, owner);
    if (stitched.possible) grown = std::min(grown, align_up(stitched.new_bytes, granularity));
  } else {
    grown += 2 * MiB;
  }
  if (grown <= room) return {pool::fit::by_growing, grown, 0};
  // Every handle that nothing live lies in can be moved or given back once the GPU has passed the
  // frees in it.
  std::uint64_t loose = 0;
  for (heap::handle_id id = 0; id < heap_.handles().size(); ++id) {
    if (heap_.handles()[id].present && !heap_.holds_used(id)) loose += heap_.handles()[id].bytes;
  }
  if (granularity_ != 0 && grown <= room + loose)
    return {pool::fit::by_waiting, grown - std::min(grown, loose), 0};
  out.missing_bytes = grown - std::min(grown, room + loose);
  return out;
}

}  // namespace millpond
