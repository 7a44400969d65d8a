#include "heap/stitch.hpp"

#include <algorithm>
#include <new>

#include "base/bits.hpp"

namespace millpond::heap {
namespace {

// How many handles in use are tried as the beginning of a stitched range: those with the longest
// free ends.
constexpr std::size_t beginnings = 8;
constexpr std::size_t nowhere = ~std::size_t{0};

class planner {
 public:
  planner(const heap& of, std::uint64_t bytes, owner_id owner)
      : heap_(of),
        bytes_(bytes),
        owner_(owner),
        ends_(of.handles().size()),
        last_seen_(of.handles().size()) {
    find_ends();
  }

  stitch_plan best() {
    for (view_id v = 0; v < heap_.views().size(); ++v) {
      if (heap_.views()[v].kind == view_kind::stitched) there(v);
    }
    if (best_.possible) return best_;
    sort_handles();
    assemble({});
    for (std::size_t i = 0; i < std::min(beginnings, tails_.size()); ++i) {
      const auto [tail, id] = tails_[i];
      assemble({tail, {id}, id, new_view, ends_[id].bytes - tail});
    }
    for (view_id v = 0; v < heap_.views().size(); ++v) {
      if (heap_.views()[v].kind == view_kind::stitched) go_on(v);
    }
    return best_;
  }

 private:
  using sized = std::pair<std::uint64_t, handle_id>;

  // What of a handle the owner may have in whole spans: at its beginning, and at its end. Both are
  // all of it where it is wholly free. What is free in between makes no stitched range: it lies in
  // one piece in the primary view.
  struct ends {
    std::uint64_t bytes = 0;  // of the handle
    std::uint64_t head = 0, tail = 0;
    std::uint64_t span = 0;
    [[nodiscard]] bool whole() const noexcept { return head == bytes; }
    [[nodiscard]] std::uint64_t span_at(std::uint64_t offset) const noexcept {
      return std::min(span, bytes - offset);
    }
  };
  void find_ends() {
    const auto free = [&](const extent* s) {
      return s != nullptr && s->state == extent_state::free &&
             (s->owner == owner_ || s->owner == anyone);
    };
    for (const auto& in : heap_.views()) {
      if (in.kind == view_kind::stitched) continue;
      const extent* at_end = nullptr;  // what covers the last byte of the handle before
      for (const auto& [begin, id] : in.handles) {
        const auto& h = heap_.handles()[id];
        const std::uint64_t end = begin + h.bytes;
        const extent* s = at_end == nullptr || at_end->end() < begin ? heap_.extent_at(begin)
                          : at_end->end() == begin                   ? at_end->after
                                                                     : at_end;
        std::uint64_t to = begin;
        for (; to < end && free(s); s = s->after) to = s->end();
        if (to >= end) {
          ends_[id] = {h.bytes, h.bytes, h.bytes, h.span_bytes};
          at_end = nullptr;
          continue;
        }
        at_end = heap_.extent_at(end - 1);
        std::uint64_t from = end;
        for (s = at_end; free(s); s = s->before) from = s->start();
        ends_[id] = {h.bytes, (to - begin) / h.span_bytes * h.span_bytes,
                     h.bytes - std::min(h.bytes, align_up_to(from - begin, h.span_bytes)),
                     h.span_bytes};
      }
    }
  }
  [[nodiscard]] static std::uint64_t align_up_to(std::uint64_t value, std::uint64_t unit) noexcept {
    return divide_up(value, unit) * unit;
  }

  // Stretches of a stitched view that the owner may have. Where handles side by side are free for
  // long enough, each span of theirs is looked at.
  void there(view_id v) {
    const auto& placed = heap_.views()[v].handles;
    std::size_t first = 0;   // the stretch begins in this one,
    std::uint64_t most = 0;  // and is no longer than this
    std::uint64_t end = 0;
    const auto look = [&](std::size_t last) {
      if (most >= bytes_) tightest(v, first, last);
    };
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const ends& of = ends_[placed[i].handle];
      if (placed[i].at != end) {  // a hole
        if (i > 0) look(i - 1);
        most = 0;
      }
      end = placed[i].at + of.bytes;
      if (most == 0) first = i;
      if (of.whole()) {
        most += of.bytes;
        continue;
      }
      if (most > 0) {
        most += of.head;
        look(i);
      }
      first = i;
      most = of.tail;
    }
    if (!placed.empty()) look(placed.size() - 1);
    seen_before_ += placed.size();
  }

  // Two ends that move by spans from the tail of the first handle over whole ones to the head of
  // the last. What stands there twice is in a stretch once.
  void tightest(view_id v, std::size_t begin, std::size_t last) {
    const auto& placed = heap_.views()[v].handles;
    std::size_t first = begin;
    std::uint64_t skip = ends_[placed[first].handle].bytes -
                         ends_[placed[first].handle].tail;  // so far into the first handle
    std::uint64_t run = 0;
    const auto drop_first = [&] {
      const ends& of = ends_[placed[first].handle];
      const std::uint64_t one = of.span_at(skip);
      run -= one;
      skip += one;
      if (skip == of.bytes) {
        ++first;
        skip = 0;
      }
    };
    for (std::size_t i = begin; i <= last; ++i) {
      const ends& of = ends_[placed[i].handle];
      std::size_t& seen = last_seen_[placed[i].handle];
      const std::size_t before = seen > seen_before_ + begin ? seen - seen_before_ - 1 : nowhere;
      const std::uint64_t to = i == begin || of.whole() ? of.bytes : of.head;
      for (std::uint64_t at = i == begin ? skip : 0; at < to;) {
        while (run > 0 && before != nowhere && (first < before || (first == before && skip <= at)))
          drop_first();
        const std::uint64_t one = of.span_at(at);
        run += one;
        at += one;
        while (run - ends_[placed[first].handle].span_at(skip) >= bytes_) drop_first();
        if (run < bytes_ || (best_.possible && run >= best_.bytes)) continue;
        best_.possible = true;
        best_.view = v;
        best_.at = placed[first].at + skip;
        best_.bytes = run;
      }
      if (of.whole()) seen = seen_before_ + i + 1;
    }
  }

