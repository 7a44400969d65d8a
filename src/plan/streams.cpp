#include "plan/streams.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.hpp"
#include "base/random.hpp"

namespace millpond::plan {
namespace {

constexpr std::size_t exact_up_to = 8;  // buffers: 40,320 orders

// For the waits of each stream in order of their step: what is known done of every other stream
// from that step on. A clock entry is one past the last step that is done.
class clocks {
 public:
  using clock = std::map<std::uint32_t, std::uint64_t>;

  static result<clocks> make(const stream_problem& of) {
    clocks out;
    std::vector<stream_wait> waits = of.waits;
    std::stable_sort(waits.begin(), waits.end(),
                     [](const stream_wait& a, const stream_wait& b) { return a.step < b.step; });
    std::map<std::uint32_t, std::vector<stream_wait>> pending;  // by stream, by step
    for (const stream_wait& w : waits) pending[w.stream].push_back(w);
    std::map<std::uint32_t, std::size_t> taken;
    // A wait can be taken when the waits that its target comes after have been.
    for (std::size_t left = waits.size(); left > 0;) {
      bool moved = false;
      for (auto& [stream, list] : pending) {
        for (std::size_t& at = taken[stream]; at < list.size(); ++at, --left, moved = true) {
          const stream_wait& w = list[at];
          const auto target = pending.find(w.for_stream);
          const std::size_t ready = taken[w.for_stream];
          if (target != pending.end() && ready < target->second.size() &&
              target->second[ready].step <= w.for_step)
            break;
          out.join(w);
        }
      }
      if (!moved)
        return error{error_code::bad_input, "the waits form a circle: no execution can pass them"};
    }
    return out;
  }

  // Is step `done` of `stream` complete before step `at` of `on` starts, in every execution?
  [[nodiscard]] bool before(std::uint32_t stream, std::uint64_t done, std::uint32_t on,
                            std::uint64_t at) const {
    if (stream == on) return done < at;
    const clock* known = find(on, at);
    if (known == nullptr) return false;
    const auto entry = known->find(stream);
    return entry != known->end() && entry->second > done;
  }

 private:
  struct point {
    std::uint64_t step;
    clock known;
  };
  [[nodiscard]] const clock* find(std::uint32_t stream, std::uint64_t step) const {
    const auto points = by_stream_.find(stream);
    if (points == by_stream_.end()) return nullptr;
    const auto after = std::upper_bound(points->second.begin(), points->second.end(), step,
                                        [](std::uint64_t s, const point& p) { return s < p.step; });
    return after == points->second.begin() ? nullptr : &std::prev(after)->known;
  }
  void join(const stream_wait& w) {
    clock next;
    if (const clock* own = find(w.stream, w.step)) next = *own;
    if (const clock* other = find(w.for_stream, w.for_step))
      for (const auto& [stream, step] : *other) next[stream] = std::max(next[stream], step);
    next[w.for_stream] = std::max(next[w.for_stream], w.for_step + 1);
    by_stream_[w.stream].push_back({w.step, std::move(next)});
  }

