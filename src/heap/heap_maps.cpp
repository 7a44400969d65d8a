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

// For so many more elements. Grows as push_back does.
template <class Element>
void make_room(std::vector<Element>& in, std::size_t more) {
  if (in.capacity() - in.size() < more) in.reserve(std::max(in.size() + more, 2 * in.capacity()));
}
// The same, and for the numbers of all that will be given back.
template <class Record, class Number>
void make_room(std::vector<Record>& records, std::vector<Number>& unused, std::size_t more) {
  if (more > unused.size()) make_room(records, more - unused.size());
  if (unused.capacity() < records.capacity()) unused.reserve(records.capacity());
}

}  // namespace

// Views
// ------------------------------------------------------------------------------------------------

bool heap::add_region(std::uint64_t base, std::uint64_t bytes) noexcept {
  const refusal answer = index_.add_region(base, bytes);
  if (answer != refusal::none) refused_ = answer;
  return answer == refusal::none;
}

view_id heap::add_view(std::uint64_t base, std::uint64_t capacity, view_kind kind) noexcept {
  if (!ask_host([&] { make_room(views_, 1); })) return no_view;
  view_record made;
  made.kind = kind;
  made.base = made.end = made.farthest_end = base;
  made.capacity = capacity;
  views_.push_back(std::move(made));
  return static_cast<view_id>(views_.size() - 1);
}

view_id heap::open_view(std::uint64_t base, std::uint64_t bytes, view_kind kind) noexcept {
  if (!ask_host([&] { make_room(views_, 1); }) || !add_region(base, bytes)) return no_view;
  return add_view(base, bytes, kind);
}

std::uint64_t heap::vacant_at(view_id view, std::uint64_t at) const {
  const view_record& in = views_[view];
  if (at == in.end) return in.base + in.capacity - in.end;
  if (at < in.base || at > in.end) return 0;
  const slot& here = in.slots[slot_index(in, at)];
  return here.span == no_span && here.at == at ? here.bytes : 0;
}

template <class Visit>
void heap::each_hole(const view_record& in, Visit&& visit) const {
  if (in.mapped == in.end - in.base) return;
  std::uint64_t at = in.base;
  for (const placed_handle& next : in.handles) {
    if (next.at > at) visit(at, next.at - at);
    at = next.at + handles_[next.handle].bytes;
  }
}

heap::place heap::lowest_hole(view_kind kind, std::uint64_t bytes) const {
  place out;
  for (view_id view = 0; view < views_.size(); ++view) {
    if (views_[view].kind != kind) continue;
    each_hole(views_[view], [&](std::uint64_t at, std::uint64_t room) {
      if (room >= bytes && (out.view == no_view || at < out.at)) out = {view, at, room, bytes};
    });
  }
  return out;
}

heap::place heap::hole_for(std::uint64_t bytes, owner_id owner, std::uint64_t unit) const {
  place out;
  const auto look = [&](view_id view, std::uint64_t at, std::uint64_t room) {
    const extent* const gap = index_.exact(at);
    std::uint64_t before = 0;
    for (const extent* s = gap->before; s != nullptr && before < bytes && may_have(*s, owner);
         s = s->before)
      before += s->bytes;
    std::uint64_t missing = align_up(bytes - std::min(bytes, before), unit);
    if (missing > room) {
      // All of it, where with that the run goes on behind it.
      std::uint64_t run = before + room;
      for (const extent* s = gap->after; s != nullptr && run < bytes && may_have(*s, owner);
           s = s->after)
        run += s->bytes;
      if (run < bytes) return;
      missing = room;
    }
    if (out.view == no_view || missing < out.missing || (missing == out.missing && at < out.at))
      out = {view, at, room, missing};
  };
  for (view_id view = 0; view < views_.size(); ++view) {
    if (views_[view].kind != view_kind::primary) continue;
    each_hole(views_[view], [&](std::uint64_t at, std::uint64_t room) { look(view, at, room); });
  }
  return out;
}

// Handles
// ------------------------------------------------------------------------------------------------

handle_id heap::add_handle(std::uint64_t bytes, std::uint64_t span_bytes,
                           std::uint64_t name) noexcept {
  const std::size_t count = divide_up(bytes, span_bytes);
  handle_record made;
  const bool ready = ask_host([&] {
    made.spans.reserve(count);
    make_room(handles_, unused_handles_, 1);
    make_room(spans_, unused_spans_, count);
    if (primaries_.capacity() < spans_.capacity()) primaries_.reserve(spans_.capacity());
  });
  return ready ? enter_handle(std::move(made), bytes, span_bytes, name) : no_handle;
}

