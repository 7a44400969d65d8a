// The heap's maps: views of addresses, handles of physical memory, their spans, and which span lies
// where.
#include <algorithm>
#include <vector>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "heap/heap.hpp"

namespace millpond::heap {
namespace {

// The first handle of a view at or behind the address.
[[nodiscard]] auto place_of(std::vector<heap::placed_handle>& in, std::uint64_t at) {
  return std::lower_bound(in.begin(), in.end(), at,
                          [](const heap::placed_handle& h, std::uint64_t a) { return h.at < a; });
}

// The number of a record that is in no use any more, or of a new one.
template <class Record, class Number>
[[nodiscard]] Number take_number(std::vector<Record>& records, std::vector<Number>& unused) {
  if (unused.empty()) {
    records.emplace_back();
    return static_cast<Number>(records.size() - 1);
  }
  const Number out = unused.back();
  unused.pop_back();
  return out;
}

}  // namespace

view_id heap::add_view(std::uint64_t base, std::uint64_t capacity, view_kind kind) {
  view_record made;
  made.kind = kind;
  made.base = made.end = base;
  made.capacity = capacity;
  views_.push_back(std::move(made));
  return static_cast<view_id>(views_.size() - 1);
}

handle_id heap::add_handle(std::uint64_t bytes, std::uint64_t span_bytes, std::uint64_t name) {
  const handle_id id = take_number(handles_, unused_handles_);
  handle_record made{bytes, name, span_bytes, {}, {}, true};
  for (std::uint64_t at = 0; at < bytes; at += span_bytes)
    made.spans.push_back(add_span(std::min(span_bytes, bytes - at), id));
  handles_[id] = std::move(made);
  return id;
}

void heap::map_handle(view_id view, std::uint64_t at, handle_id handle) {
  handles_[handle].mappings.push_back({view, at});
  ++mappings_;
  auto& there = views_[view].handles;
  there.insert(place_of(there, at), {at, handle});
  for (const span_id span : handles_[handle].spans) {
    map_span(view, at, span);
    at += spans_[span].bytes;
  }
}

void heap::remove_handle(handle_id handle) {
  handle_record& of = handles_[handle];
  MILLPOND_CHECK(of.present, handle);
  for (std::size_t i = of.mappings.size(); i-- > 0;) {  // its primary range last
    std::uint64_t at = of.mappings[i].at;
    auto& there = views_[of.mappings[i].view].handles;
    there.erase(place_of(there, at));
    for (const span_id span : of.spans) {
      const std::uint64_t bytes = spans_[span].bytes;
      unmap_span(of.mappings[i].view, at);
      at += bytes;
    }
  }
  for (const span_id span : of.spans) {
    spans_[span] = {};
    unused_spans_.push_back(span);
  }
  mappings_ -= of.mappings.size();
  of = {};
  unused_handles_.push_back(handle);
}

span_id heap::add_span(std::uint64_t bytes, handle_id handle) {
  const span_id id = take_number(spans_, unused_spans_);
  spans_[id] = span_record{bytes, handle, {}, false, false, true};
  return id;
}

void heap::map_span(view_id view, std::uint64_t at, span_id span) {
  view_record& in = views_[view];
  const std::uint64_t bytes = spans_[span].bytes;
  const bool primary = in.kind == view_kind::primary;
  MILLPOND_CHECK(primary != spans_[span].mapped, span, view);
  extent* before = in.last;
  if (at == in.end) {
    MILLPOND_CHECK(in.end + bytes <= in.base + in.capacity, in.end, bytes, in.capacity);
    in.slots.push_back({at, span, bytes, primary});
    in.end += bytes;
  } else {
    cut(view, at);
    cut(view, at + bytes);
    const std::size_t i = slot_index(in, at);
    slot& hole = in.slots[i];
    MILLPOND_CHECK(hole.span == no_span && hole.at == at && hole.bytes >= bytes, at, bytes);
    extent* const gap = index_.exact(at);
    MILLPOND_CHECK(gap != nullptr && gap->state == extent_state::closed && gap->bytes == bytes, at);
    before = gap->before;
    unlink(gap);
    const std::uint64_t rest = hole.bytes - bytes;
    hole = {at, span, bytes, primary};
    if (rest > 0)
      in.slots.insert(in.slots.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                      {at + bytes, no_span, rest, false});
  }
  if (primary) {
    spans_[span].primary = {view, at};
    spans_[span].mapped = true;
    settle(make(view, at, bytes, extent_state::free, before), anyone, 0, absorb_idle::no);
  } else if (before != nullptr && before->state == extent_state::closed && before->end() == at) {
    before->bytes += bytes;  // a record for each span would cost host memory for nothing
  } else {
    make(view, at, bytes, extent_state::closed, before);
  }
}

void heap::unmap_span(view_id view, std::uint64_t at) {
  view_record& in = views_[view];
  const std::size_t i = slot_index(in, at);
  MILLPOND_CHECK(in.slots[i].at == at && in.slots[i].span != no_span, at);
  const std::uint64_t bytes = in.slots[i].bytes;
  MILLPOND_CHECK(in.slots[i].active == (in.kind == view_kind::primary), at);  // no block is in it
  if (in.slots[i].active) {
    owner_id owner = anyone;
    std::uint64_t batch = 0;
    close({view, at, bytes}, &owner, &batch);
    in.slots[i].active = false;
  }
  cut(view, at);
  cut(view, at + bytes);
  in.slots[i].span = no_span;
  // Neighbouring holes become one; holes at the end are cut off.
  std::size_t j = i;
  extent* hole = index_.exact(at);
  if (j > 0 && in.slots[j - 1].span == no_span) {
    in.slots[j - 1].bytes += in.slots[j].bytes;
    in.slots.erase(in.slots.begin() + static_cast<std::ptrdiff_t>(j));
    --j;
    cut(view, in.slots[j].at);
    extent* const left = hole->before;
    left->bytes += hole->bytes;
    unlink(hole);
    hole = left;
  }
  if (j + 1 < in.slots.size() && in.slots[j + 1].span == no_span) {
    in.slots[j].bytes += in.slots[j + 1].bytes;
    in.slots.erase(in.slots.begin() + static_cast<std::ptrdiff_t>(j) + 1);
    cut(view, in.slots[j].at + in.slots[j].bytes);
    const std::uint64_t more = hole->after->bytes;
    unlink(hole->after);
    hole->bytes += more;
  }
  if (j + 1 == in.slots.size()) {
    in.end = in.slots[j].at;
    in.slots.pop_back();
    unlink(hole);
  }
}

}  // namespace millpond::heap