  std::map<std::uint32_t, std::vector<point>> by_stream_;
};

bool precedes(const clocks& in, const stream_buffer& a, const stream_buffer& b) {
  for (const stream_use& x : a.uses)
    for (const stream_use& y : b.uses)
      if (!in.before(x.stream, x.last, y.stream, y.first)) return false;
  return true;
}

result<void> check(const stream_problem& of) {
  for (const stream_buffer& b : of.buffers) {
    const auto broken = [&](const char* why) {
      return error{error_code::bad_input, fmt::format("buffer {}: {}", b.id, why)};
    };
    if (b.size == 0 || b.size >= size_limit) return broken("the size is not 1 to 2^63 - 1");
    if (b.alignment == 0 || b.alignment >= size_limit)
      return broken("the alignment is not 1 to 2^63 - 1");
    if (b.uses.empty()) return broken("it has no use");
    for (const stream_use& u : b.uses)
      if (u.last < u.first) return broken("a use ends before it starts");
  }
  return {};
}

using graph = std::vector<std::vector<std::uint32_t>>;

// The heaviest clique of a greedy search from each buffer: heavier neighbours first.
std::uint64_t clique_bound(const stream_problem& of, const graph& conflicts) {
  std::uint64_t best = 0;
  for (std::uint32_t start = 0; start < conflicts.size(); ++start) {
    std::vector<std::uint32_t> open = conflicts[start];
    std::uint64_t weight = of.buffers[start].size;
    while (!open.empty()) {
      const auto heaviest =
          *std::max_element(open.begin(), open.end(), [&](std::uint32_t a, std::uint32_t b) {
            return of.buffers[a].size != of.buffers[b].size
                       ? of.buffers[a].size < of.buffers[b].size
                       : a > b;
          });
      weight += of.buffers[heaviest].size;
      std::vector<std::uint32_t> common;
      std::set_intersection(open.begin(), open.end(), conflicts[heaviest].begin(),
                            conflicts[heaviest].end(), std::back_inserter(common));
      open = std::move(common);
    }
    best = std::max(best, weight);
  }
  return best;
}

std::uint64_t first_fit(const stream_problem& of, const graph& conflicts,
                        const std::vector<std::uint32_t>& order, offsets& at) {
  constexpr std::uint64_t not_placed = ~std::uint64_t{0};
  at.assign(of.buffers.size(), not_placed);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  std::uint64_t peak = 0;
  for (const std::uint32_t i : order) {
    const stream_buffer& b = of.buffers[i];
    taken.clear();
    for (const std::uint32_t other : conflicts[i])
      if (at[other] != not_placed)
        taken.emplace_back(at[other], at[other] + of.buffers[other].size);
    std::sort(taken.begin(), taken.end());
    std::uint64_t place = 0;
    for (const auto& [begin, end] : taken) {
      if (place + b.size <= begin) break;
      if (end > place) place = (end + b.alignment - 1) / b.alignment * b.alignment;
    }
    at[i] = place;
    peak = std::max(peak, place + b.size);
  }
  return peak;
}

}  // namespace

result<graph> find_conflicts(const stream_problem& of) {
  if (auto good = check(of); !good) return good.error();
  const auto known = clocks::make(of);
  if (!known) return known.error();
  graph out(of.buffers.size());
  for (std::uint32_t i = 0; i < out.size(); ++i)
    for (std::uint32_t j = 0; j < i; ++j)
      if (!precedes(*known, of.buffers[i], of.buffers[j]) &&
          !precedes(*known, of.buffers[j], of.buffers[i])) {
        out[i].push_back(j);
        out[j].push_back(i);
      }
  return out;
}

namespace {

// Looks for a plan by first fit in many orders, and keeps the best.
class order_search {
 public:
  order_search(const stream_problem& of, const graph& conflicts, const solve_options& options,
               plan& best)
      : of_(of),
        conflicts_(conflicts),
        options_(options),
        out_(best),
        target_(std::max(best.lower_bound, of.capacity.value_or(0))),
        order_(of.buffers.size()),
        any_(options.seed) {
    out_.peak = UINT64_MAX;
    std::iota(order_.begin(), order_.end(), std::uint32_t{0});
  }

  // Orders by size, by size and conflicts, and as given, and then with some buffers swapped; each
  // improved by giving the topmost an earlier turn.
  void search() {
    const std::uint64_t rounds = few() ? starts : UINT64_MAX;
    for (std::uint64_t round = 0; out_.peak > target_ && round < rounds; ++round) {
      begin(round);
      improve();
      if (order_.empty() || spent()) break;
    }
    if (of_.buffers.empty()) out_.peak = 0;
  }

  // Placing in the order of a best plan's offsets, each as low as it fits, is no higher anywhere;
  // so some order of all is as good, and few buffers have few orders.
  void try_every_order() {
    if (!few() || out_.peak <= target_ || out_.stats.placements >= options_.node_limit) return;
    std::iota(order_.begin(), order_.end(), std::uint32_t{0});
    std::uint64_t best = UINT64_MAX;
    offsets at;
    do {
      best = std::min(best, place(at, "every order"));
    } while (std::next_permutation(order_.begin(), order_.end()));
    out_.lower_bound = best;  // of all plans
  }