  void sort_handles() {
    for (handle_id id = 0; id < ends_.size(); ++id) {
      const ends& of = ends_[id];
      if (of.bytes == 0) continue;
      if (of.whole()) {
        full_.push_back({of.bytes, id});
        continue;
      }
      if (of.head > 0) heads_.push_back({of.head, id});
      if (of.tail > 0) tails_.push_back({of.tail, id});
    }
    std::stable_sort(full_.begin(), full_.end(),
                     [](const sized& a, const sized& b) { return a.first > b.first; });
    std::sort(heads_.begin(), heads_.end());
    std::sort(tails_.rbegin(), tails_.rend());
  }

  // What a stitched range begins with.
  struct start {
    std::uint64_t bytes = 0;
    std::vector<handle_id> holds;  // not to be taken again
    handle_id to_map = no_handle;
    view_id view = new_view;
    std::uint64_t at = 0;  // in the view; or in the handle
  };

  // Where a view of stitched ranges ends with free spans, each once, a stitched range may go on
  // behind them.
  void go_on(view_id v) {
    const auto& placed = heap_.views()[v].handles;
    start from;
    from.view = v;
    std::uint64_t end = heap_.views()[v].end;
    for (std::size_t i = placed.size(); i > 0; --i) {
      const auto& [at, id] = placed[i - 1];
      const ends& of = ends_[id];
      if (at + of.bytes != end || of.tail == 0 ||
          std::find(from.holds.begin(), from.holds.end(), id) != from.holds.end())
        break;
      end = at;
      from.bytes += of.tail;
      from.at = at + of.bytes - of.tail;
      from.holds.push_back(id);
      if (!of.whole()) break;
    }
    if (from.bytes > 0) assemble(from);
  }

  // The start, then whole handles, then the free beginning of one in use; what is missing is to be
  // new, and the stitched range to be planned again over it.
  void assemble(const start& from) {
    stitch_plan c;
    std::vector<bool> taken(full_.size(), false);
    std::uint64_t have = from.bytes;  // of the run
    if (from.to_map != no_handle) c.handles.push_back(from.to_map);
    c.view = from.view;
    (from.view == new_view ? c.skip : c.at) = from.at;
    const auto held = [&](handle_id id) {
      return std::find(from.holds.begin(), from.holds.end(), id) != from.holds.end();
    };
    for (std::size_t i = 0; i < full_.size(); ++i) taken[i] = held(full_[i].second);
    while (have < bytes_) {
      const std::uint64_t need = bytes_ - have;
      // The free beginning that is just enough; else the smallest whole handle that is; else the
      // largest.
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
      if (best_.possible && best_.new_bytes == 0 && c.handles.size() >= best_.handles.size())
        return;
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
    if (from.view != new_view && !fits_behind(c)) return;
    const bool better = !best_.possible || c.new_bytes < best_.new_bytes ||
                        (c.new_bytes == best_.new_bytes && c.handles.size() < best_.handles.size());
    if (!better) return;
    c.bytes = block_bytes(c, from.view == new_view ? 0 : from.bytes);
    best_ = std::move(c);
  }

  // Whether the handles find addresses at the end of the view.
  [[nodiscard]] bool fits_behind(const stitch_plan& c) const {
    const auto& in = heap_.views()[c.view];
    std::uint64_t end = in.end;
    for (const handle_id id : c.handles) end += ends_[id].bytes;
    return end <= in.base + in.capacity;
  }

  // Whole spans from where the block begins; new memory is counted as it is asked for.
  [[nodiscard]] std::uint64_t block_bytes(const stitch_plan& c, std::uint64_t before) const {
    std::uint64_t bytes = before;
    std::uint64_t skip = c.skip;
    for (const handle_id id : c.handles) {
      if (bytes >= bytes_) break;
      bytes += std::min(ends_[id].bytes - skip, align_up_to(bytes_ - bytes, ends_[id].span));
      skip = 0;
    }
    return bytes;
  }

  const heap& heap_;
  const std::uint64_t bytes_;
  const owner_id owner_;
  std::vector<ends> ends_;  // by handle
  std::vector<std::size_t>
      last_seen_;  // by handle: its last place in a view, counted from 1 over all views
  std::size_t seen_before_ = 0;       // places in the views before the one at hand
  std::vector<sized> full_;           // wholly free, the largest first
  std::vector<sized> heads_, tails_;  // in use with a free beginning, or a free end
  stitch_plan best_;
};

}  // namespace

stitch_plan plan_stitch(const heap& of, std::uint64_t bytes, owner_id owner) noexcept {
  try {
    return planner(of, bytes, owner).best();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

}  // namespace millpond::heap
