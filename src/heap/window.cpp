#include "heap/window.hpp"

#include <algorithm>

namespace millpond::heap {
namespace {

// Mapping a span costs about 35 us whatever its size (H200, driver 580.159), so a window of more is no bargain.
constexpr std::size_t most_spans = 64;

struct candidate {
  window_plan plan;
  std::size_t moved = 0;  // spans taken from their places
};

[[nodiscard]] bool better(const candidate& a, const candidate& b) {
  if (!b.plan.possible) return a.plan.possible;
  if (!a.plan.possible) return false;
  if (a.plan.new_bytes != b.plan.new_bytes) return a.plan.new_bytes < b.plan.new_bytes;
  if (a.plan.spans.size() != b.plan.spans.size()) return a.plan.spans.size() < b.plan.spans.size();
  return a.moved < b.moved;
}

class planner {
 public:
  planner(const heap& of, std::uint64_t bytes, owner_id owner, const std::function<std::uint64_t(std::uint64_t)>& round_new)
      : heap_(of), bytes_(bytes), owner_(owner), round_new_(round_new), whole_(of.spans().size(), false) {
    for (span_id id = 0; id < whole_.size(); ++id) {
      whole_[id] = of.spans()[id].present && of.wholly_free(id, owner);
      if (whole_[id]) by_size_.push_back(id);
    }
    std::sort(by_size_.begin(), by_size_.end(), [&](span_id a, span_id b) {
      return of.spans()[a].bytes != of.spans()[b].bytes ? of.spans()[a].bytes > of.spans()[b].bytes : a < b;
    });
  }

  candidate best() {
    for (view_id v = 0; v < heap_.views().size(); ++v) inside(v);
    // A new mapping is not looked for where an old one does.
    if (!best_.plan.possible) {
      for (view_id v = 0; v < heap_.views().size(); ++v) at_the_end(v);
      at_the_end(new_view);
    }
    return best_;
  }

 private:
  // Free bytes at the end (or the start) of an active slot that belongs to nobody else, whole or not.
  [[nodiscard]] std::uint64_t free_tail(const heap::slot& s) const { return s.active ? heap_.free_before(s.at + s.bytes, s.at, owner_) : 0; }
  [[nodiscard]] std::uint64_t free_head(const heap::slot& s) const { return s.active ? heap_.free_after(s.at, s.at + s.bytes, owner_) : 0; }

  // Runs of slots whose spans are whole, with the free ends of their neighbours. A span that stands in the run twice
  // counts once: the run ends before its second place.
  void inside(view_id v) {
    const auto& slots = heap_.views()[v].slots;
    for (std::size_t first = 0; first < slots.size(); ++first) {
      if (slots[first].span == no_span || !whole_[slots[first].span]) continue;
      candidate c;
      c.plan.view = v;
      std::uint64_t run = first > 0 && slots[first - 1].span != no_span && !whole_[slots[first - 1].span] ? free_tail(slots[first - 1]) : 0;
      std::vector<span_id> seen;
      std::size_t last = first;
      for (; last < slots.size() && run < bytes_ && last - first < most_spans; ++last) {
        const heap::slot& s = slots[last];
        if (s.span == no_span || !whole_[s.span] || std::find(seen.begin(), seen.end(), s.span) != seen.end()) break;
        seen.push_back(s.span);
        run += s.bytes;
        if (!s.active) {
          c.plan.activate.push_back(s.at);
          ++c.moved;
        }
      }
      if (run < bytes_ && last < slots.size() && slots[last].span != no_span && !whole_[slots[last].span]) run += free_head(slots[last]);
      c.plan.possible = run >= bytes_;
      if (better(c, best_)) best_ = c;
    }
  }

  // What is free at the end of a view, then whole spans from elsewhere, then new memory.
  void at_the_end(view_id v) {
    candidate c;
    c.plan.view = v;
    std::uint64_t have = 0;
    std::vector<bool> taken(whole_.size(), false);
    if (v != new_view) {
      const auto& slots = heap_.views()[v].slots;
      std::size_t i = slots.size();
      while (i > 0 && slots[i - 1].span != no_span && whole_[slots[i - 1].span] && !taken[slots[i - 1].span] && have < bytes_) {
        --i;
        taken[slots[i].span] = true;
        have += slots[i].bytes;
        if (!slots[i].active) {
          c.plan.activate.push_back(slots[i].at);
          ++c.moved;
        }
      }
      if (i > 0 && slots[i - 1].span != no_span && !whole_[slots[i - 1].span]) have += free_tail(slots[i - 1]);
    }
    std::uint64_t need = bytes_ - std::min(bytes_, have);
    while (need > 0) {
      span_id pick = no_span;
      for (const span_id id : by_size_) {
        if (taken[id]) continue;
        if (pick != no_span && heap_.spans()[id].bytes < need) break;
        pick = id;  // the smallest that is enough, or the largest
        if (heap_.spans()[id].bytes < need) break;
      }
      if (pick == no_span) break;
      if (c.plan.spans.size() == most_spans) return;
      taken[pick] = true;
      c.plan.spans.push_back(pick);
      ++c.moved;
      need -= std::min(need, heap_.spans()[pick].bytes);
    }
    if (need > 0) c.plan.new_bytes = round_new_(need);
    std::uint64_t more = c.plan.new_bytes;
    for (const span_id id : c.plan.spans) more += heap_.spans()[id].bytes;
    if (v != new_view && heap_.views()[v].end - heap_.views()[v].base + more > heap_.views()[v].capacity) return;
    c.plan.possible = true;
    if (better(c, best_)) best_ = c;
  }

  const heap& heap_;
  const std::uint64_t bytes_;
  const owner_id owner_;
  const std::function<std::uint64_t(std::uint64_t)>& round_new_;
  std::vector<bool> whole_;
  std::vector<span_id> by_size_;
  candidate best_;
};

}  // namespace

window_plan plan_window(const heap& of, std::uint64_t bytes, owner_id owner,
                        const std::function<std::uint64_t(std::uint64_t)>& round_new) {
  return planner(of, bytes, owner, round_new).best().plan;
}

}  // namespace millpond::heap
