#include "heap/window.hpp"

#include <algorithm>

namespace millpond::heap {
namespace {

// How many handles in use are tried as the beginning of a window: those with the longest free ends.
constexpr std::size_t beginnings = 8;
constexpr std::size_t nowhere = ~std::size_t{0};

class planner {
 public:
  planner(const heap& of, std::uint64_t bytes, owner_id owner)
      : heap_(of), bytes_(bytes), owner_(owner), whole_(of.spans().size(), false) {
    find_whole();
  }

  window_plan best() {
    for (view_id v = 0; v < heap_.views().size(); ++v) {
      if (heap_.views()[v].kind == view_kind::window) there(v);
    }
    if (best_.possible) return best_;
    sort_handles();
    assemble({});
    for (std::size_t i = 0; i < std::min(beginnings, tails_.size()); ++i) {
      const auto [tail, id] = tails_[i];
      assemble({tail, {id}, id, new_view, heap_.handles()[id].bytes - tail});
    }
    for (view_id v = 0; v < heap_.views().size(); ++v) {
      if (heap_.views()[v].kind == view_kind::window) go_on(v);
    }
    return best_;
  }

 private:
  using sized = std::pair<std::uint64_t, handle_id>;

  // Which spans the owner may have whole: one walk over the homes, segments and slots side by side.
  void find_whole() {
    for (const auto& in : heap_.views()) {
      if (in.kind == view_kind::window) continue;
      const segment* s = in.first;
      for (const heap::slot& slot : in.slots) {
        const std::uint64_t end = slot.at + slot.bytes;
        bool free = slot.span != no_span;
        while (s != nullptr && s->start() < end) {
          free = free && s->state == segment_state::free && (s->owner == owner_ || s->owner == anyone);
          if (s->end() > end) break;
          s = s->after;
        }
        if (free) whole_[slot.span] = true;
      }
    }
  }

