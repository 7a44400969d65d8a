#include "plan/improve.hpp"

#include <fmt/format.h>
#include <algorithm>

#include "base/random.hpp"

namespace millpond::plan {
namespace {

// Turns a start takes before the next start has one, and turns without gain before it shakes its
// order.
constexpr int turns_in_a_row = 8;
constexpr int turns_without_gain = 24;
// Starts whose best is further than this part above the best of all are left alone: they seldom
// catch up.
constexpr std::uint64_t part_behind = 32;
// Best fit looks at every hole: past this many buffers an order takes seconds to minutes, first fit
// under one.
constexpr std::size_t most_for_best_fit = 30'000;

}  // namespace

struct improver::start {
  order_key key;
  fit how;
  random any{0};
  std::vector<index> order;  // to place next; empty: not begun
  std::vector<index> best_order;
  std::uint64_t best_peak = UINT64_MAX;
  int without_gain = 0;
};

improver::improver(const problem& of, const sections& in, std::uint64_t seed)
    : of_(of), in_(in), seed_(seed), taken_(in.count) {
  if (of.buffers.size() > most_for_best_fit)
    for (const order_key key : large_order_keys)
      starts_.push_back({key, fit::first, random(seed_ * 64 + 63), {}, {}, UINT64_MAX, 0});
  for (const fit how : {fit::first, fit::best}) {
    if (how == fit::best && of.buffers.size() > most_for_best_fit) break;
    for (const order_key key : all_order_keys) {
      start s{key, how, random(seed_ * 64 + starts_.size()), {}, {}, UINT64_MAX, 0};
      starts_.push_back(std::move(s));
    }
  }
}

improver::~improver() = default;

void improver::reorder(start& of, const placement& last) {
  // Those that end at the peak squeak; now and then all that end in its last hundredth do.
  const std::uint64_t margin = of.any.chance(0.3) ? last.peak / 100 : 0;
  const bool to_front = of.any.chance(0.5);
  std::vector<std::pair<double, index>> ranked;
  ranked.reserve(of.order.size());
  for (std::size_t k = 0; k < of.order.size(); ++k) {
    const index i = of.order[k];
    auto rank = static_cast<double>(k);
    if (of_.buffers[i].fixed)
      rank = -1;
    else if (last.at[i] + of_.buffers[i].size + margin >= last.peak)
      rank = to_front ? -0.5 : rank * of.any.unit();
    ranked.emplace_back(rank, i);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t k = 0; k < ranked.size(); ++k) of.order[k] = ranked[k].second;
}

void improver::turn(start& of, const improve_limits& limits, const found& better) {
  if (of.order.empty()) of.order = make_order(of_, in_, of.key);
  const place_limits within{
      best_peak_ < size_limit ? best_peak_ + best_peak_ / part_behind : UINT64_MAX, limits.stop};
  const placement now = place_in_order(of_, in_, of.order, of.how, taken_, within);
  if (now.peak == UINT64_MAX) {
    // Too far behind, or stopped. A start that never did better is given up for now.
    if (!of.best_order.empty()) of.order = of.best_order;
    ++of.without_gain;
    return;
  }
  if (now.peak < best_peak_) {
    best_peak_ = now.peak;
    better(now, fmt::format("{} fit by {}{}", of.how == fit::first ? "first" : "best",
                            to_string(of.key), of.best_order.empty() ? "" : ", improved"));
    if (best_peak_ <= limits.target) return;
  }
  if (now.peak < of.best_peak) {
    of.best_peak = now.peak;
    of.best_order = of.order;
    of.without_gain = 0;
  } else if (++of.without_gain >= turns_without_gain) {
    // Back to the best order, with some buffers moved to where they never were.
    of.without_gain = 0;
    of.order = of.best_order;
    for (std::uint64_t moves = of.any.between(1, 1 + of.order.size() / 64); moves > 0; --moves) {
      const std::uint64_t a = of.any.below(of.order.size());
      const std::uint64_t b = of.any.below(of.order.size());
      if (!of_.buffers[of.order[a]].fixed && !of_.buffers[of.order[b]].fixed)
        std::swap(of.order[a], of.order[b]);
    }
    return;
  }
  reorder(of, now);
}

std::uint64_t improver::run(const improve_limits& limits, const found& better) {
  std::uint64_t placed = 0;
  const auto over = [&] {
    return best_peak_ <= limits.target || placed >= limits.placements ||
           (limits.stop && limits.stop());
  };
  if (of_.buffers.empty()) return 0;
  while (!over()) {
    // Every start once first; then those not far behind in turn.
    start& s = starts_[next_start_++ % starts_.size()];
    const bool begun = !s.order.empty();
    if (begun && (s.best_order.empty() || s.best_peak > best_peak_ + best_peak_ / part_behind))
      continue;
    for (int k = 0; k < (begun ? turns_in_a_row : 1) && !over(); ++k) {
      turn(s, limits, better);
      placed += of_.buffers.size();
    }
  }
  return placed;
}

}  // namespace millpond::plan
