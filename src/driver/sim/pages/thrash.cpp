#include "driver/sim/pages/thrash.hpp"

namespace millpond::sim::pages {
namespace {

constexpr unsigned most_events = 7;  // the driver counts in three bits
constexpr unsigned most_resets = 4;  // of a block, after which its books are kept for good

template <class Visitor>
void each_of(const page_mask& pages, Visitor&& visit) {
  if (pages.none()) return;
  for (unsigned i = 0; i < pages_a_block; ++i) {
    if (pages[i]) visit(i);
  }
}

}  // namespace

// How often it was throttled is kept, as the driver keeps it: a page that is thrown to and fro a
// little too slowly is pinned in the end.
void thrash_state::forget_one(unsigned number) {
  page& p = pages_[number];
  p.moved_ns = -1;
  p.events = 0;
  p.host_waits = p.device_waits = false;
  thrashing_.reset(number);
  pinned_.reset(number);
}

void thrash_state::forget(const page_mask& pages) {
  if (pages_.empty()) return;
  each_of(pages & thrashing_, [&](unsigned i) { forget_one(i); });
}

void thrash_state::moved(const page_mask& pages, side to, double now_ns, const page_costs& costs) {
  if (pages.none()) return;
  if (pages_.empty() && moved_ns_ >= 0 && moved_to_ != to &&
      now_ns - moved_ns_ <= costs.thrash_lapse_ns)
    pages_.resize(pages_a_block);
  moved_ns_ = now_ns;
  moved_to_ = to;
  if (pages_.empty()) return;
  each_of(pages, [&](unsigned i) {
    page& p = pages_[i];
    const double before = p.moved_ns;
    p.moved_ns = now_ns;
    if (before < 0) return;
    if (now_ns - before <= costs.thrash_lapse_ns) {
      if (p.events < most_events) ++p.events;
      if (p.events < costs.thrash_events) return;
      thrashing_.set(i);
      thrashed_ns_ = now_ns;
    } else if (p.events >= costs.thrash_events && !pinned_[i]) {
      forget_one(i);
    }
  });
}

thrash_state::hint thrash_state::ask(unsigned number, side by, double now_ns,
                                     const page_costs& costs) {
  if (pages_.empty()) return {};
  if (thrashed_ns_ >= 0 && now_ns - thrashed_ns_ > costs.thrash_reset_ns && !ever_pinned_ &&
      resets_ < most_resets) {
    const unsigned resets = resets_ + 1;
    *this = {};
    resets_ = resets;
    return {};
  }
  if (!thrashing_[number]) return {};
  page& p = pages_[number];
  bool& waits = by == side::host ? p.host_waits : p.device_waits;
  if (waits) {
    if (now_ns < p.throttled_until_ns && p.spared != by)
      return {hint::kind::throttle, p.throttled_until_ns};
    waits = false;
  }
  if (pinned_[number]) return {hint::kind::pin, 0};
  if (now_ns - p.moved_ns > costs.thrash_lapse_ns) return {};
  if (now_ns > p.throttled_until_ns) {
    // A period begins; nobody is spared twice in a row.
    p.throttled_until_ns = now_ns + costs.thrash_lapse_ns;
    p.spared = p.spared == by ? side::none : by;
  } else if (p.spared == side::none) {
    p.spared = by;
  }
  if (p.spared != by) {
    waits = true;
    ++p.throttles;
    return {hint::kind::throttle, p.throttled_until_ns};
  }
  if (p.throttles < costs.thrash_throttles) return {};
  p.throttles = 0;
  p.pinned_until_ns = now_ns + costs.thrash_pin_ns;
  pinned_.set(number);
  ever_pinned_ = true;
  return {hint::kind::pin, 0};
}

page_mask thrash_state::unpin(double now_ns) {
  page_mask over;
  each_of(pinned_, [&](unsigned i) {
    if (pages_[i].pinned_until_ns <= now_ns) over.set(i);
  });
  each_of(over, [&](unsigned i) { forget_one(i); });
  return over;
}

}  // namespace millpond::sim::pages
