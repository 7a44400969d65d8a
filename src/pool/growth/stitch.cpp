// Stitching: free spans from anywhere side by side in a stitched range, so that a large block
// finds room although the primary range is in pieces. Nothing is copied: their handles are mapped
// once more, and stay so for the next such block.
#include <algorithm>

#include "base/bits.hpp"
#include "driver/own_calls.hpp"
#include "millpond/base/units.hpp"
#include "pool/growth/physical_memory.hpp"

namespace millpond {
namespace {

// A stitched range can be made longer at the end of its view alone, so there are several views.
constexpr std::uint64_t stitched_views = 8;

// Mappings cost host memory (under random sizes the books take 0.4% of the pool at this many), and
// planning looks at each of their spans, so their number is bounded: on average sixteen a handle.
// At the bound the pool adds memory, which costs a program more than a slow plan: a recorded one
// that reached eight a handle in its third round went from 1.17 of its peak to 1.48.
std::uint64_t most_mappings(const heap::heap& of) {
  return 256 + 16 * of.handles().size();
}

}  // namespace

// The block itself where a stitched range gave it; `none` where plain growth
// is the better bargain, or the driver refused.
physical_memory::growth physical_memory::stitch(const block_request& what, const bargain& against,
                                                heap::extent** block) {
  const auto allocate = [&](const block_store::locked& books, heap::view_id view, device_address at,
                            std::uint64_t bytes) {
    *block = books.heap().allocate_stitched(view, at, bytes, what.owner);
    if (*block != nullptr) books.take(**block, what);
    return *block != nullptr;
  };
  for (int tries = 0; tries < 2; ++tries) {
    heap::stitch_plan plan;
    {
      const block_store::locked books(blocks_);
      heap::heap& in = books.heap();
      if (what.alignment > granularity_) return growth::none;
      plan = heap::plan_stitch(in, what.size, what.owner);
      if (plan.possible && plan.new_bytes == 0 && plan.handles.empty()) {
        if (!allocate(books, plan.view, plan.at, plan.bytes)) return growth::none;
        stitch_reuses_.fetch_add(1, std::memory_order_relaxed);
        return growth::block;
      }
      // Mapping a handle again costs three quarters of making one (H200).
      if (against.as_cheap_as != 0 && 3 * plan.handles.size() > 4 * against.as_cheap_as)
        return growth::none;
      if (!plan.possible || in.mappings() + plan.handles.size() > most_mappings(in))
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
    // Where another thread took of it meanwhile the caller tries again.
    return allocate(block_store::locked(blocks_), mapped->view, mapped->at, plan.bytes)
               ? growth::block
               : growth::more;
  }
  return growth::none;
}

// The plan's handles at the end of a view of stitched ranges; all of them or none. Answers where
// the block begins.
result<heap::heap::mapping> physical_memory::map_stitched(const heap::stitch_plan& plan) {
  struct piece {
    physical_handle name;
    std::uint64_t bytes;
  };
  std::vector<piece> pieces;
  std::uint64_t total = 0;
  heap::heap::mapping where{heap::new_view, 0};
  {
    const block_store::locked books(blocks_);
    const heap::heap& in = books.heap();
    for (const heap::handle_id id : plan.handles) {
      pieces.push_back({in.handles()[id].name, in.handles()[id].bytes});
      total += pieces.back().bytes;
    }
    if (plan.view != heap::new_view) {
      const auto& view = in.views()[plan.view];
      if (view.end - view.base + total > view.capacity)
        return error{error_code::out_of_memory, "a view of stitched ranges is full"};
      where = {plan.view, view.end};
    } else {
      where = address_for_stitch(books, total);
    }
  }
  if (where.view == heap::new_view) {
    const auto opened = open_stitched_view(total);
    if (!opened) return opened.error();
    where = {*opened, block_store::locked(blocks_).heap().views()[*opened].end};
  }
  std::uint64_t mapped = 0;
  std::size_t done = 0;
  call_result answer;
  for (; done < pieces.size(); ++done) {
    answer = gpu_.map(where.at + mapped, pieces[done].bytes, pieces[done].name);
    if (!answer.ok()) break;
    mapped += pieces[done].bytes;
  }
  if (answer.ok()) answer = gpu_.set_access(where.at, total, location());
  if (answer.ok() &&
      block_store::locked(blocks_).heap().map_handles(where.view, where.at, plan.handles)) {
    stitches_.fetch_add(plan.handles.size(), std::memory_order_relaxed);
    return heap::heap::mapping{where.view,
                               plan.view != heap::new_view ? plan.at : where.at + plan.skip};
  }
  mapped = 0;
  for (std::size_t i = 0; i < done; ++i) {
    static_cast<void>(gpu_.unmap(where.at + mapped, pieces[i].bytes));
    mapped += pieces[i].bytes;
  }
  if (!answer.ok()) return to_error(answer, "mapping " + format_bytes(total) + " side by side");
  return block_store::locked(blocks_).heap().why();
}

// Where a new stitched range has room, or new_view. The lowest hole that handles have left, else
// the end of the view with the fewest mappings, so that stitched ranges stand behind each other
// late, and can be made longer until then.
heap::heap::mapping physical_memory::address_for_stitch(const block_store::locked& books,
                                                        std::uint64_t bytes) {
  const heap::heap& of = books.heap();
  const heap::heap::place hole = of.lowest_hole(heap::view_kind::stitched, bytes);
  heap::heap::mapping out{hole.view, hole.at};
  if (hole.view != heap::new_view) return out;
  std::size_t fewest = 0;
  for (heap::view_id id = 0; id < of.views().size(); ++id) {
    const auto& in = of.views()[id];
    if (in.kind != heap::view_kind::stitched || in.end - in.base + bytes > in.capacity) continue;
    if (out.view != heap::new_view && in.slots.size() >= fewest) continue;
    out = {id, in.end};
    fewest = in.slots.size();
  }
  return out;
}

// Empty views for stitched ranges, with addresses for many; the first of them.
result<heap::view_id> physical_memory::open_stitched_view(std::uint64_t at_least) {
  {
    const block_store::locked books(blocks_);
    if (!books.heap().room_for_region()) return books.heap().why();
  }
  if (reservations_.size() == reservations_.capacity())
    reservations_.reserve(2 * reservations_.size() + 8);
  std::uint64_t bytes = std::max(2 * gpu_.info().total_bytes, 4 * at_least);
  const auto base = reserve_addresses(&bytes, std::max<std::uint64_t>(at_least, GiB));
  if (!base) return base.error();
  std::uint64_t part =
      align_down(bytes / stitched_views, std::max<std::uint64_t>(granularity_, 2 * MiB));
  if (part < 2 * at_least) part = bytes;
  {
    const block_store::locked books(blocks_);
    heap::view_id first = heap::new_view;
    for (std::uint64_t at = 0; at + part <= bytes; at += part) {
      // A region for each: the books of one reach up to what is used in it.
      const heap::view_id made =
          books.heap().open_view(*base + at, part, heap::view_kind::stitched);
      if (made == heap::no_view) break;
      if (first == heap::new_view) first = made;
    }
    if (first != heap::new_view) {
      reservations_.emplace_back(*base, bytes);
      return first;
    }
  }
  static_cast<void>(gpu_.address_free(*base, bytes));
  return block_store::locked(blocks_).heap().why();
}

}  // namespace millpond