 private:
  static constexpr std::uint64_t starts = 3;
  static constexpr int turns = 200;

  [[nodiscard]] bool few() const { return of_.buffers.size() <= exact_up_to; }
  [[nodiscard]] bool spent() const {
    return out_.stats.placements >= options_.node_limit || (options_.stop && options_.stop());
  }

  std::uint64_t place(offsets& at, const char* method) {
    const std::uint64_t peak = first_fit(of_, conflicts_, order_, at);
    out_.stats.placements += order_.size();
    if (peak < out_.peak) {
      out_.peak = peak;
      out_.offsets = at;
      out_.stats.method = method;
      if (options_.progress) options_.progress(peak, 0);
    }
    return peak;
  }

  void begin(std::uint64_t round) {
    std::sort(order_.begin(), order_.end());
    const auto key = [&](std::uint32_t i) {
      const auto size = static_cast<double>(of_.buffers[i].size);
      return round % starts == 0   ? size
             : round % starts == 1 ? size * static_cast<double>(conflicts_[i].size() + 1)
                                   : 0.0;
    };
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return key(a) > key(b); });
    if (round < starts || order_.empty()) return;
    for (std::size_t k = 0; k < 1 + order_.size() / 8; ++k) {
      const std::uint64_t a = any_.below(order_.size()), b = any_.below(order_.size());
      std::swap(order_[a], order_[b]);
    }
  }

  void improve() {
    offsets at;
    for (int turn = 0; turn < turns && out_.peak > target_; ++turn) {
      const std::uint64_t peak = place(at, "first fit on the conflict graph");
      if (spent()) break;
      std::stable_partition(order_.begin(), order_.end(),
                            [&](std::uint32_t i) { return at[i] + of_.buffers[i].size == peak; });
    }
  }

  const stream_problem& of_;
  const graph& conflicts_;
  const solve_options& options_;
  plan& out_;
  std::uint64_t target_;
  std::vector<std::uint32_t> order_;
  random any_;
};

// What became of the search, against the capacity.
void judge(const stream_problem& of, plan& out) {
  out.proved_optimal = out.peak <= out.lower_bound;
  out.what = !of.capacity || out.peak <= *of.capacity ? outcome::found : outcome::gave_up;
  if (out.what == outcome::found) return;
  if (out.lower_bound > *of.capacity) {
    out.what = outcome::impossible;
    out.reason = fmt::format(
        "no plan fits into {} bytes: every order of placing the buffers was tried; the best plan "
        "needs {}, {} more than the capacity",
        *of.capacity, out.peak, out.peak - *of.capacity);
    return;
  }
  out.reason = fmt::format(
      "no plan within {} bytes was found before the limit; the best found needs {}, the lower "
      "bound is {}",
      *of.capacity, out.peak, out.lower_bound);
}

}  // namespace

result<plan> solve_streams(const stream_problem& of, const solve_options& options) {
  const auto conflicts = find_conflicts(of);
  if (!conflicts) return conflicts.error();
  plan out;
  std::uint64_t sum = 0;
  for (const stream_buffer& b : of.buffers) {
    sum += b.size + b.alignment;
    if (sum >= size_limit)
      return error{error_code::bad_input, "the sizes sum to 2^63 bytes or more"};
  }
  out.lower_bound = clique_bound(of, *conflicts);
  if (of.capacity && out.lower_bound > *of.capacity) {
    out.what = outcome::impossible;
    out.reason = fmt::format(
        "no plan fits into {} bytes: buffers of {} bytes may all be in use at once, {} more than "
        "the capacity",
        *of.capacity, out.lower_bound, out.lower_bound - *of.capacity);
    return out;
  }
  order_search from(of, *conflicts, options, out);
  from.search();
  from.try_every_order();
  stream_problem unbounded = of;
  unbounded.capacity.reset();
  const auto checked = validate_streams(unbounded, out.offsets);
  MILLPOND_CHECK(checked && *checked == out.peak,
                 checked ? std::string("peak differs") : checked.error().message);
  judge(of, out);
  return out;
}

}  // namespace millpond::plan
