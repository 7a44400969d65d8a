#include "heap/heap.hpp"

#include <algorithm>
#include <string>

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

heap::heap(const limits& most) : index_(most), most_(most) {
  if (!open_owner(anyone)) throw std::bad_alloc();
}

bool heap::open_owner(owner_id owner) noexcept {
  return ask_host([&] {
    for (auto& of_zone : bins_) {
      if (owner >= of_zone.size()) of_zone.resize(owner + 1);
      if (of_zone[owner] == nullptr) of_zone[owner] = std::make_unique<bins>();
    }
  });
}

bins& heap::bins_of(owner_id owner, zone of) const noexcept {
  bins* const found = bins_if(owner, of);
  MILLPOND_CHECK(found != nullptr, owner);  // open_owner comes first
  return *found;
}

error heap::why() const {
  const auto books = [](const char* what, std::uint64_t most) {
    std::string digits = std::to_string(most);
    for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
    return std::string("the pool has as many ") + what + " can hold (" + digits + ")";
  };
  switch (refused_) {
    case refusal::records:
      return {error_code::out_of_memory, books("blocks as its records", most_.records)};
    case refusal::regions:
      return {error_code::out_of_memory, books("ranges of addresses as its table", most_.regions)};
    case refusal::host_memory:
      return {error_code::out_of_memory, "the host has no memory left for the pool's records"};
    case refusal::none:
    case refusal::no_room: break;
  }
  return {error_code::out_of_memory, "nothing that is free is long enough"};
}

// Records and their links
// -----------------------------------------------------------------------------

