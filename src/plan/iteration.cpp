#include "plan/iteration.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

#include "plan/bound.hpp"

namespace millpond::plan {
namespace {

constexpr std::size_t run_length = 6;  // events in a row that are compared as one
constexpr std::size_t anchor_length =
    16;  // a recurring run of this length may be where iterations are cut
constexpr std::size_t most_families_compared = 32;
constexpr double part_of_main_family = 0.1;  // of the trace's events, to start iterations
constexpr double nearly_as_good = 0.95;

// Longer than this part of the trace is persistent. 1: only what is never freed.
constexpr double persistent_parts[] = {1.0, 0.5, 0.25, 0.1, 0.05, 0.02};

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = (a ^ (b + 0x9e3779b97f4a7c15ULL + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9ULL;
  return z ^ (z >> 29);
}

// One allocation or free, in the order of the trace.
struct moment {
  std::uint64_t event;
  std::uint32_t block;
  bool allocates;
  std::uint64_t word;  // what happens, whatever the size: the age in allocations of what is freed
};

struct stretch {
  std::size_t first;  // moments [first, last)
  std::size_t last;
  std::size_t family = 0;
};

struct division {
  std::vector<stretch> iterations;
  std::vector<bool> persistent;
  std::uint64_t planned_bytes = 0;
};

class finder {
 public:
  finder(const trace::lifetimes& of, const iteration_options& options)
      : of_(of), options_(options) {
    for (std::size_t b = 0; b < of.blocks.size(); ++b) {
      const trace::block& block = of.blocks[b];
      moments_.push_back({block.allocate_event, static_cast<std::uint32_t>(b), true, 0});
      if (block.free_event != trace::never)
        moments_.push_back({block.free_event, static_cast<std::uint32_t>(b), false, 0});
    }
    std::sort(moments_.begin(), moments_.end(), [](const moment& a, const moment& b) {
      return a.event != b.event ? a.event < b.event : a.block < b.block;
    });
    std::uint64_t allocated = 0;
    from_.resize(of.blocks.size());
    to_.assign(of.blocks.size(), moments_.size());
    std::vector<std::uint64_t> number(of.blocks.size());
    for (std::size_t m = 0; m < moments_.size(); ++m) {
      moment& at = moments_[m];
      const trace::block& block = of.blocks[at.block];
      if (at.allocates) {
        from_[at.block] = m;
        number[at.block] = allocated++;
        at.word = mix(1, static_cast<std::uint64_t>(block.of));
      } else {
        to_[at.block] = m;
        at.word = mix(2, allocated - number[at.block]);
      }
    }
  }

  division best() {
    std::vector<division> all;
    for (const double part : persistent_parts) {
      division d;
      d.persistent = longer_than(part);
      const std::vector<std::size_t> cuts = quiet_cuts(d.persistent);
      finish(d, cuts);
      all.push_back(std::move(d));
    }
    std::uint64_t most = 0;
    for (const division& d : all) most = std::max(most, d.planned_bytes);
    // Quiet cuts leave nothing between iterations; anchors are for programs that never fall quiet.
    const auto total = static_cast<double>(of_.allocated_bytes);
    if (static_cast<double>(most) < total / 2) {
      for (const std::vector<std::size_t>& cuts : anchor_cuts()) {
        division d;
        d.persistent = longer_than(1.0);
        finish(d, cuts);
        // What lives through a whole iteration belongs to none.
        for (std::size_t b = 0; b < of_.blocks.size(); ++b)
          if (!d.persistent[b] && crosses(cuts, b) > 1) d.persistent[b] = true;
        most = std::max(most, d.planned_bytes);
        all.push_back(std::move(d));
      }
    }
    const division* best = &all.front();
    const auto good = [&](const division& d) {
      return static_cast<double>(d.planned_bytes) >= nearly_as_good * static_cast<double>(most) &&
             d.planned_bytes > 0;
    };
    for (const division& d : all) {
      if (!good(d)) continue;
      if (!good(*best) || d.iterations.size() > best->iterations.size()) best = &d;
    }
    return *best;
  }

  [[nodiscard]] std::size_t from(std::size_t block) const { return from_[block]; }
  [[nodiscard]] std::size_t to(std::size_t block) const { return to_[block]; }
  [[nodiscard]] const std::vector<moment>& moments() const { return moments_; }

  // Allocated and freed inside, and reusable in the order of its own stream.
  [[nodiscard]] bool inside(const stretch& of, std::size_t block) const {
    const trace::block& b = of_.blocks[block];
    return from_[block] >= of.first && to_[block] < of.last && b.free_stream == b.stream &&
           b.streams_count == 0 && !b.deferred && b.bytes > 0;
  }

 private:
  [[nodiscard]] std::vector<bool> longer_than(double part) const {
    std::vector<bool> out(of_.blocks.size());
    const double most = part * static_cast<double>(moments_.size());
    for (std::size_t b = 0; b < out.size(); ++b)
      out[b] = to_[b] == moments_.size() || static_cast<double>(to_[b] - from_[b]) > most;
    return out;
  }

  // Places at which every block that is not persistent is dead; the first is 0, the last the end.
  [[nodiscard]] std::vector<std::size_t> quiet_cuts(const std::vector<bool>& persistent) const {
    std::vector<std::size_t> cuts{0};
    std::size_t live = 0;
    for (std::size_t m = 0; m < moments_.size(); ++m) {
      const moment& at = moments_[m];
      if (!persistent[at.block]) live += at.allocates ? 1 : std::size_t(-1);
      // A cut in the middle of a run of allocations of persistent blocks says nothing: only after a
      // free.
      if (live == 0 && !at.allocates && !persistent[at.block]) cuts.push_back(m + 1);
    }
    if (cuts.back() != moments_.size()) cuts.push_back(moments_.size());
    return cuts;
  }

  // For each number of returns, the first run of events that returns so often, evenly enough.
  [[nodiscard]] std::vector<std::vector<std::size_t>> anchor_cuts() const {
    std::vector<std::vector<std::size_t>> out;
    if (moments_.size() < 4 * anchor_length) return out;
    std::unordered_map<std::uint64_t, std::vector<std::size_t>> places;
    for (std::size_t m = 0; m + anchor_length <= moments_.size(); ++m) {
      std::uint64_t run = 0;
      for (std::size_t k = 0; k < anchor_length; ++k) run = mix(run, moments_[m + k].word);
      places[run].push_back(m);
    }
    std::map<std::size_t, const std::vector<std::size_t>*> first_of_count;
    for (const auto& [run, at] : places) {
      if (at.size() < options_.fewest_repeats || at.size() > moments_.size() / anchor_length)
        continue;
      const auto*& first = first_of_count[at.size()];
      if (first == nullptr || at.front() < first->front()) first = &at;
    }
    for (const auto& [count, at] : first_of_count) {
      const std::size_t mean = (at->back() - at->front()) / (count - 1);
      std::size_t even = 0;
      for (std::size_t k = 1; k < at->size(); ++k) {
        const std::size_t step = (*at)[k] - (*at)[k - 1];
        even += step * 2 >= mean && step <= mean * 2 ? 1 : 0;
      }
      if (even * 10 < (count - 1) * 8) continue;
      std::vector<std::size_t> cuts{0};
      for (const std::size_t m : *at)
        if (m > cuts.back()) cuts.push_back(m);
      cuts.push_back(moments_.size());
      out.push_back(std::move(cuts));
    }
    return out;
  }

  [[nodiscard]] std::size_t crosses(const std::vector<std::size_t>& cuts, std::size_t block) const {
    const auto first = std::upper_bound(cuts.begin(), cuts.end(), from_[block]);
    const auto last = std::upper_bound(cuts.begin(), cuts.end(), to_[block]);
    return static_cast<std::size_t>(last - first);
  }

  [[nodiscard]] std::vector<std::uint64_t> runs_of(const stretch& of) const {
    std::vector<std::uint64_t> out;
    const std::size_t length = of.last - of.first;
    for (std::size_t m = of.first; m + std::min(run_length, length) <= of.last; ++m) {
      std::uint64_t run = 0;
      for (std::size_t k = 0; k < std::min(run_length, length); ++k)
        run = mix(run, moments_[m + k].word);
      out.push_back(run);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  // Gives each stretch its family, and returns how many there are.
  std::size_t find_families(std::vector<stretch>& of) const {
    std::vector<std::size_t> longest_first(of.size());
    std::iota(longest_first.begin(), longest_first.end(), std::size_t{0});
    std::stable_sort(longest_first.begin(), longest_first.end(), [&](std::size_t a, std::size_t b) {
      return of[a].last - of[a].first > of[b].last - of[b].first;
    });
    struct leader {
      std::vector<std::uint64_t> runs;
      std::size_t family;
    };
    std::vector<leader> leaders;
    std::unordered_map<std::uint64_t, std::size_t>
        exact;  // short stretches, and what comes when the leaders are full
    std::size_t families = 0;
    for (const std::size_t s : longest_first) {
      std::vector<std::uint64_t> runs = runs_of(of[s]);
      const bool is_short = of[s].last - of[s].first < run_length;
      const auto alike = [&](const leader& l) {
        std::vector<std::uint64_t> common;
        std::set_intersection(runs.begin(), runs.end(), l.runs.begin(), l.runs.end(),
                              std::back_inserter(common));
        const auto fewest = static_cast<double>(std::min(runs.size(), l.runs.size()));
        return static_cast<double>(common.size()) >= options_.alike * fewest;
      };
      const auto found =
          is_short ? leaders.end() : std::find_if(leaders.begin(), leaders.end(), alike);
      if (found != leaders.end()) {
        of[s].family = found->family;
      } else if (!is_short && leaders.size() < most_families_compared) {
        of[s].family = families;
        leaders.push_back({std::move(runs), families++});
      } else {
        std::uint64_t whole = of[s].last - of[s].first;
        for (const std::uint64_t run : runs) whole = mix(whole, run);
        const auto [at, fresh] = exact.emplace(whole, families);
        families += fresh ? 1 : 0;
        of[s].family = at->second;
      }
    }
    return families;
  }

  void finish(division& d, const std::vector<std::size_t>& cuts) const {
    std::vector<stretch> stretches;
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c)
      stretches.push_back({cuts[c], cuts[c + 1], 0});
    std::vector<std::uint64_t> members(find_families(stretches), 0);
    std::vector<std::size_t> events(members.size(), 0);
    for (const stretch& s : stretches) {
      ++members[s.family];
      events[s.family] += s.last - s.first;
    }
    const auto main = [&](const stretch& s) {
      return members[s.family] >= options_.fewest_repeats && s.last - s.first > 1 &&
             static_cast<double>(events[s.family]) >=
                 part_of_main_family * static_cast<double>(moments_.size());
    };
    for (const stretch& s : stretches) {
      if (main(s))
        d.iterations.push_back(s);
      else if (!d.iterations.empty())
        d.iterations.back().last = s.last;
    }
    // The last one ends with its own stretch: the program's end is no part of it.
    if (!d.iterations.empty())
      for (const stretch& s : stretches)
        if (s.first == d.iterations.back().first) d.iterations.back().last = s.last;
    std::size_t k = 0;
    for (std::size_t m = 0; m < moments_.size(); ++m) {
      while (k < d.iterations.size() && m >= d.iterations[k].last) ++k;
      if (k == d.iterations.size()) break;
      const std::size_t b = moments_[m].block;
      if (moments_[m].allocates && !d.persistent[b] && inside(d.iterations[k], b))
        d.planned_bytes += of_.blocks[b].bytes;
    }
  }

  const trace::lifetimes& of_;
  const iteration_options& options_;
  std::vector<moment> moments_;
  std::vector<std::size_t> from_,
      to_;  // by block: its moments; to_ is the end when it is never freed
};

// The planning problem of the blocks of one group in one iteration.
class shape_builder {
 public:
  void allocate(std::uint32_t block, std::uint64_t bytes) {
    open_.emplace(block, instance_.buffers.size());
    buffer b;
    b.id = std::to_string(instance_.buffers.size());
    b.lower = time_++;
    b.size = bytes;
    instance_.buffers.push_back(std::move(b));
  }
  void free(std::uint32_t block) {
    instance_.buffers[open_.at(block)].upper = time_++;
    open_.erase(block);
  }
  problem take() { return std::move(instance_); }

 private:
  problem instance_;
  std::unordered_map<std::uint32_t, std::size_t> open_;
  std::int64_t time_ = 0;
};

std::uint64_t hash_of(const problem& of) {
  std::uint64_t sum = of.buffers.size();
  for (const buffer& b : of.buffers)
    sum = mix(mix(sum, b.size), static_cast<std::uint64_t>(b.lower * 0x10001 + b.upper));
  return sum;
}

bool same(const problem& a, const problem& b) {
  return std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    [](const buffer& x, const buffer& y) {
                      return x.size == y.size && x.lower == y.lower && x.upper == y.upper;
                    });
}

}  // namespace

const char* to_string(block_fate fate) noexcept {
  switch (fate) {
    case block_fate::planned: return "planned";
    case block_fate::persistent: return "persistent";
    case block_fate::dynamic: return "dynamic";
  }
  return "unknown";
}

iterations find_iterations(const trace::lifetimes& of, const iteration_options& options) {
  iterations out;
  out.fates.assign(of.blocks.size(), block_fate::dynamic);
  finder in(of, options);
  const division best = in.best();
  for (std::size_t b = 0; b < of.blocks.size(); ++b)
    if (best.persistent[b]) out.fates[b] = block_fate::persistent;

  std::map<stream_group, std::size_t> group_numbers;
  std::unordered_multimap<std::uint64_t, std::size_t> known;
  for (const stretch& s : best.iterations) {
    iteration next;
    next.first_event = in.moments()[s.first].event;
    next.last_event = in.moments()[s.last - 1].event + 1;
    std::map<stream_group, shape_builder> building;
    for (std::size_t m = s.first; m < s.last; ++m) {
      const moment& at = in.moments()[m];
      const trace::block& b = of.blocks[at.block];
      if (best.persistent[at.block] || !in.inside(s, at.block)) continue;
      shape_builder& here = building[stream_group{b.device, b.of, b.stream}];
      if (at.allocates) {
        here.allocate(at.block, b.bytes);
        out.fates[at.block] = block_fate::planned;
      } else {
        here.free(at.block);
      }
    }
    for (auto& [where, builder] : building) {
      const std::size_t number = group_numbers.emplace(where, out.groups.size()).first->second;
      if (number == out.groups.size()) out.groups.push_back(where);
      problem instance = builder.take();
      const std::uint64_t hash = hash_of(instance);
      std::size_t shape_number = out.shapes.size();
      const auto [first, last] = known.equal_range(hash);
      for (auto k = first; k != last; ++k)
        if (same(out.shapes[k->second].instance, instance)) shape_number = k->second;
      if (shape_number == out.shapes.size()) {
        known.emplace(hash, shape_number);
        out.shapes.push_back({std::move(instance), 0});
      }
      ++out.shapes[shape_number].uses;
      next.parts.push_back({number, shape_number});
    }
    out.found.push_back(std::move(next));
  }

  std::uint64_t live[fate_count] = {};
  for (const moment& at : in.moments()) {
    const auto fate = static_cast<std::size_t>(out.fates[at.block]);
    const std::uint64_t bytes = of.blocks[at.block].bytes;
    if (at.allocates) {
      ++out.totals[fate].blocks;
      out.totals[fate].bytes += bytes;
      live[fate] += bytes;
      out.totals[fate].peak_live_bytes = std::max(out.totals[fate].peak_live_bytes, live[fate]);
    } else {
      live[fate] -= bytes;
    }
  }
  return out;
}

result<iteration_plan> plan_iterations(const iterations& of, const solve_options& options) {
  iteration_plan out;
  out.shapes.resize(of.shapes.size());
  out.arenas.resize(of.groups.size());
  std::vector<std::uint64_t> bound(of.shapes.size());
  for (std::size_t s = 0; s < of.shapes.size(); ++s) {
    const auto peak = peak_load(of.shapes[s].instance);
    if (!peak) return peak.error();
    bound[s] = peak->bytes;
  }
  for (const iteration& i : of.found)
    for (const iteration::use& part : i.parts)
      out.arenas[part.group].lower_bound =
          std::max(out.arenas[part.group].lower_bound, bound[part.shape]);
  // What a shape may take without any group growing past its bound.
  std::vector<std::uint64_t> room(of.shapes.size(), UINT64_MAX);
  for (const iteration& i : of.found)
    for (const iteration::use& part : i.parts)
      room[part.shape] = std::min(room[part.shape], out.arenas[part.group].lower_bound);
  std::vector<std::size_t> largest_first(of.shapes.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](std::size_t a, std::size_t b) { return bound[a] > bound[b]; });
  for (const std::size_t s : largest_first) {
    problem instance = of.shapes[s].instance;
    instance.capacity = room[s];
    solve_options one = options;
    one.progress = {};
    auto solved = solve(instance, one);
    if (!solved) return solved.error();
    out.shapes[s] = std::move(*solved);
  }
  for (const iteration& i : of.found)
    for (const iteration::use& part : i.parts)
      out.arenas[part.group].planned_bytes =
          std::max(out.arenas[part.group].planned_bytes, out.shapes[part.shape].peak);
  for (const stream_arena& a : out.arenas) {
    out.planned_bytes += a.planned_bytes;
    out.lower_bound += a.lower_bound;
  }
  return out;
}

}  // namespace millpond::plan