handle_id heap::enter_handle(handle_record&& made, std::uint64_t bytes, std::uint64_t span_bytes,
                             std::uint64_t name) noexcept {
  const handle_id id = take_number(handles_, unused_handles_);
  made.bytes = bytes;
  made.name = name;
  made.span_bytes = span_bytes;
  made.present = true;
  for (std::uint64_t at = 0; at < bytes; at += span_bytes) {
    const span_id span = take_number(spans_, unused_spans_);
    spans_[span] = span_record{std::min(span_bytes, bytes - at), id, {}, false, false, true};
    made.spans.push_back(span);
  }
  handles_[id] = std::move(made);
  return id;
}

bool heap::prepare_chunk(std::uint64_t bytes) noexcept {
  const bool asked = ask_host([&] {
    make_room(views_, 1);
    make_room(handles_, unused_handles_, 1);
    make_room(spans_, unused_spans_, 1);
    if (primaries_.capacity() < spans_.capacity()) primaries_.reserve(spans_.capacity());
    chunk_.view.slots.reserve(1);
    chunk_.view.handles.reserve(1);
    chunk_.handle.spans.reserve(1);
    chunk_.handle.mappings.reserve(1);
  });
  const refusal answer = asked ? index_.prepare_region(bytes) : refused_;
  refused_ = answer;
  if (answer != refusal::none || !provide(1)) return false;
  index_.set_aside(1);
  return true;
}

void heap::enter_chunk(std::uint64_t base, std::uint64_t bytes, std::uint64_t name) noexcept {
  index_.add_prepared_region(base);
  index_.set_aside(0);
  view_record& made = chunk_.view;
  made.base = made.end = made.farthest_end = base;
  made.capacity = bytes;
  views_.push_back(std::move(made));
  chunk_.view = {};
  const handle_id id = enter_handle(std::move(chunk_.handle), bytes, bytes, name);
  chunk_.handle = {};
  map_one(static_cast<view_id>(views_.size() - 1), base, id);
}

bool heap::provide_for_mapping(const view_record& in, std::uint64_t at,
                               std::span<const handle_id> handles) noexcept {
  std::size_t spans = 0;
  for (const handle_id id : handles) spans += handles_[id].spans.size();
  view_record& to = views_[static_cast<std::size_t>(&in - views_.data())];
  const bool asked = ask_host([&] {
    make_room(to.handles, handles.size());
    make_room(to.slots, spans + 1);
    for (const handle_id id : handles) make_room(handles_[id].mappings, 1);
  });
  if (!asked) return false;
  if (in.kind == view_kind::stitched) return provide(1);
  // A record each, and one for what is left of a hole.
  return provide(at == in.end ? handles.size() : handles.size() + 1);
}

bool heap::map_handles(view_id view, std::uint64_t at,
                       std::span<const handle_id> handles) noexcept {
  if (!provide_for_mapping(views_[view], at, handles)) return false;
  for (const handle_id id : handles) {
    map_one(view, at, id);
    at += handles_[id].bytes;
  }
  return true;
}

void heap::map_one(view_id view, std::uint64_t at, handle_id handle) noexcept {
  view_record& in = views_[view];
  handle_record& of = handles_[handle];
  const bool primary = in.kind == view_kind::primary;
  MILLPOND_CHECK(of.present && !of.held && primary == of.mappings.empty(), handle, view);
  MILLPOND_CHECK(vacant_at(view, at) >= of.bytes, at, of.bytes);
  const bool at_end = at == in.end;
  put_slots(in, at, of);
  of.mappings.push_back({view, at});
  ++mappings_;
  in.handles.insert(place_of(in.handles, at), {at, handle});
  in.mapped += of.bytes;
  if (!primary) {
    // What lies in a hole is closed already.
    if (!at_end) return;
    if (in.last != nullptr && in.last->state == extent_state::closed)
      in.last->bytes += of.bytes;  // a record for each handle would cost host memory for nothing
    else
      make(view, at, of.bytes, extent_state::closed, in.last);
    return;
  }
  for (std::uint64_t x = at; const span_id span : of.spans) {
    spans_[span].primary = {view, x};
    spans_[span].mapped = true;
    x += spans_[span].bytes;
  }
  extent* made = nullptr;
  if (at_end) {
    made = make(view, at, of.bytes, extent_state::free, in.last);
  } else {
    cut(view, at + of.bytes);
    made = index_.exact(at);
    MILLPOND_CHECK(
        made != nullptr && made->state == extent_state::closed && made->bytes == of.bytes, at);
  }
  settle(made, anyone, 0, absorb_idle::no);
}

