#include "heap/heap.hpp"

#include <algorithm>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "base/prefetch.hpp"

namespace millpond::heap {
namespace {

// Where no hole is tight, a large block takes the lowest of those that are nearly as tight: what
// stays gathers at one end, and what comes and goes finds longer stretches at the other. A model
// whose weights were converted one by one, each new one beside the gap of an old one, kept a fifth
// of its peak in such gaps with best fit alone. (The lowest of all holes cost a recorded training
// program 3% of its peak, and this one nothing.)
constexpr std::uint64_t large_block = std::uint64_t{1} << 20;
constexpr std::uint64_t tight_share =
    8;  // a hole that leaves less than an eighth of the block is tight
constexpr std::uint64_t nearly_as_tight = 2;  // times the tightest

}  // namespace

heap::heap() {
  static_cast<void>(bins_of(anyone, zone::general));
}

bins& heap::bins_of(owner_id owner, zone of) {
  auto& all = bins_[static_cast<unsigned>(of)];
  if (owner >= all.size()) all.resize(owner + 1);
  if (all[owner] == nullptr) all[owner] = std::make_unique<bins>();
  return *all[owner];
}

// Records and their links
// -----------------------------------------------------------------------------

segment* heap::make(view_id view, std::uint64_t at, std::uint64_t bytes, segment_state state,
                    segment* before) {
  segment* const out = index_.new_segment();
  out->at.store(at, std::memory_order_relaxed);
  out->bytes = bytes;
  out->state = state;
  out->in = zone::general;
  out->view = view;
  view_record& in = views_[view];
  out->before = before;
  out->after = before != nullptr ? before->after : in.first;
  (before != nullptr ? before->after : in.first) = out;
  (out->after != nullptr ? out->after->before : in.last) = out;
  index_.insert(out);
  return out;
}

void heap::unlink(segment* of) {
  view_record& in = views_[of->view];
  (of->before != nullptr ? of->before->after : in.first) = of->after;
  (of->after != nullptr ? of->after->before : in.last) = of->before;
  index_.erase(of->start());
  index_.delete_segment(of);
}

void heap::make_free(segment* of, owner_id owner, std::uint64_t batch) {
  of->state = segment_state::free;
  of->owner = owner;
  of->batch = owner == anyone ? 0 : batch;
  bins_of(owner, of->in).insert(of);
}

segment* heap::join(segment* left, segment* right) {
  const owner_id owner = left->owner != anyone ? left->owner : right->owner;
  const std::uint64_t batch = std::max(left->batch, right->batch);
  bins_of(left->owner, left->in).remove(left);
  bins_of(right->owner, right->in).remove(right);
  const std::uint64_t bytes = right->bytes;
  unlink(right);
  left->bytes += bytes;
  left->in = zone::general;
  make_free(left, owner, batch);
  return left;
}

// A segment that is in no bin takes in the free neighbours of its zone that it may join; they leave
// their bins.
void heap::merge(segment*& of, owner_id& owner, std::uint64_t& batch, absorb_idle absorb) {
  const auto joins = [&](const segment* with) {
    if (with == nullptr || with->state != segment_state::free || with->in != of->in) return false;
    if (with->owner == owner) return with->batch == batch || absorb == absorb_idle::yes;
    return absorb == absorb_idle::yes && (with->owner == anyone || owner == anyone);
  };
  const auto taken = [&](segment* with) {
    bins_if(with->owner, with->in)->remove(with);
    if (owner == anyone) owner = with->owner;
    batch = std::max(batch, with->batch);
  };
  if (segment* const left = of->before; joins(left)) {
    taken(left);
    left->bytes += of->bytes;
    unlink(of);
    of = left;
  }
  if (segment* const right = of->after; joins(right)) {
    taken(right);
    of->bytes += right->bytes;
    unlink(right);
  }
}

// A segment that is in no bin becomes free, in one piece with the neighbours that it may join; the
// result enters a bin once.
void heap::settle(segment* of, owner_id owner, std::uint64_t batch, absorb_idle absorb) {
  merge(of, owner, batch, absorb);
  const auto small = [](const segment* with) { return with != nullptr && with->in == zone::small; };
  // As long as a stretch, whichever parts of stretches it is; or the last that is left of one.
  if (small(of) && (of->bytes >= small_stretch || (!small(of->before) && !small(of->after)))) {
    of->in = zone::general;
    merge(of, owner, batch, absorb);
  }
  make_free(of, owner, batch);
  if (of->in != zone::general) return;
  segment* const right = of->after;
  leave_small(of->before, absorb);
  leave_small(right, absorb);
}

// A free part of a small stretch whose other parts went into a run or a window: nobody would join
// it with what lies beside it. One that only an owner may have settles when it is anyone's.
void heap::leave_small(segment* left_over, absorb_idle absorb) {
  const auto small = [](const segment* with) { return with != nullptr && with->in == zone::small; };
  if (!small(left_over) || left_over->state != segment_state::free || left_over->owner != anyone)
    return;
  if (small(left_over->before) || small(left_over->after)) return;
  owner_id owner = anyone;
  std::uint64_t batch = 0;
  bins_if(owner, zone::small)->remove(left_over);
  left_over->in = zone::general;
  merge(left_over, owner, batch, absorb);
  make_free(left_over, owner, batch);
}

// Cuts [at, at + bytes) out of a free segment and gives it the state; what is left stays free as it
// was.
segment* heap::carve(segment* from, std::uint64_t at, std::uint64_t bytes, segment_state to) {
  const std::uint64_t start = from->start();
  const std::uint64_t end = from->end();
  if (at + bytes < end) index_.expect(at + bytes);
  const owner_id owner = from->owner;
  const std::uint64_t batch = from->batch;
  bins& in = *bins_if(owner, from->in);
  in.remove(from);
  const zone was = from->in;
  segment* taken = from;
  if (at > start) {
    from->bytes = at - start;
    in.insert(from);
    taken = make(from->view, at, bytes, to, from);
    taken->in = was;
  } else {
    taken->bytes = bytes;
    taken->state = to;
  }
  if (at + bytes < end) {
    segment* const rest =
        make(taken->view, at + bytes, end - at - bytes, segment_state::free, taken);
    rest->owner = owner;
    rest->batch = batch;
    rest->in = was;
    in.insert(rest);
  }
  taken->owner = owner;
  taken->batch = batch;
  if (to == segment_state::used) index_.note(taken);
  return taken;
}

// Blocks
// ----------------------------------------------------------------------------------------------

segment* heap::take(segment* from, std::uint64_t bytes, std::uint64_t alignment) {
  segment* const block =
      carve(from, align_up(from->start(), alignment), bytes, segment_state::used);
  return block;
}

segment* heap::fit(std::uint64_t bytes, std::uint64_t alignment, owner_id owner, reach of,
                   zone from) const {
  // Any segment this long has an aligned start with the block behind it.
  const std::uint64_t need = alignment <= granule ? bytes : bytes + alignment - granule;
  segment* best = nullptr;
  for (const owner_id who : {owner, anyone}) {
    if (of == reach::own && who != owner) break;
    const bins* const in = bins_if(who, from);
    if (in == nullptr || in->empty()) continue;
    segment* found = in->best_fit(bytes);
    if (found != nullptr && align_up(found->start(), alignment) + bytes > found->end())
      found = in->best_fit(need);
    if (found == nullptr) continue;
    if (best == nullptr || found->bytes < best->bytes) best = found;
    if (owner == anyone) break;
  }
  if (best == nullptr || bytes < large_block || alignment > granule ||
      best->bytes - bytes <= bytes / tight_share)
    return best;
  const std::uint64_t most = nearly_as_tight * best->bytes;
  for (const owner_id who : {owner, anyone}) {
    if (const bins* const in = bins_if(who, from); in != nullptr && !in->empty())
      best = in->lowest_fit(bytes, most, best);
    if (owner == anyone || of == reach::own) break;
  }
  return best;
}

segment* heap::allocate(std::uint64_t bytes, std::uint64_t alignment, owner_id owner, reach of,
                        zone from) {
  MILLPOND_AUDIT_CHECK(is_aligned(bytes, granule) && bytes > 0, bytes);
  if (from == zone::small || of == reach::own) {
    if (segment* const found = fit(bytes, alignment, owner, of, zone::small))
      return take(found, bytes, alignment);
  }
  if (from == zone::small) {
    if (segment* const room = fit(small_stretch, granule, owner, of, zone::general);
        room != nullptr && bytes <= small_stretch) {
      segment* made = carve(room, room->start(), small_stretch, segment_state::used);
      made->in = zone::small;
      owner_id whose = made->owner;
      std::uint64_t batch = made->batch;
      merge(made, whose, batch, absorb_idle::no);
      make_free(made, whose, batch);
      if (align_up(made->start(), alignment) + bytes <= made->end())
        return take(made, bytes, alignment);
    }
  }
  segment* const found = fit(bytes, alignment, owner, of, zone::general);
  return found == nullptr ? nullptr : take(found, bytes, alignment);
}

segment* heap::allocate_run(std::uint64_t bytes, std::uint64_t alignment, owner_id owner,
                            reach of) {
  const std::uint64_t need = alignment <= granule ? bytes : bytes + alignment - granule;
  const auto fits = [&](const segment& s) {
    return may_have(s, owner) && (of == reach::own_and_idle || s.owner == owner);
  };
  segment* best = nullptr;
  std::uint64_t best_bytes = ~std::uint64_t{0};
  for (const view_record& in : views_) {
    if (in.kind == view_kind::window) continue;
    segment* start = nullptr;
    std::uint64_t run = 0;
    for (segment* s = in.first; s != nullptr; s = s->after) {
      if (!fits(*s)) {
        run = 0;
        continue;
      }
      if (run == 0) start = s;
      run += s->bytes;
      const bool ends = s->after == nullptr || !fits(*s->after);
      if (ends && run >= need && run < best_bytes) {
        best = start;
        best_bytes = run;
      }
    }
  }
  if (best == nullptr) return nullptr;
  while (best->bytes < need) best = join(best, best->after);
  segment* const block = take(best, bytes, alignment);
  // What is left may have come from a small stretch and lie beside general memory.
  if (segment* const rest = block->after; rest != nullptr && rest->state == segment_state::free) {
    bins_if(rest->owner, rest->in)->remove(rest);
    settle(rest, rest->owner, rest->batch, absorb_idle::no);
  }
  leave_small(block->before, absorb_idle::no);
  leave_small(block->after, absorb_idle::no);
  return block;
}

void heap::release(segment* block, owner_id owner, std::uint64_t batch, absorb_idle absorb) {
  MILLPOND_CHECK(block->state == segment_state::used, block->start(), block->bytes);
  index_.expect(block->start());
  // Both halves of the neighbours' records, which it may be joined with.
  for (const segment* const beside : {block->before, block->after}) {
    if (beside == nullptr) continue;
    prefetch_to_write(beside);
    prefetch_to_write(&beside->before);
  }
  block->holder = nullptr;
  block->holder_note = 0;
  block->link = nullptr;
  if (views_[block->view].kind == view_kind::window)
    return release_window(block, owner, batch, absorb);
  settle(block, owner, batch, absorb);
}

void heap::retire(owner_id owner, std::uint64_t completed) {
  if (owner == anyone) return;
  for (const zone of : {zone::small, zone::general}) {
    bins* const in = bins_if(owner, of);
    if (in == nullptr) continue;
    in->each([&](segment* s) {
      if (s->batch > completed) return;
      in->remove(s);
      settle(s, anyone, 0, absorb_idle::no);
    });
  }
}

segment* heap::allocate_at(std::uint64_t at, std::uint64_t bytes) {
  segment* const found = index_.covering(at);
  if (found == nullptr || found->state != segment_state::free || found->owner != anyone ||
      at + bytes > found->end()) {
    return nullptr;
  }
  segment* const block = carve(found, at, bytes, segment_state::used);
  return block;
}

void heap::reassign(owner_id from, std::uint64_t until, owner_id to, std::uint64_t batch) {
  if (from == anyone || from == to) return;
  for (const zone of : {zone::small, zone::general}) {
    bins* const in = bins_if(from, of);
    if (in == nullptr) continue;
    in->each([&](segment* s) {
      if (s->batch > until) return;
      in->remove(s);
      make_free(s, to, batch);
    });
  }
}

segment* heap::covering(std::uint64_t address) const {
  segment* const found = index_.covering(address);
  if (found == nullptr || address >= found->end()) return nullptr;
  if (found->state == segment_state::used) return found;
  return nullptr;
}

// Spans and views
// -------------------------------------------------------------------------------------

std::size_t heap::slot_index(const view_record& in, std::uint64_t address) const {
  const auto after = std::upper_bound(in.slots.begin(), in.slots.end(), address,
                                      [](std::uint64_t a, const slot& s) { return a < s.at; });
  MILLPOND_CHECK(after != in.slots.begin(), address, in.base);
  return static_cast<std::size_t>(after - in.slots.begin()) - 1;
}

void heap::cut(view_id view, std::uint64_t at) {
  segment* const found = index_.covering(at);
  if (found == nullptr || found->state != segment_state::closed || found->start() == at ||
      at >= found->end())
    return;
  const std::uint64_t rest = found->end() - at;
  found->bytes -= rest;
  make(view, at, rest, segment_state::closed, found);
}

const std::vector<heap::stretch>& heap::homes_of(const view_record& in, std::size_t first,
                                                 std::size_t last) {
  std::vector<stretch>& out = homes_;
  out.clear();
  for (std::size_t i = first; i < last; ++i) {
    const mapping& home = spans_[in.slots[i].span].home;
    if (!out.empty() && out.back().view == home.view &&
        out.back().at + out.back().bytes == home.at) {
      out.back().bytes += in.slots[i].bytes;
    } else {
      out.push_back({home.view, home.at, in.slots[i].bytes});
    }
  }
  return out;
}

// A free stretch of a home becomes one closed segment; what it was is added to owner and batch:
// free when the last part is.
void heap::close(const stretch& of, owner_id* owner, std::uint64_t* batch) {
  const std::uint64_t end = of.at + of.bytes;
  segment* s = index_.covering(of.at);
  segment* before = s->start() < of.at ? s : s->before;
  for (std::uint64_t x = of.at; x < end;) {
    MILLPOND_CHECK(s->state == segment_state::free, s->start(), of.at);
    // Its own order, or several of one owner.
    MILLPOND_CHECK(*owner == anyone || s->owner == anyone || s->owner == *owner, *owner, s->owner);
    if (s->owner != anyone) *owner = s->owner;
    *batch = std::max(*batch, s->batch);
    const std::uint64_t stop = std::min(end, s->end());
    s = carve(s, x, stop - x, segment_state::closed);
    segment* const next = s->after;
    before = s->before;
    unlink(s);
    s = next;
    x = stop;
  }
  make(of.view, of.at, of.bytes, segment_state::closed, before);
}

segment* heap::allocate_window(view_id view, std::uint64_t at, std::uint64_t bytes,
                               owner_id owner) {
  view_record& in = views_[view];
  MILLPOND_CHECK(in.kind == view_kind::window && at + bytes <= in.end, view, at, bytes);
  const std::size_t first = slot_index(in, at);
  std::size_t last = first;
  for (std::uint64_t x = at; x < at + bytes; x += in.slots[last++].bytes) {
    if (in.slots[last].span == no_span) return nullptr;
  }
  MILLPOND_CHECK(
      in.slots[first].at == at && in.slots[last - 1].at + in.slots[last - 1].bytes == at + bytes,
      at, bytes);
  const std::vector<stretch>& homes = homes_of(in, first, last);
  for (const stretch& home : homes) {
    for (const segment* s = index_.covering(home.at);
         s != nullptr && s->start() < home.at + home.bytes; s = s->after) {
      if (!may_have(*s, owner)) return nullptr;
    }
  }
  owner_id was = anyone;
  std::uint64_t batch = 0;
  for (const stretch& home : homes) close(home, &was, &batch);
  cut(view, at);
  cut(view, at + bytes);
  segment* s = index_.exact(at);
  segment* const before = s->before;
  for (std::uint64_t x = at; x < at + bytes;) {
    segment* const next = s->after;
    x = s->end();
    unlink(s);
    s = next;
  }
  for (std::size_t i = first; i < last; ++i) {
    in.slots[i].active = true;
    spans_[in.slots[i].span].closed = true;
  }
  for (const stretch& home : homes) set_active(home, false);
  segment* const block = make(view, at, bytes, segment_state::used, before);
  index_.note(block);
  block->owner = was;
  block->batch = batch;
  return block;
}

// The record changes: whoever still looks at the block's finds it unused.
segment* heap::make_closed(segment* block) {
  const view_id view = block->view;
  const std::uint64_t at = block->start();
  const std::uint64_t bytes = block->bytes;
  segment* const before = block->before;
  unlink(block);
  return make(view, at, bytes, segment_state::closed, before);
}

void heap::release_window(segment* block, owner_id owner, std::uint64_t batch, absorb_idle absorb) {
  view_record& in = views_[block->view];
  const std::size_t first = slot_index(in, block->start());
  const std::uint64_t end = block->end();
  std::size_t last = first;
  for (; last < in.slots.size() && in.slots[last].at < end; ++last) {
    in.slots[last].active = false;
    spans_[in.slots[last].span].closed = false;
  }
  segment* closed = make_closed(block);
  if (segment* const left = closed->before;
      left != nullptr && left->state == segment_state::closed) {
    left->bytes += closed->bytes;
    unlink(closed);
    closed = left;
  }
  if (segment* const right = closed->after;
      right != nullptr && right->state == segment_state::closed) {
    const std::uint64_t more = right->bytes;
    unlink(right);
    closed->bytes += more;
  }
  for (const stretch& home : homes_of(in, first, last)) {
    segment* const gap = index_.exact(home.at);
    MILLPOND_CHECK(
        gap != nullptr && gap->state == segment_state::closed && gap->bytes == home.bytes, home.at);
    set_active(home, true);
    settle(gap, owner, batch, absorb);
  }
}

void heap::set_active(const stretch& home, bool to) {
  view_record& in = views_[home.view];
  for (std::size_t i = slot_index(in, home.at);
       i < in.slots.size() && in.slots[i].at < home.at + home.bytes; ++i)
    in.slots[i].active = to;
}

bool heap::wholly_free(span_id span, owner_id owner) const {
  const span_record& of = spans_[span];
  if (!of.mapped) return true;
  if (of.closed) return false;
  const std::uint64_t end = of.home.at + of.bytes;
  for (const segment* s = index_.covering(of.home.at); s != nullptr && s->start() < end;
       s = s->after) {
    if (!may_have(*s, owner)) return false;
  }
  return true;
}

bool heap::holds_used(handle_id handle) const {
  for (const span_id id : handles_[handle].spans) {
    const span_record& span = spans_[id];
    if (span.closed) return true;  // a window's block has it
    if (!span.mapped) continue;
    const std::uint64_t end = span.home.at + span.bytes;
    for (const segment* s = index_.covering(span.home.at); s != nullptr && s->start() < end;
         s = s->after) {
      if (s->state == segment_state::used) return true;
    }
  }
  return false;
}

std::uint64_t heap::tail_bytes(view_id view, owner_id owner) const {
  std::uint64_t bytes = 0;
  for (const segment* s = views_[view].last; s != nullptr && may_have(*s, owner); s = s->before)
    bytes += s->bytes;
  return bytes;
}

std::uint64_t heap::free_bytes(owner_id owner) const noexcept {
  std::uint64_t sum = 0;
  for (const zone of : {zone::small, zone::general}) {
    if (const bins* const in = bins_if(owner, of)) sum += in->bytes();
  }
  return sum;
}
std::uint64_t heap::largest_free(owner_id owner) const noexcept {
  std::uint64_t most = 0;
  for (const zone of : {zone::small, zone::general}) {
    if (const bins* const in = bins_if(owner, of)) most = std::max(most, in->largest());
  }
  return most;
}

std::uint64_t heap::metadata_bytes() const noexcept {
  std::uint64_t bytes = sizeof(*this) + index_.metadata_bytes();
  for (const auto& of_zone : bins_) {
    for (const auto& b : of_zone) bytes += b != nullptr ? sizeof(bins) : 0;
  }
  bytes += spans_.capacity() * sizeof(span_record);
  for (const handle_record& h : handles_) {
    bytes += sizeof(handle_record) + h.spans.capacity() * sizeof(span_id) +
             h.mappings.capacity() * sizeof(mapping);
  }
  for (const view_record& v : views_)
    bytes += sizeof(view_record) + v.slots.capacity() * sizeof(slot) +
             v.handles.capacity() * sizeof(placed_handle);
  return bytes;
}

}  // namespace millpond::heap
