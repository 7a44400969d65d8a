#include "heap/window.hpp"

#include <algorithm>

namespace millpond::heap {
namespace {

constexpr std::size_t tails_looked_at = 6;
// Mapping a span costs about 35 us whatever its size (H200), so a window of more than this many is no bargain.
constexpr std::size_t most_spans = 64;

struct room_list {
  std::vector<span_id> whole;                                 // largest first
  std::vector<std::pair<std::uint64_t, span_id>> heads;       // smallest first
  std::vector<std::pair<std::uint64_t, span_id>> tails;       // largest first
};

room_list rooms_of(const heap& of, owner_id owner) {
  room_list out;
  for (span_id id = 0; id < of.spans().size(); ++id) {
    if (!of.spans()[id].present) continue;
    const heap::span_room room = of.room_of(id, owner);
    if (room.whole) {
      out.whole.push_back(id);
      continue;
    }
    if (room.head > 0) out.heads.emplace_back(room.head, id);
    if (room.tail > 0) out.tails.emplace_back(room.tail, id);
  }
  // Of equal sizes the one with fewer mappings: aliases cost a little on every later allocation there.
  std::sort(out.whole.begin(), out.whole.end(), [&](span_id a, span_id b) {
    const auto& x = of.spans()[a];
    const auto& y = of.spans()[b];
    return x.bytes != y.bytes ? x.bytes > y.bytes : x.mappings.size() < y.mappings.size();
  });
  std::sort(out.heads.begin(), out.heads.end());
  std::sort(out.tails.rbegin(), out.tails.rend());
  return out;
}

}  // namespace

window_plan plan_window(const heap& of, std::uint64_t bytes, owner_id owner,
                        const std::function<std::uint64_t(std::uint64_t)>& round_new) {
  const room_list rooms = rooms_of(of, owner);
  window_plan best;

  const auto consider = [&](view_id view, std::uint64_t have, span_id first) {
    window_plan plan;
    plan.view = view;
    std::vector<bool> taken(of.spans().size(), false);
    if (view != new_view) {
      for (const heap::slot& s : of.views()[view].slots) {
        if (s.span != no_span) taken[s.span] = true;
      }
    }
    if (first != no_span) {
      plan.spans.push_back(first);
      taken[first] = true;
    }
    std::uint64_t need = bytes - std::min(bytes, have);
    while (need > 0) {
      if (plan.spans.size() > most_spans) return;
      const auto head = std::find_if(rooms.heads.begin(), rooms.heads.end(),
                                     [&](const auto& h) { return h.first >= need && !taken[h.second]; });
      if (head != rooms.heads.end()) {
        plan.spans.push_back(head->second);
        need = 0;
        break;
      }
      span_id pick = no_span;
      for (const span_id id : rooms.whole) {
        if (taken[id]) continue;
        if (pick == no_span || of.spans()[id].bytes >= need) pick = id;
        if (of.spans()[id].bytes < need) break;
      }
      if (pick == no_span) break;
      taken[pick] = true;
      plan.spans.push_back(pick);
      need -= std::min(need, of.spans()[pick].bytes);
    }
    if (need > 0) plan.new_bytes = round_new(need);
    plan.possible = true;
    std::uint64_t more = plan.new_bytes;
    for (const span_id id : plan.spans) more += of.spans()[id].bytes;
    if (view != new_view) {
      const auto& v = of.views()[view];
      if (v.end - v.base + more > v.capacity) return;
    }
    if (!best.possible || plan.new_bytes < best.new_bytes ||
        (plan.new_bytes == best.new_bytes && plan.spans.size() < best.spans.size())) {
      best = std::move(plan);
    }
  };

  for (view_id v = 0; v < of.views().size(); ++v) consider(v, of.tail_bytes(v, owner), no_span);
  for (std::size_t i = 0; i < rooms.tails.size() && i < tails_looked_at; ++i) {
    consider(new_view, rooms.tails[i].first, rooms.tails[i].second);
  }
  if (!rooms.whole.empty()) consider(new_view, 0, no_span);
  return best;
}

}  // namespace millpond::heap