// The handle's spans take the place of the start of a hole, or make the view longer.
void heap::put_slots(view_record& in, std::uint64_t at, const handle_record& of) noexcept {
  std::size_t to = in.slots.size();
  if (at == in.end) {
    in.slots.insert(in.slots.end(), of.spans.size(), slot{});
    in.end += of.bytes;
    in.farthest_end = std::max(in.farthest_end, in.end);
  } else {
    to = slot_index(in, at);
    const std::uint64_t rest = in.slots[to].bytes - of.bytes;
    const std::size_t more = of.spans.size() - (rest > 0 ? 0 : 1);
    in.slots.insert(in.slots.begin() + static_cast<std::ptrdiff_t>(to) + 1, more, slot{});
    if (rest > 0) in.slots[to + of.spans.size()] = {at + of.bytes, no_span, rest, false};
  }
  const bool active = in.kind == view_kind::primary;
  for (const span_id span : of.spans) {
    in.slots[to++] = {at, span, spans_[span].bytes, active};
    at += spans_[span].bytes;
  }
}

bool heap::hold_handle(handle_id handle) noexcept {
  handle_record& of = handles_[handle];
  MILLPOND_CHECK(of.present && !of.held && !of.mappings.empty(), handle);
  const stretch range{of.mappings.front().view, of.mappings.front().at, of.bytes};
  refused_ = refusal::no_room;
  for (const extent* s = index_.covering(range.at);
       s != nullptr && s->start() < range.at + range.bytes; s = s->after) {
    if (s->state != extent_state::free || s->owner != anyone) return false;
  }
  if (!provide(inserts_of_close)) return false;
  owner_id owner = anyone;
  std::uint64_t batch = 0;
  close(range, &owner, &batch);
  set_active(range, false);
  of.held = true;
  const extent* const gap = index_.exact(range.at);
  extent* const right = gap->after;
  leave_small(gap->before, absorb_idle::no);
  leave_small(right, absorb_idle::no);
  return true;
}

void heap::let_go_handle(handle_id handle) noexcept {
  handle_record& of = handles_[handle];
  MILLPOND_CHECK(of.held, handle);
  of.held = false;
  const stretch range{of.mappings.front().view, of.mappings.front().at, of.bytes};
  set_active(range, true);
  settle(index_.exact(range.at), anyone, 0, absorb_idle::no);
}

bool heap::remove_handle(handle_id handle) noexcept {
  handle_record& of = handles_[handle];
  MILLPOND_CHECK(of.present, handle);
  if (!of.held && !of.mappings.empty() && !hold_handle(handle)) return false;
  for (const mapping& from : of.mappings) unmap_one(from, of);
  for (const span_id span : of.spans) {
    spans_[span] = {};
    unused_spans_.push_back(span);
  }
  mappings_ -= of.mappings.size();
  of = {};
  unused_handles_.push_back(handle);
  return true;
}

// Its slots become one hole, which joins those beside it; a hole at the end is cut off.
void heap::unmap_one(const mapping& from, const handle_record& of) noexcept {
  view_record& in = views_[from.view];
  in.handles.erase(place_of(in.handles, from.at));
  in.mapped -= of.bytes;
  const std::size_t first = slot_index(in, from.at);
  for (std::size_t i = first; i < first + of.spans.size(); ++i) {
    MILLPOND_CHECK(in.slots[i].span == of.spans[i - first] && !in.slots[i].active, from.at);
  }
  in.slots[first] = {from.at, no_span, of.bytes, false};
  const auto behind = in.slots.begin() + static_cast<std::ptrdiff_t>(first) + 1;
  in.slots.erase(behind, behind + static_cast<std::ptrdiff_t>(of.spans.size()) - 1);
  if (first + 1 < in.slots.size() && in.slots[first + 1].span == no_span) join_holes(in, first);
  std::size_t hole = first;
  if (first > 0 && in.slots[first - 1].span == no_span) join_holes(in, --hole);
  const slot now = in.slots[hole];
  if (in.kind == view_kind::primary) {  // there a hole is one closed extent
    extent* const gap = index_.exact(now.at);
    while (gap->end() < now.at + now.bytes) {
      const std::uint64_t more = gap->after->bytes;
      unlink(gap->after);
      gap->bytes += more;
    }
  }
  if (hole + 1 == in.slots.size()) {
    in.slots.pop_back();
    cut_end(in, now.at);
  }
}

void heap::join_holes(view_record& in, std::size_t at) noexcept {
  in.slots[at].bytes += in.slots[at + 1].bytes;
  in.slots.erase(in.slots.begin() + static_cast<std::ptrdiff_t>(at) + 1);
}

// What lies behind is closed.
void heap::cut_end(view_record& in, std::uint64_t end) noexcept {
  in.end = end;
  while (in.last != nullptr && in.last->start() >= end) unlink(in.last);
  if (in.last != nullptr && in.last->end() > end) in.last->bytes = end - in.last->start();
}

}  // namespace millpond::heap