extent* heap::make(view_id view, std::uint64_t at, std::uint64_t bytes, extent_state state,
                   extent* before) noexcept {
  extent* const out = index_.new_extent();
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

void heap::unlink(extent* of) noexcept {
  view_record& in = views_[of->view];
  (of->before != nullptr ? of->before->after : in.first) = of->after;
  (of->after != nullptr ? of->after->before : in.last) = of->before;
  index_.erase(of->start());
  index_.delete_extent(of);
}

void heap::make_free(extent* of, owner_id owner, std::uint64_t batch) noexcept {
  of->state = extent_state::free;
  of->owner = owner;
  of->batch = owner == anyone ? 0 : batch;
  bins_of(owner, of->in).insert(of);
}

extent* heap::join(extent* left, extent* right) noexcept {
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

// An extent that is in no bin takes in the free neighbours of its zone that it may join; they leave
// their bins.
void heap::merge(extent*& of, owner_id& owner, std::uint64_t& batch, absorb_idle absorb) noexcept {
  const auto joins = [&](const extent* with) {
    if (with == nullptr || with->state != extent_state::free || with->in != of->in) return false;
    if (with->owner == owner) return with->batch == batch || absorb == absorb_idle::yes;
    return absorb == absorb_idle::yes && (with->owner == anyone || owner == anyone);
  };
  const auto taken = [&](extent* with) {
    bins_if(with->owner, with->in)->remove(with);
    if (owner == anyone) owner = with->owner;
    batch = std::max(batch, with->batch);
  };
  if (extent* const left = of->before; joins(left)) {
    taken(left);
    left->bytes += of->bytes;
    unlink(of);
    of = left;
  }
  if (extent* const right = of->after; joins(right)) {
    taken(right);
    of->bytes += right->bytes;
    unlink(right);
  }
}

// An extent that is in no bin becomes free, in one piece with the neighbours that it may join; the
// result enters a bin once.
void heap::settle(extent* of, owner_id owner, std::uint64_t batch, absorb_idle absorb) noexcept {
  merge(of, owner, batch, absorb);
  const auto small = [](const extent* with) { return with != nullptr && with->in == zone::small; };
  // As long as a stretch, whichever parts of stretches it is; or the last that is left of one.
  if (small(of) && (of->bytes >= small_stretch || (!small(of->before) && !small(of->after)))) {
    of->in = zone::general;
    merge(of, owner, batch, absorb);
  }
  make_free(of, owner, batch);
  if (of->in != zone::general) return;
  extent* const right = of->after;
  leave_small(of->before, absorb);
  leave_small(right, absorb);
}

// A free part of a small stretch whose other parts went into a run or a stitched range: nobody
// would join it with what lies beside it. One that only an owner may have settles when it is
// anyone's.
void heap::leave_small(extent* left_over, absorb_idle absorb) noexcept {
  const auto small = [](const extent* with) { return with != nullptr && with->in == zone::small; };
  if (!small(left_over) || left_over->state != extent_state::free || left_over->owner != anyone)
    return;
  if (small(left_over->before) || small(left_over->after)) return;
  owner_id owner = anyone;
  std::uint64_t batch = 0;
  bins_if(owner, zone::small)->remove(left_over);
  left_over->in = zone::general;
  merge(left_over, owner, batch, absorb);
  make_free(left_over, owner, batch);
}

// Cuts [at, at + bytes) out of a free extent and gives it the state; what is left stays free as it
// was.
extent* heap::carve(extent* from, std::uint64_t at, std::uint64_t bytes, extent_state to) noexcept {
  const std::uint64_t start = from->start();
  const std::uint64_t end = from->end();
  if (at + bytes < end) index_.expect(at + bytes);
  const owner_id owner = from->owner;
  const std::uint64_t batch = from->batch;
  bins& in = *bins_if(owner, from->in);
  in.remove(from);
  const zone was = from->in;
  extent* taken = from;
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
    extent* const rest = make(taken->view, at + bytes, end - at - bytes, extent_state::free, taken);
    rest->owner = owner;
    rest->batch = batch;
    rest->in = was;
    in.insert(rest);
  }
  taken->owner = owner;
  taken->batch = batch;
  if (to == extent_state::used) index_.note(taken);
  return taken;
}

// Blocks
// ----------------------------------------------------------------------------------------------

// [at, at + bytes) of a free extent; nullptr where there are no records for what is left of it.
extent* heap::take(extent* from, std::uint64_t at, std::uint64_t bytes) noexcept {
  const std::size_t left_over =
      std::size_t{at > from->start()} + std::size_t{at + bytes < from->end()};
  return provide(left_over) ? carve(from, at, bytes, extent_state::used) : nullptr;
}

extent* heap::fit(std::uint64_t bytes, std::uint64_t alignment, owner_id owner, reach of,
                  zone from) const {
  // Any extent this long has an aligned start with the block behind it.
  const std::uint64_t need = alignment <= granule ? bytes : bytes + alignment - granule;
  extent* best = nullptr;
  for (const owner_id who : {owner, anyone}) {
    if (of == reach::own && who != owner) break;
    const bins* const in = bins_if(who, from);
    if (in == nullptr || in->empty()) continue;
    extent* found = in->best_fit(bytes);
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

extent* heap::allocate(std::uint64_t bytes, std::uint64_t alignment, owner_id owner, reach of,
                       zone from) noexcept {
  MILLPOND_AUDIT_CHECK(is_aligned(bytes, granule) && bytes > 0, bytes);
  if (from == zone::small || of == reach::own) {
    if (extent* const found = fit(bytes, alignment, owner, of, zone::small))
      return take(found, align_up(found->start(), alignment), bytes);
  }
  if (from == zone::small) {
    if (extent* const room = fit(small_stretch, granule, owner, of, zone::general);
        room != nullptr && bytes <= small_stretch && provide(3)) {
      extent* made = carve(room, room->start(), small_stretch, extent_state::used);
      made->in = zone::small;
      owner_id whose = made->owner;
      std::uint64_t batch = made->batch;
      merge(made, whose, batch, absorb_idle::no);
      make_free(made, whose, batch);
      if (align_up(made->start(), alignment) + bytes <= made->end())
        return take(made, align_up(made->start(), alignment), bytes);
    }
  }
  if (extent* const found = fit(bytes, alignment, owner, of, zone::general))
    return take(found, align_up(found->start(), alignment), bytes);
  refused_ = refusal::no_room;
  return nullptr;
}

extent* heap::allocate_run(std::uint64_t bytes, std::uint64_t alignment, owner_id owner,
                           reach of) noexcept {
  const std::uint64_t need = alignment <= granule ? bytes : bytes + alignment - granule;
  const auto fits = [&](const extent& s) {
    return may_have(s, owner) && (of == reach::own_and_idle || s.owner == owner);
  };
  extent* best = nullptr;
  std::uint64_t best_bytes = ~std::uint64_t{0};
  for (const view_record& in : views_) {
    if (in.kind == view_kind::stitched) continue;
    extent* start = nullptr;
    std::uint64_t run = 0;
    for (extent* s = in.first; s != nullptr; s = s->after) {
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
  if (best == nullptr) {
    refused_ = refusal::no_room;
    return nullptr;
  }
  if (!provide(2)) return nullptr;
  while (best->bytes < need) best = join(best, best->after);
  extent* const block = take(best, align_up(best->start(), alignment), bytes);
  // What is left may have come from a small stretch and lie beside general memory.
  if (extent* const rest = block->after; rest != nullptr && rest->state == extent_state::free) {
    bins_if(rest->owner, rest->in)->remove(rest);
    settle(rest, rest->owner, rest->batch, absorb_idle::no);
  }
  leave_small(block->before, absorb_idle::no);
  leave_small(block->after, absorb_idle::no);
  return block;
}

void heap::release(extent* block, owner_id owner, std::uint64_t batch,
                   absorb_idle absorb) noexcept {
  MILLPOND_CHECK(block->state == extent_state::used, block->start(), block->bytes);
  index_.expect(block->start());
  // Both halves of the neighbours' records, which it may be joined with.
  for (const extent* const beside : {block->before, block->after}) {
    if (beside == nullptr) continue;
    prefetch_to_write(beside);
    prefetch_to_write(&beside->before);
  }
  block->holder = nullptr;
  block->holder_note = 0;
  block->link = nullptr;
  if (views_[block->view].kind == view_kind::stitched)
    return release_stitched(block, owner, batch, absorb);
  settle(block, owner, batch, absorb);
}

void heap::retire(owner_id owner, std::uint64_t completed) noexcept {
  if (owner == anyone) return;
  for (const zone of : {zone::small, zone::general}) {
    bins* const in = bins_if(owner, of);
    if (in == nullptr) continue;
    in->each([&](extent* s) {
      if (s->batch > completed) return;
      in->remove(s);
      settle(s, anyone, 0, absorb_idle::no);
    });
  }
}

extent* heap::allocate_at(std::uint64_t at, std::uint64_t bytes) noexcept {
  extent* const found = index_.covering(at);
  if (found == nullptr || found->state != extent_state::free || found->owner != anyone ||
      at + bytes > found->end()) {
    refused_ = refusal::no_room;
    return nullptr;
  }
  return take(found, at, bytes);
}

void heap::reassign(owner_id from, std::uint64_t until, owner_id to, std::uint64_t batch) noexcept {
  if (from == anyone || from == to) return;
  for (const zone of : {zone::small, zone::general}) {
    bins* const in = bins_if(from, of);
    if (in == nullptr) continue;
    in->each([&](extent* s) {
      if (s->batch > until) return;
      in->remove(s);
      make_free(s, to, batch);
    });
  }
}

extent* heap::covering(std::uint64_t address) const {
  extent* const found = index_.covering(address);
  if (found == nullptr || address >= found->end()) return nullptr;
  if (found->state == extent_state::used) return found;
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

void heap::cut(view_id view, std::uint64_t at) noexcept {
  extent* const found = index_.covering(at);
  if (found == nullptr || found->state != extent_state::closed || found->start() == at ||
      at >= found->end())
    return;
  const std::uint64_t rest = found->end() - at;
  found->bytes -= rest;
  make(view, at, rest, extent_state::closed, found);
}

const std::vector<heap::stretch>& heap::primaries_of(const view_record& in, std::size_t first,
                                                     std::size_t last) noexcept {
  std::vector<stretch>& out = primaries_;
  out.clear();
  for (std::size_t i = first; i < last; ++i) {
    const mapping& primary = spans_[in.slots[i].span].primary;
    if (!out.empty() && out.back().view == primary.view &&
        out.back().at + out.back().bytes == primary.at) {
      out.back().bytes += in.slots[i].bytes;
    } else {
      out.push_back({primary.view, primary.at, in.slots[i].bytes});
    }
  }
  return out;
}

// A free stretch of a primary range becomes one closed extent; what it was is added to owner and
// batch: free when the last part is.
void heap::close(const stretch& of, owner_id* owner, std::uint64_t* batch) noexcept {
  const std::uint64_t end = of.at + of.bytes;
  extent* s = index_.covering(of.at);
  extent* before = s->start() < of.at ? s : s->before;
  for (std::uint64_t x = of.at; x < end;) {
    MILLPOND_CHECK(s->state == extent_state::free, s->start(), of.at);
    // Its own order, or several of one owner.
    MILLPOND_CHECK(*owner == anyone || s->owner == anyone || s->owner == *owner, *owner, s->owner);
    if (s->owner != anyone) *owner = s->owner;
    *batch = std::max(*batch, s->batch);
    const std::uint64_t stop = std::min(end, s->end());
    s = carve(s, x, stop - x, extent_state::closed);
    extent* const next = s->after;
    before = s->before;
    unlink(s);
    s = next;
    x = stop;
  }
  make(of.view, of.at, of.bytes, extent_state::closed, before);
}

extent* heap::allocate_stitched(view_id view, std::uint64_t at, std::uint64_t bytes,
                                owner_id owner) noexcept {
  view_record& in = views_[view];
  MILLPOND_CHECK(in.kind == view_kind::stitched && at + bytes <= in.end, view, at, bytes);
  const std::size_t first = slot_index(in, at);
  std::size_t last = first;
  refused_ = refusal::no_room;
  for (std::uint64_t x = at; x < at + bytes; x += in.slots[last++].bytes) {
    if (in.slots[last].span == no_span) return nullptr;
  }
  MILLPOND_CHECK(
      in.slots[first].at == at && in.slots[last - 1].at + in.slots[last - 1].bytes == at + bytes,
      at, bytes);
  const std::vector<stretch>& primaries = primaries_of(in, first, last);
  for (const stretch& primary : primaries) {
    for (const extent* s = index_.covering(primary.at);
         s != nullptr && s->start() < primary.at + primary.bytes; s = s->after) {
      if (!may_have(*s, owner)) return nullptr;
    }
  }
  // Where the block begins and ends its view is cut, and it has a record of its own.
  if (!provide(inserts_of_close * primaries.size() + 3)) return nullptr;
  owner_id was = anyone;
  std::uint64_t batch = 0;
  for (const stretch& primary : primaries) close(primary, &was, &batch);
  cut(view, at);
  cut(view, at + bytes);
  extent* s = index_.exact(at);
  extent* const before = s->before;
  for (std::uint64_t x = at; x < at + bytes;) {
    extent* const next = s->after;
    x = s->end();
    unlink(s);
    s = next;
  }
  for (std::size_t i = first; i < last; ++i) {
    in.slots[i].active = true;
    spans_[in.slots[i].span].closed = true;
  }
  for (const stretch& primary : primaries) set_active(primary, false);
  extent* const block = make(view, at, bytes, extent_state::used, before);
  index_.note(block);
  block->owner = was;
  block->batch = batch;
  return block;
}

// The record changes: whoever still looks at the block's finds it unused.
extent* heap::make_closed(extent* block) noexcept {
  const view_id view = block->view;
  const std::uint64_t at = block->start();
  const std::uint64_t bytes = block->bytes;
  extent* const before = block->before;
  unlink(block);
  return make(view, at, bytes, extent_state::closed, before);
}

void heap::release_stitched(extent* block, owner_id owner, std::uint64_t batch,
                            absorb_idle absorb) noexcept {
  view_record& in = views_[block->view];
  const std::size_t first = slot_index(in, block->start());
  const std::uint64_t end = block->end();
  std::size_t last = first;
  for (; last < in.slots.size() && in.slots[last].at < end; ++last) {
    in.slots[last].active = false;
    spans_[in.slots[last].span].closed = false;
  }
  extent* closed = make_closed(block);
  if (extent* const left = closed->before; left != nullptr && left->state == extent_state::closed) {
    left->bytes += closed->bytes;
    unlink(closed);
    closed = left;
  }
  if (extent* const right = closed->after;
      right != nullptr && right->state == extent_state::closed) {
    const std::uint64_t more = right->bytes;
    unlink(right);
    closed->bytes += more;
  }
  for (const stretch& primary : primaries_of(in, first, last)) {
    extent* const gap = index_.exact(primary.at);
    MILLPOND_CHECK(
        gap != nullptr && gap->state == extent_state::closed && gap->bytes == primary.bytes,
        primary.at);
    set_active(primary, true);
    settle(gap, owner, batch, absorb);
  }
}

void heap::set_active(const stretch& primary, bool to) noexcept {
  view_record& in = views_[primary.view];
  for (std::size_t i = slot_index(in, primary.at);
       i < in.slots.size() && in.slots[i].at < primary.at + primary.bytes; ++i)
    in.slots[i].active = to;
}

bool heap::wholly_free(span_id span, owner_id owner) const {
  const span_record& of = spans_[span];
  if (!of.mapped) return true;
  if (of.closed) return false;
  const std::uint64_t end = of.primary.at + of.bytes;
  for (const extent* s = index_.covering(of.primary.at); s != nullptr && s->start() < end;
       s = s->after) {
    if (!may_have(*s, owner)) return false;
  }
  return true;
}

bool heap::holds_used(handle_id handle) const {
  if (handles_[handle].held) return true;
  for (const span_id id : handles_[handle].spans) {
    const span_record& span = spans_[id];
    if (span.closed) return true;  // a stitched range's block has it
    if (!span.mapped) continue;
    const std::uint64_t end = span.primary.at + span.bytes;
    for (const extent* s = index_.covering(span.primary.at); s != nullptr && s->start() < end;
         s = s->after) {
      if (s->state == extent_state::used) return true;
    }
  }
  return false;
}

std::uint64_t heap::tail_bytes(view_id view, owner_id owner) const {
  std::uint64_t bytes = 0;
  for (const extent* s = views_[view].last; s != nullptr && may_have(*s, owner); s = s->before)
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
  bytes += spans_.capacity() * sizeof(span_record) + primaries_.capacity() * sizeof(stretch);
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
