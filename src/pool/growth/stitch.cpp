// Stitching: free spans from anywhere side by side in a stitched range, so that a large block
// finds room although the primary range is in pieces. Nothing is copied: their handles are mapped
// once more, and stay so for the next such block.
#include <algorithm>

#include "base/bits.hpp"
#include "driver/relaxed_capture.hpp"
#include "millpond/base/units.hpp"
#include "pool/core.hpp"

namespace millpond {
namespace {

// A stitched range can be made longer at the end of its view alone, so there are several views.
constexpr std::uint64_t stitched_views = 8;

}  // namespace

// Under growth_mutex_. The block itself where a stitched range gave it; `none` where plain growth
// is the better bargain, or the driver refused.
pool::core::growth pool::core::stitch(const request& what, const bargain& against,
                                      heap::extent** block) {
  for (int tries = 0; tries < 2; ++tries) {
    heap::stitch_plan plan;
    std::uint64_t largest_alignment = granularity_;
    {
      const std::lock_guard lock(heap_mutex_);
      if (what.alignment > largest_alignment) return growth::none;
      plan = heap::plan_stitch(heap_, what.size, what.owner);
      if (plan.possible && plan.new_bytes == 0 && plan.handles.empty()) {
        *block = heap_.allocate_stitched(plan.view, plan.at, plan.bytes, what.owner);
        if (*block == nullptr) return growth::none;
        take(**block, what);
        counts_.stitch_reuses.fetch_add(1, std::memory_order_relaxed);
        return growth::block;
      }
      // Mapping a handle again costs three quarters of making one (H200).
      if (against.as_cheap_as != 0 && 3 * plan.handles.size() > 4 * against.as_cheap_as)
        return growth::none;
      if (!plan.possible || heap_.mappings() + plan.handles.size() > most_mappings())
        return growth::none;
    }
    if (plan.new_bytes > 0) {
      // New memory has its primary range first; then the stitched range is planned again over it.
      const std::uint64_t more = align_up(plan.new_bytes, granularity_);
      if (tries > 0 || more >= against.instead_of) return growth::none;
      if (const auto grown = extend(more); !grown) {
        note_failure(grown.error());
        return growth::none;
      }
      continue;
    }
    const auto mapped = map_stitched(plan);
    if (!mapped) {
      note_failure(mapped.error());
      return growth::none;
    }
    const std::lock_guard lock(heap_mutex_);
    *block = heap_.allocate_stitched(mapped->view, mapped->at, plan.bytes, what.owner);
    if (*block == nullptr)
      return growth::more;  // another thread took of it meanwhile: the caller tries again
    take(**block, what);
    return growth::block;
  }
  return growth::none;
}

// Under growth_mutex_: the plan's handles at the end of a view of stitched ranges; all of them or
// none. Answers where the block begins.
result<heap::heap::mapping> pool::core::map_stitched(const heap::stitch_plan& plan) {
  struct piece {
    physical_handle name;
    std::uint64_t bytes;
  };
  std::vector<piece> pieces;
  std::uint64_t total = 0;
  heap::heap::mapping where{heap::new_view, 0};
  {
    const std::lock_guard lock(heap_mutex_);
    for (const heap::handle_id id : plan.handles) {
      pieces.push_back({heap_.handles()[id].name, heap_.handles()[id].bytes});
      total += pieces.back().bytes;
    }
    if (plan.view != heap::new_view) {
      const auto& in = heap_.views()[plan.view];
      if (in.end - in.base + total > in.capacity)
        return error{error_code::out_of_memory, "a view of stitched ranges is full"};
      where = {plan.view, in.end};
    } else {
      where = address_for_stitch(total);
    }
  }
  if (where.view == heap::new_view) {
    const auto opened = open_stitched_view(total);
    if (!opened) return opened.error();
    const std::lock_guard lock(heap_mutex_);
    where = {*opened, heap_.views()[*opened].end};
  }
  std::uint64_t mapped = 0;
  std::size_t done = 0;
  call_result answer;
  for (; done < pieces.size(); ++done) {
    answer = gpu_->map(where.at + mapped, pieces[done].bytes, pieces[done].name);
    if (!answer.ok()) break;
    mapped += pieces[done].bytes;
  }
  if (answer.ok()) answer = gpu_->set_access(where.at, total, location());
  bool entered = false;
  if (answer.ok()) {
    const std::lock_guard lock(heap_mutex_);
    entered = heap_.map_handles(where.view, where.at, plan.handles);
  }
  if (!entered) {
    mapped = 0;
    for (std::size_t i = 0; i < done; ++i) {
      static_cast<void>(gpu_->unmap(where.at + mapped, pieces[i].bytes));
      mapped += pieces[i].bytes;
    }
    if (!answer.ok()) return to_error(answer, "mapping " + format_bytes(total) + " side by side");
    const std::lock_guard lock(heap_mutex_);
    return heap_.why();
  }
  counts_.stitches.fetch_add(plan.handles.size(), std::memory_order_relaxed);
  return heap::heap::mapping{where.view,
                             plan.view != heap::new_view ? plan.at : where.at + plan.skip};
}

// Under heap_mutex_: where a new stitched range has room, or new_view. The lowest hole that handles
// have left, else the end of the view with the fewest mappings, so that stitched ranges stand
// behind each other late, and can be made longer until then.
heap::heap::mapping pool::core::address_for_stitch(std::uint64_t bytes) const {
  const heap::heap::place hole = heap_.lowest_hole(heap::view_kind::stitched, bytes);
  heap::heap::mapping out{hole.view, hole.at};
  if (hole.view != heap::new_view) return out;
  std::size_t fewest = 0;
  for (heap::view_id id = 0; id < heap_.views().size(); ++id) {
    const auto& in = heap_.views()[id];
    if (in.kind != heap::view_kind::stitched || in.end - in.base + bytes > in.capacity) continue;
    if (out.view != heap::new_view && in.slots.size() >= fewest) continue;
    out = {id, in.end};
    fewest = in.slots.size();
  }
  return out;
}

// Under growth_mutex_: empty views for stitched ranges, with addresses for many; the first of them.
result<heap::view_id> pool::core::open_stitched_view(std::uint64_t at_least) {
  {
    const std::lock_guard lock(heap_mutex_);
    if (!heap_.room_for_region()) return heap_.why();
  }
  if (reservations_.size() == reservations_.capacity())
    reservations_.reserve(2 * reservations_.size() + 8);
  const std::uint64_t unit = std::max<std::uint64_t>(granularity_, 2 * MiB);
  std::uint64_t bytes = align_up(std::max(2 * gpu_->info().total_bytes, 4 * at_least), unit);
  device_address base = 0;
  call_result answer = gpu_->address_reserve(&base, bytes, 2 * MiB);
  while (!answer.ok() && answer.status == driver_status::out_of_memory &&
         bytes / 2 >= std::max<std::uint64_t>(at_least, GiB)) {
    bytes = align_up(bytes / 2, unit);
    answer = gpu_->address_reserve(&base, bytes, 2 * MiB);
  }
  if (!answer.ok()) return to_error(answer, "reserving " + format_bytes(bytes) + " of addresses");
  std::uint64_t part = align_down(bytes / stitched_views, unit);
  if (part < 2 * at_least) part = bytes;
  {
    const std::lock_guard lock(heap_mutex_);
    heap::view_id first = heap::new_view;
    for (std::uint64_t at = 0; at + part <= bytes; at += part) {
      // A region for each: the books of one reach up to what is used in it.
      const heap::view_id made = heap_.open_view(base + at, part, heap::view_kind::stitched);
      if (made == heap::no_view) break;
      if (first == heap::new_view) first = made;
    }
    if (first != heap::new_view) {
      reservations_.emplace_back(base, bytes);
      return first;
    }
  }
  static_cast<void>(gpu_->address_free(base, bytes));
  const std::lock_guard lock(heap_mutex_);
  return heap_.why();
}

// Mappings cost host memory (under random sizes the books take 0.4% of the pool at this many), and
// planning looks at each of their spans, so their number is bounded: on average sixteen a handle.
// At the bound the pool adds memory, which costs a program more than a slow plan: a recorded one
// that reached eight a handle in its third round went from 1.17 of its peak to 1.48.
std::uint64_t pool::core::most_mappings() const {
  return 256 + 16 * heap_.handles().size();
}

}  // namespace millpond
