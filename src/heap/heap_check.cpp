// The walker: every invariant of the heap, checked over the whole structure.
#include <algorithm>
#include <map>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "heap/heap.hpp"

namespace millpond::heap {

void heap::check() const {
  std::map<std::pair<owner_id, zone>, std::uint64_t> free_by_owner;
  std::map<span_id, int> used_by_stitched;
  for (view_id id = 0; id < views_.size(); ++id) {
    const view_record& in = views_[id];
    std::uint64_t at = in.base;
    for (const slot& s : in.slots) {
      MILLPOND_CHECK(s.at == at, s.at, at);
      if (s.span != no_span) {
        const span_record& of = spans_[s.span];
        MILLPOND_CHECK(of.present && of.mapped && of.bytes == s.bytes, s.span);
        if (in.kind == view_kind::primary) {
          MILLPOND_CHECK(of.primary.view == id && of.primary.at == s.at && s.active == !of.closed,
                         s.span, s.at);
        } else if (s.active) {
          // In one stitched range at a time, and closed in the primary view meanwhile.
          MILLPOND_CHECK(of.closed && ++used_by_stitched[s.span] == 1, s.span, s.at);
        }
      }
      at += s.bytes;
    }
    MILLPOND_CHECK(at == in.end, at, in.end);
    for (std::size_t i = 0; i < in.handles.size(); ++i) {
      const auto& [where, handle] = in.handles[i];
      const handle_record& of = handles_[handle];
      MILLPOND_CHECK(
          of.present &&
              (i == 0 || in.handles[i - 1].at + handles_[in.handles[i - 1].handle].bytes <= where),
          where);
      MILLPOND_CHECK(std::any_of(of.mappings.begin(), of.mappings.end(),
                                 [&](const mapping& m) { return m.view == id && m.at == where; }),
                     where);
    }
    at = in.base;
    const extent* before = nullptr;
    for (const extent* s = in.first; s != nullptr; s = s->after) {
      MILLPOND_CHECK(s->start() == at && s->before == before && s->view == id, s->start(), at, id);
      MILLPOND_CHECK(s->bytes > 0 && is_aligned(s->bytes, granule), s->bytes);
      MILLPOND_CHECK(index_.exact(at) == s && index_.covering(at + s->bytes - 1) == s, at);
      MILLPOND_CHECK(in.kind == view_kind::primary || s->state != extent_state::free, s->start());
      if (s->state == extent_state::free) {
        free_by_owner[{s->owner, s->in}] += s->bytes;
        MILLPOND_CHECK(s->owner != anyone || s->batch == 0, s->start(), s->batch);
        if (before != nullptr && before->state == extent_state::free && before->owner == anyone &&
            before->in == s->in) {
          MILLPOND_CHECK(s->owner != anyone, s->start());  // idle neighbours are always joined
        }
      }
      // A closed extent is whole slots that are not active; every other byte lies in active slots.
      for (std::size_t i = slot_index(in, at); i < in.slots.size() && in.slots[i].at < s->end();
           ++i) {
        const slot& here = in.slots[i];
        if (s->state == extent_state::closed) {
          MILLPOND_CHECK(!here.active && here.at >= s->start() && here.at + here.bytes <= s->end(),
                         s->start());
        } else {
          MILLPOND_CHECK(here.active, s->start(), here.at);
        }
      }
      at += s->bytes;
      before = s;
    }
    MILLPOND_CHECK(at == in.end && in.last == before, at, in.end);
  }
  for (span_id id = 0; id < spans_.size(); ++id) {
    MILLPOND_CHECK(spans_[id].closed == used_by_stitched.contains(id), id);
  }
  for (const zone of : {zone::small, zone::general}) {
    for (owner_id owner = 0; owner < bins_[static_cast<unsigned>(of)].size(); ++owner) {
      const bins* const in = bins_if(owner, of);
      if (in == nullptr) continue;
      std::uint64_t sum = 0;
      in->each([&](const extent* s) {
        MILLPOND_CHECK(s->state == extent_state::free && s->owner == owner && s->in == of,
                       s->start(), owner);
        sum += s->bytes;
      });
      MILLPOND_CHECK(sum == in->bytes() && sum == free_by_owner[(std::pair{owner, of})], owner,
                     sum);
    }
  }
}

}  // namespace millpond::heap
