// The walker: every invariant of the heap, checked over the whole structure.
#include <algorithm>
#include <map>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "heap/heap.hpp"

namespace millpond::heap {

// What one part of the walk finds and another compares.
class heap::walker {
 public:
  explicit walker(const heap& of) : of_(of) {}
  void check_slots(view_id id);
  void check_handles(view_id id);
  void check_extents(view_id id);
  void check_spans();
  void check_bins();

 private:
  void check_free(const extent& s, const extent* before);
  void check_hole(const view_record& in, const slot& hole);
  void check_slots_under(const view_record& in, const extent& s);
  const heap& of_;
  std::map<std::pair<owner_id, zone>, std::uint64_t> free_by_owner_;
  std::map<span_id, int> used_by_stitched_;
};

void heap::walker::check_slots(view_id id) {
  const view_record& in = of_.views_[id];
  std::uint64_t at = in.base;
  std::uint64_t mapped = 0;
  bool behind_hole = false;
  for (const slot& s : in.slots) {
    MILLPOND_CHECK(s.at == at, s.at, at);
    at += s.bytes;
    if (s.span == no_span) {
      MILLPOND_CHECK(!behind_hole && at != in.end, s.at);
      behind_hole = true;
      check_hole(in, s);
      continue;
    }
    behind_hole = false;
    mapped += s.bytes;
    const span_record& of = of_.spans_[s.span];
    MILLPOND_CHECK(of.present && of.mapped && of.bytes == s.bytes, s.span);
    if (in.kind == view_kind::primary) {
      MILLPOND_CHECK(of.primary.view == id && of.primary.at == s.at &&
                         s.active == !(of.closed || of_.handles_[of.handle].held),
                     s.span, s.at);
    } else if (s.active) {
      // In one stitched range at a time, and closed in the primary view meanwhile.
      MILLPOND_CHECK(of.closed && ++used_by_stitched_[s.span] == 1, s.span, s.at);
    }
  }
  MILLPOND_CHECK(at == in.end && in.end <= in.farthest_end, at, in.end);
  MILLPOND_CHECK(in.farthest_end <= in.base + in.capacity && mapped == in.mapped, mapped);
}

// In a primary view one extent and nothing beside it; in a stitched one it may be part of one.
void heap::walker::check_hole(const view_record& in, const slot& hole) {
  const extent* const there = of_.index_.covering(hole.at);
  MILLPOND_CHECK(there != nullptr && there->state == extent_state::closed, hole.at);
  MILLPOND_CHECK(
      in.kind == view_kind::stitched || (there->start() == hole.at && there->bytes == hole.bytes),
      hole.at, hole.bytes);
}

void heap::walker::check_handles(view_id id) {
  const view_record& in = of_.views_[id];
  for (std::size_t i = 0; i < in.handles.size(); ++i) {
    const auto& [where, handle] = in.handles[i];
    const handle_record& of = of_.handles_[handle];
    MILLPOND_CHECK(of.present && (i == 0 || in.handles[i - 1].at +
                                                    of_.handles_[in.handles[i - 1].handle].bytes <=
                                                where),
                   where);
    MILLPOND_CHECK(std::any_of(of.mappings.begin(), of.mappings.end(),
                               [&](const mapping& m) { return m.view == id && m.at == where; }),
                   where);
  }
}

void heap::walker::check_extents(view_id id) {
  const view_record& in = of_.views_[id];
  std::uint64_t at = in.base;
  const extent* before = nullptr;
  for (const extent* s = in.first; s != nullptr; s = s->after) {
    MILLPOND_CHECK(s->start() == at && s->before == before && s->view == id, s->start(), at, id);
    MILLPOND_CHECK(s->bytes > 0 && is_aligned(s->bytes, granule), s->bytes);
    MILLPOND_CHECK(of_.index_.exact(at) == s && of_.index_.covering(at + s->bytes - 1) == s, at);
    MILLPOND_CHECK(in.kind == view_kind::primary || s->state != extent_state::free, s->start());
    if (s->state == extent_state::free) check_free(*s, before);
    check_slots_under(in, *s);
    at += s->bytes;
    before = s;
  }
  MILLPOND_CHECK(at == in.end && in.last == before, at, in.end);
}

void heap::walker::check_free(const extent& s, const extent* before) {
  free_by_owner_[{s.owner, s.in}] += s.bytes;
  MILLPOND_CHECK(s.owner != anyone || s.batch == 0, s.start(), s.batch);
  if (before != nullptr && before->state == extent_state::free && before->owner == anyone &&
      before->in == s.in) {
    MILLPOND_CHECK(s.owner != anyone, s.start());  // idle neighbours are always joined
  }
}

// A closed extent is whole slots that are not active; every other byte lies in active slots.
void heap::walker::check_slots_under(const view_record& in, const extent& s) {
  for (std::size_t i = of_.slot_index(in, s.start());
       i < in.slots.size() && in.slots[i].at < s.end(); ++i) {
    const slot& here = in.slots[i];
    if (s.state == extent_state::closed) {
      MILLPOND_CHECK(!here.active && here.at >= s.start() && here.at + here.bytes <= s.end(),
                     s.start());
    } else {
      MILLPOND_CHECK(here.active, s.start(), here.at);
    }
  }
}

void heap::walker::check_spans() {
  for (span_id id = 0; id < of_.spans_.size(); ++id) {
    MILLPOND_CHECK(of_.spans_[id].closed == used_by_stitched_.contains(id), id);
  }
  // What a release or a removal needs is there.
  MILLPOND_CHECK(of_.unused_spans_.capacity() >= of_.spans_.size() &&
                     of_.unused_handles_.capacity() >= of_.handles_.size() &&
                     of_.primaries_.capacity() >= of_.spans_.size(),
                 of_.spans_.size());
}

void heap::walker::check_bins() {
  for (const zone of : {zone::small, zone::general}) {
    for (owner_id owner = 0; owner < of_.bins_[static_cast<unsigned>(of)].size(); ++owner) {
      const bins* const in = of_.bins_if(owner, of);
      if (in == nullptr) continue;
      std::uint64_t sum = 0;
      in->each([&](const extent* s) {
        MILLPOND_CHECK(s->state == extent_state::free && s->owner == owner && s->in == of,
                       s->start(), owner);
        sum += s->bytes;
      });
      MILLPOND_CHECK(sum == in->bytes() && sum == free_by_owner_[(std::pair{owner, of})], owner,
                     sum);
    }
  }
}

void heap::check() const {
  walker walk(*this);
  for (view_id id = 0; id < views_.size(); ++id) {
    walk.check_slots(id);
    walk.check_handles(id);
    walk.check_extents(id);
  }
  walk.check_spans();
  walk.check_bins();
}

}  // namespace millpond::heap