  // Stretches of a window view whose spans are whole: two ends that move over it. A span that stands in the view twice
  // is in a stretch once.
  void there(view_id v) {
    const auto& slots = heap_.views()[v].slots;
    last_seen_.assign(whole_.size(), nowhere);
    std::size_t first = 0;
    std::uint64_t run = 0;
    const auto drop_first = [&] { run -= slots[first++].bytes; };
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].span == no_span || !whole_[slots[i].span]) {
        first = i + 1;
        run = 0;
        continue;
      }
      std::size_t& seen = last_seen_[slots[i].span];
      while (seen != nowhere && seen >= first) drop_first();
      seen = i;
      run += slots[i].bytes;
      while (run - slots[first].bytes >= bytes_) drop_first();
      if (run >= bytes_ && (!best_.possible || run < best_.bytes)) {
        best_.possible = true;
        best_.view = v;
        best_.at = slots[first].at;
        best_.bytes = run;
      }
    }
  }

  void sort_handles() {
    for (handle_id id = 0; id < heap_.handles().size(); ++id) {
      const auto& h = heap_.handles()[id];
      if (!h.present) continue;
      std::uint64_t head = 0, tail = 0;
      for (std::size_t i = 0; i < h.spans.size() && whole_[h.spans[i]]; ++i) head += heap_.spans()[h.spans[i]].bytes;
      if (head == h.bytes) {
        full_.push_back({head, id});
        continue;
      }
      for (std::size_t i = h.spans.size(); i > 0 && whole_[h.spans[i - 1]]; --i) tail += heap_.spans()[h.spans[i - 1]].bytes;
      if (head > 0) heads_.push_back({head, id});
      if (tail > 0) tails_.push_back({tail, id});
    }
    std::stable_sort(full_.begin(), full_.end(), [](const sized& a, const sized& b) { return a.first > b.first; });
    std::sort(heads_.begin(), heads_.end());
    std::sort(tails_.rbegin(), tails_.rend());
  }

  // What a window begins with.
  struct start {
    std::uint64_t bytes = 0;
    std::vector<handle_id> holds;       // not to be taken again
    handle_id to_map = no_handle;
    view_id view = new_view;
    std::uint64_t at = 0;               // in the view; or in the handle
  };

  // Where a view of windows ends with free spans, each once, a window may go on behind them.
  void go_on(view_id v) {
    const auto& slots = heap_.views()[v].slots;
    start from;
    from.view = v;
    last_seen_.assign(whole_.size(), nowhere);
    for (std::size_t i = slots.size(); i > 0; --i) {
      const heap::slot& slot = slots[i - 1];
      if (slot.span == no_span || !whole_[slot.span] || last_seen_[slot.span] != nowhere) break;
      last_seen_[slot.span] = i;
      from.bytes += slot.bytes;
      from.at = slot.at;
      const handle_id of = heap_.spans()[slot.span].handle;
      if (from.holds.empty() || from.holds.back() != of) from.holds.push_back(of);
    }
    if (from.bytes > 0) assemble(from);
  }

  // The start, then whole handles, then the free beginning of one in use; what is missing is to be new, and the window to
  // be planned again over it.
  void assemble(const start& from) {
    window_plan c;
    std::vector<bool> taken(full_.size(), false);
    std::uint64_t have = from.bytes;  // of the run
    if (from.to_map != no_handle) c.handles.push_back(from.to_map);
    c.view = from.view;
    (from.view == new_view ? c.skip : c.at) = from.at;
    const auto held = [&](handle_id id) { return std::find(from.holds.begin(), from.holds.end(), id) != from.holds.end(); };
    for (std::size_t i = 0; i < full_.size(); ++i) taken[i] = held(full_[i].second);
    while (have < bytes_) {
      const std::uint64_t need = bytes_ - have;
      // The free beginning that is just enough; else the smallest whole handle that is; else the largest.
      auto head = std::lower_bound(heads_.begin(), heads_.end(), sized{need, 0});
      while (head != heads_.end() && held(head->second)) ++head;
      if (head != heads_.end()) {
        c.handles.push_back(head->second);
        have = bytes_;
        break;
      }
      std::size_t pick = nowhere;
      for (std::size_t i = 0; i < full_.size(); ++i) {
        if (taken[i]) continue;
        if (pick != nowhere && full_[i].first < need) break;
        pick = i;
        if (full_[i].first < need) break;
      }
      if (pick == nowhere) break;
      taken[pick] = true;
      c.handles.push_back(full_[pick].second);
      have += full_[pick].first;
      if (best_.possible && best_.new_bytes == 0 && c.handles.size() >= best_.handles.size()) return;
    }
    if (have < bytes_) {  // new memory goes before the longest free beginning
      for (auto head = heads_.rbegin(); head != heads_.rend(); ++head) {
        if (held(head->second)) continue;
        have += head->first;
        break;
      }
    }
    c.new_bytes = bytes_ - std::min(bytes_, have);
    c.possible = true;
    const bool better = !best_.possible || c.new_bytes < best_.new_bytes ||
                        (c.new_bytes == best_.new_bytes && c.handles.size() < best_.handles.size());
    if (!better) return;
    c.bytes = block_bytes(c, from.view == new_view ? 0 : from.bytes);
    best_ = std::move(c);
  }

  // Whole spans from where the block begins; new memory is counted as it is asked for.
  [[nodiscard]] std::uint64_t block_bytes(const window_plan& c, std::uint64_t before) const {
    std::uint64_t bytes = before;
    std::uint64_t skip = c.skip;
    for (const handle_id id : c.handles) {
      for (const span_id s : heap_.handles()[id].spans) {
        const std::uint64_t one = heap_.spans()[s].bytes;
        if (skip > 0) {
          skip -= one;
          continue;
        }
        if (bytes >= bytes_) return bytes;
        bytes += one;
      }
    }
    return bytes;
  }

  const heap& heap_;
  const std::uint64_t bytes_;
  const owner_id owner_;
  std::vector<bool> whole_;
  std::vector<std::size_t> last_seen_;          // slot of the view at hand
  std::vector<sized> full_;                     // wholly free, the largest first
  std::vector<sized> heads_, tails_;            // in use with a free beginning, or a free end
  window_plan best_;
};

}  // namespace

window_plan plan_window(const heap& of, std::uint64_t bytes, owner_id owner) {
  return planner(of, bytes, owner).best();
}

}  // namespace millpond::heap
