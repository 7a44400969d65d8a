// The walker: every invariant of the heap, checked over the whole structure.
#include <map>

#include "base/bits.hpp"
#include "base/check.hpp"
#include "heap/heap.hpp"

namespace millpond::heap {

void heap::check() const {
  std::map<owner_id, std::uint64_t> free_by_owner;
  // Physical bytes in use: span -> start in the span -> end, to see that no two blocks share one.
  std::map<span_id, std::map<std::uint64_t, std::uint64_t>> in_use;
  for (view_id id = 0; id < views_.size(); ++id) {
    const view_record& in = views_[id];
    std::uint64_t at = in.base;
    for (const slot& s : in.slots) {
      MILLPOND_CHECK(s.at == at, s.at, at);
      if (s.span != no_span) {
        MILLPOND_CHECK(spans_[s.span].present && spans_[s.span].bytes == s.bytes, s.span);
      }
      at += s.bytes;
    }
    MILLPOND_CHECK(at == in.end, at, in.end);
    at = in.base;
    const segment* before = nullptr;
    for (const segment* s = in.first; s != nullptr; s = s->after) {
      MILLPOND_CHECK(s->start() == at && s->before == before && s->view == id, s->start(), at, id);
      MILLPOND_CHECK(s->bytes > 0 && is_aligned(s->bytes, granule), s->bytes);
      MILLPOND_CHECK(index_.exact(at) == s && index_.covering(at + s->bytes - 1) == s, at);
      if (s->state == segment_state::free) {
        free_by_owner[s->owner] += s->bytes;
        MILLPOND_CHECK(s->owner != anyone || s->batch == 0, s->start(), s->batch);
        if (before != nullptr && before->state == segment_state::free && before->owner == anyone) {
          MILLPOND_CHECK(s->owner != anyone, s->start());  // idle neighbours are always joined
        }
      }
      if (s->state == segment_state::used) {
        std::uint64_t x = s->start();
        for (std::size_t i = slot_index(in, x); x < s->end(); ++i) {
          const slot& here = in.slots[i];
          MILLPOND_CHECK(here.span != no_span, s->start());
          const std::uint64_t stop = here.at + here.bytes < s->end() ? here.at + here.bytes : s->end();
          auto& uses = in_use[here.span];
          const auto next = uses.lower_bound(x - here.at);
          MILLPOND_CHECK(next == uses.end() || next->first >= stop - here.at, s->start());
          MILLPOND_CHECK(next == uses.begin() || std::prev(next)->second <= x - here.at, s->start());
          uses[x - here.at] = stop - here.at;
          x = stop;
        }
        for (const segment* shade = s->aliases; shade != nullptr; shade = shade->bin_after) {
          MILLPOND_CHECK(shade->state == segment_state::shadow && shade->holder == s, shade->start());
        }
      }
      at += s->bytes;
      before = s;
    }
    MILLPOND_CHECK(at == in.end && in.last == before, at, in.end);
  }
  // What is used through one view is not free in another.
  for (const auto& [id, uses] : in_use) {
    for (const mapping& m : spans_[id].mappings) {
      for (const auto& [from, to] : uses) {
        for (std::uint64_t x = m.at + from; x < m.at + to;) {
          const segment* const s = index_.covering(x);
          MILLPOND_CHECK(s->state == segment_state::used || s->state == segment_state::shadow, x);
          x = s->end();
        }
      }
    }
  }
  for (owner_id owner = 0; owner < bins_.size(); ++owner) {
    if (bins_[owner] == nullptr) continue;
    std::uint64_t sum = 0;
    bins_[owner]->each([&](const segment* s) {
      MILLPOND_CHECK(s->state == segment_state::free && s->owner == owner, s->start(), owner);
      sum += s->bytes;
    });
    MILLPOND_CHECK(sum == bins_[owner]->bytes() && sum == free_by_owner[owner], owner, sum);
  }
}

}  // namespace millpond::heap
