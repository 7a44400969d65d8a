#include "plan/search.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/bits.hpp"
#include "base/random.hpp"

namespace millpond::plan {

// Every size, alignment and fixed offset divided by `unit`, which divides them all.
struct search::prepared {
  std::uint64_t unit = 1;
  std::size_t count = 0;  // buffers that are live at all; the others go to 0 or their fixed offset
  index section_count = 0;
  std::vector<std::size_t> original;                  // index in the problem
  std::vector<std::uint64_t> size, alignment, fixed;  // fixed: not_fixed where it is free
  std::vector<section_range> hull;
  std::vector<section_range> ranges;
  std::vector<index> range_start;
  std::vector<index>
      twin;      // the lowest index with the same lifetime and size, and no other difference
  offsets base;  // by problem index: where buffers that are never live are
  static constexpr std::uint64_t not_fixed = ~std::uint64_t{0};
};

namespace {

std::uint64_t common_unit(const problem& of) {
  std::uint64_t unit = 0;
  for (const buffer& b : of.buffers) {
    unit = std::gcd(unit, b.size);
    if (b.fixed) unit = std::gcd(unit, *b.fixed);
  }
  // An alignment that divides the unit is always met; another one joins it, which may break others'
  // luck.
  for (bool changed = true; changed;) {
    changed = false;
    for (const buffer& b : of.buffers) {
      if (unit == 0 || unit % b.alignment == 0 || b.alignment % unit == 0) continue;
      unit = std::gcd(unit, b.alignment);
      changed = true;
    }
  }
  return std::max<std::uint64_t>(unit, 1);
}

// Orders of the candidates in a section, and how the section is chosen: every pair is tried in
// turn.
enum class value_order { area, length, size, size_by_root_length };
enum class section_choice { fewest, fewest_by_failures, fewest_by_slack };
constexpr std::uint64_t portfolio = 12;

template <class Size>
class runner {
 public:
  template <class Prepared>
  runner(const Prepared& of, std::uint64_t capacity, std::uint64_t number, std::uint64_t seed,
         std::uint64_t node_limit, const std::function<bool()>& stop)
      : count_(of.count),
        capacity_(static_cast<Size>(
            std::min<std::uint64_t>(capacity / of.unit, std::numeric_limits<Size>::max() / 4))),
        node_limit_(node_limit),
        stop_(stop),
        hull_(of.hull),
        ranges_(of.ranges),
        range_start_(of.range_start),
        twin_(of.twin) {
    random any(seed * 0x9e3779b97f4a7c15ULL + number);
    for (std::size_t i = 0; i < count_; ++i) {
      size_.push_back(static_cast<Size>(of.size[i]));
      alignment_.push_back(static_cast<Size>(of.alignment[i]));
      fixed_.push_back(of.fixed[i] == Prepared::not_fixed ? Size{-1}
                                                          : static_cast<Size>(of.fixed[i]));
      key_.push_back(any.next() | 1);
    }
    all_single_ = ranges_.size() == count_;
    set_orders(number, any);
    for (auto* by_section : {&ends_, &floor_, &at_floor_, &level_, &to_come_})
      by_section->resize(of.section_count);
    failures_.assign(of.section_count, 1);
    crossing_.assign(of.section_count + 1, 0);
    at_.assign(count_, 0);
    const std::uint64_t wanted = std::clamp<std::uint64_t>(node_limit_ * 2, 1024, 1 << 21);
    failed_states_.assign(std::bit_ceil(wanted), 0);
  }

  search_status run() {
    for (std::size_t b = 0; b < count_; ++b) {
      const Size lowest = fixed_[b] >= 0 ? fixed_[b] : 0;
      stack_.push_back({lowest, static_cast<index>(b), false});
      add_to_come(static_cast<index>(b), size_[b]);
      for (index k = hull_[b].first + 1; k < hull_[b].last; ++k) ++crossing_[k];
    }
    std::stable_sort(stack_.begin(), stack_.end(),
                     [](const entry& a, const entry& b) { return a.lowest < b.lowest; });
    const section_range all{0, static_cast<index>(floor_.size())};
    const bool found = split_and_solve(0, stack_.size(), all);
    if (found) return search_status::found;
    return aborted_ ? search_status::limit : search_status::exhausted;
  }

  [[nodiscard]] std::uint64_t nodes() const { return nodes_; }
  [[nodiscard]] std::uint64_t offset(std::size_t b) const {
    return static_cast<std::uint64_t>(at_[b]);
  }

 private:
  struct entry {
    Size lowest;  // no floor under the buffer is above it; aligned
    index buffer;
    bool level;  // every floor under it equals `lowest`: it can be placed now
  };
  struct part {
    section_range range;
    std::size_t begin;
    std::size_t end;
    Size slack;
  };

  void set_orders(std::uint64_t number, random& any) {
    const auto order = static_cast<value_order>(number % 4);
    choice_ = static_cast<section_choice>(number / 4 % 3);
    const double noise = number < portfolio ? 0 : 0.6;
    for (std::size_t i = 0; i < count_; ++i) {
      double length = 0;
      for (index r = range_start_[i]; r < range_start_[i + 1]; ++r)
        length += ranges_[r].last - ranges_[r].first;
      const auto size = static_cast<double>(size_[i]);
      double first = size;
      switch (order) {
        case value_order::area: first = size * length; break;
        case value_order::length: first = length; break;
        case value_order::size: break;
        case value_order::size_by_root_length: first = size * std::sqrt(length); break;
      }
      first_.push_back(first * (1 + (any.unit() - 0.5) * noise));
    }
  }

  [[nodiscard]] bool overlap(index a, index b) const {
    if (hull_[a].first >= hull_[b].last || hull_[b].first >= hull_[a].last) return false;
    if (all_single_) return true;
    for (index x = range_start_[a]; x < range_start_[a + 1]; ++x)
      for (index y = range_start_[b]; y < range_start_[b + 1]; ++y)
        if (ranges_[x].first < ranges_[y].last && ranges_[y].first < ranges_[x].last) return true;
    return false;
  }
  [[nodiscard]] bool live(index b, index section) const {
    if (section < hull_[b].first || section >= hull_[b].last) return false;
    if (all_single_) return true;
    for (index r = range_start_[b]; r < range_start_[b + 1]; ++r)
      if (section >= ranges_[r].first && section < ranges_[r].last) return true;
    return false;
  }
  [[nodiscard]] Size align(index b, Size value) const {
    return next_multiple(value, alignment_[b]);
  }

  void add_to_come(index b, Size size) {
    for (index r = range_start_[b]; r < range_start_[b + 1]; ++r)
      for (index s = ranges_[r].first; s < ranges_[r].last; ++s) to_come_[s] += size;
  }

  // Bytes that may stay empty on the section's floor. More than the capacity leaves above `ends_`:
  // where a buffer to come starts above the others' tops, what is wasted below it costs nothing.
  [[nodiscard]] Size spare(index section) const {
    return static_cast<Size>(capacity_ - floor_[section] - to_come_[section]);
  }

  // For each section of the range: where the buffers to come end at least, its floor, and how many
  // of them may start there. False, and the section counted, where one ends past the capacity.
  bool measure(std::size_t begin, std::size_t end, section_range in) {
    std::fill(ends_.begin() + in.first, ends_.begin() + in.last, Size{-1});
    std::fill(floor_.begin() + in.first, floor_.begin() + in.last,
              std::numeric_limits<Size>::max());
    std::fill(at_floor_.begin() + in.first, at_floor_.begin() + in.last, Size{0});
    Size* const ends = ends_.data();
    Size* const floors = floor_.data();
    Size* const at_floor = at_floor_.data();
    for (std::size_t e = begin; e < end; ++e) {
      const Size lowest = stack_[e].lowest;
      const index b = stack_[e].buffer;
      const Size size = size_[b];
      for (index r = range_start_[b]; r < range_start_[b + 1]; ++r) {
        const index last = ranges_[r].last;
        for (index s = ranges_[r].first; s < last; ++s) {
          ends[s] = std::max(ends[s], lowest) + size;
          floors[s] = std::min(floors[s], lowest);
          at_floor[s] += floors[s] == lowest ? 1 : 0;
        }
      }
    }
    for (index s = in.first; s < in.last; ++s) {
      if (ends[s] > capacity_) {
        failures_[s] += 1;
        return false;
      }
    }
    return true;
  }

  // Marks the entries on level ground and counts them by section.
  void find_level(std::size_t begin, std::size_t end, section_range in) {
    std::fill(level_.begin() + in.first, level_.begin() + in.last, Size{0});
    for (std::size_t e = begin; e < end; ++e) {
      const Size lowest = stack_[e].lowest;
      const index b = stack_[e].buffer;
      bool level = floor_[hull_[b].first] == lowest && floor_[hull_[b].last - 1] == lowest;
      for (index r = range_start_[b]; level && r < range_start_[b + 1]; ++r)
        for (index s = ranges_[r].first; s < ranges_[r].last; ++s)
          if (floor_[s] != lowest) {
            level = false;
            break;
          }
      stack_[e].level = level;
      if (!level) continue;
      for (index r = range_start_[b]; r < range_start_[b + 1]; ++r)
        for (index s = ranges_[r].first; s < ranges_[r].last; ++s) ++level_[s];
    }
  }

  // The section to branch on; the range's end when some section has no answer at all.
  index choose(section_range in) {
    index best = in.last;
    double best_score = std::numeric_limits<double>::infinity();
    for (index s = in.first; s < in.last; ++s) {
      // Where a buffer on uneven ground could start at the floor too, its offset is not known yet.
      if (ends_[s] < 0 || at_floor_[s] != level_[s]) continue;
      const Size slack = static_cast<Size>(capacity_ - ends_[s]);
      const auto answers = static_cast<double>(level_[s]) + (spare(s) > 0 ? 1 : 0);
      double score = 0;
      if (answers > 1) {
        switch (choice_) {
          case section_choice::fewest:
            score = answers + static_cast<double>(floor_[s]) / (static_cast<double>(capacity_) + 1);
            break;
          case section_choice::fewest_by_failures: score = answers / failures_[s]; break;
          case section_choice::fewest_by_slack:
            score = answers *
                    (1 + 10 * static_cast<double>(slack) / (static_cast<double>(capacity_) + 1));
            break;
        }
      }
      if (score < best_score) {
        best_score = score;
        best = s;
      }
    }
    return best;
  }

  // The lowest offset above the floor at which a buffer could come next in the section: its lowest
  // one, or, for one that could start at the floor, on top of another that is not live here.
  Size next_offset(std::size_t begin, std::size_t end, index section) const {
    const Size floor = floor_[section];
    Size next = std::numeric_limits<Size>::max();
    for (std::size_t e = begin; e < end; ++e) {
      const index b = stack_[e].buffer;
      if (!live(b, section)) continue;
      if (stack_[e].lowest > floor) {
        next = std::min(next, stack_[e].lowest);
        break;  // the rest start higher still, and those at the floor have been seen
      }
      if (fixed_[b] >= 0) continue;
      for (std::size_t o = begin; o < end && stack_[o].lowest < next; ++o) {
        const index other = stack_[o].buffer;
        const Size top = align(b, static_cast<Size>(stack_[o].lowest + size_[other]));
        if (top < next && top > floor && overlap(b, other) && !live(other, section)) next = top;
      }
    }
    return next;
  }

  // Copies [begin, end) without `without` to the top of the stack, with every lowest offset that
  // `raises` says raised to `to`, sorted again.
  template <class Raises>
  void descend(std::size_t begin, std::size_t end, std::size_t without, Size to, Raises raises) {
    raised_.clear();
    const std::size_t start = stack_.size();
    for (std::size_t e = begin; e < end; ++e) {
      if (e == without) continue;
      entry copy = stack_[e];
      if (copy.lowest < to && raises(copy.buffer)) {
        copy.lowest = fixed_[copy.buffer] >= 0 ? std::numeric_limits<Size>::max() / 4
                                               : align(copy.buffer, to);
        raised_.push_back(copy);
      } else {
        stack_.push_back(copy);
      }
    }
    if (raised_.empty()) return;
    const auto before = [](const entry& a, const entry& b) { return a.lowest < b.lowest; };
    if (!std::is_sorted(raised_.begin(), raised_.end(), before))
      std::stable_sort(raised_.begin(), raised_.end(), before);
    // Merge from the back: the unraised ones are in place already.
    std::size_t from = stack_.size();
    stack_.resize(stack_.size() + raised_.size());
    std::size_t to_place = stack_.size();
    std::size_t left = raised_.size();
    while (left > 0) {
      if (from > start && stack_[from - 1].lowest > raised_[left - 1].lowest)
        stack_[--to_place] = stack_[--from];
      else
        stack_[--to_place] = raised_[--left];
    }
  }

  [[nodiscard]] std::uint64_t state_of(std::size_t begin, std::size_t end) const {
    std::uint64_t sum = 0;
    for (std::size_t e = begin; e < end; ++e)
      sum += key_[stack_[e].buffer] * (static_cast<std::uint64_t>(stack_[e].lowest) + 1);
    sum ^= sum >> 31;
    sum *= 0x94d049bb133111ebULL;
    sum ^= sum >> 29;
    return sum == 0 ? 1 : sum;
  }

  // Solves each independent part of [begin, end), whose hulls lie in the range. The stack is as
  // before afterwards.
  bool split_and_solve(std::size_t begin, std::size_t end, section_range in) {
    std::vector<part> parts;
    index start = in.first;
    for (index k = in.first + 1; k <= in.last; ++k) {
      if (k < in.last && crossing_[k] != 0) continue;
      parts.push_back({{start, k}, 0, 0, capacity_});
      start = k;
    }
    if (parts.size() == 1) return solve(begin, end, in);
    const std::size_t height = stack_.size();
    for (part& p : parts) {
      p.begin = stack_.size();
      for (std::size_t e = begin; e < end; ++e) {
        const section_range hull = hull_[stack_[e].buffer];
        if (hull.first >= p.range.first && hull.last <= p.range.last)
          stack_.push_back(entry(stack_[e]));
      }
      p.end = stack_.size();
      if (p.begin == p.end) continue;
      if (!measure(p.begin, p.end, p.range)) {
        stack_.resize(height);
        return false;
      }
      for (index s = p.range.first; s < p.range.last; ++s)
        if (ends_[s] >= 0) p.slack = std::min(p.slack, static_cast<Size>(capacity_ - ends_[s]));
    }
    std::stable_sort(parts.begin(), parts.end(), [](const part& a, const part& b) {
      return a.slack != b.slack ? a.slack < b.slack : a.end - a.begin < b.end - b.begin;
    });
    bool all = true;
    for (const part& p : parts)
      if (p.begin != p.end && !solve(p.begin, p.end, p.range)) {
        all = false;
        break;
      }
    stack_.resize(height);
    return all;
  }

  bool solve(std::size_t begin, std::size_t end, section_range in) {
    if (begin == end) return true;
    if (++nodes_ > node_limit_ || ((nodes_ & 255) == 0 && stop_ && stop_())) aborted_ = true;
    if (aborted_) return false;
    const std::uint64_t state = state_of(begin, end);
    std::uint64_t& remembered = failed_states_[state & (failed_states_.size() - 1)];
    if (remembered == state) return false;
    if (!measure(begin, end, in)) return false;
    find_level(begin, end, in);
    const index section = choose(in);
    if (section < in.last && branch(begin, end, in, section)) return true;
    if (!aborted_) remembered = state;
    return false;
  }

  bool branch(std::size_t begin, std::size_t end, section_range in, index section) {
    const Size floor = floor_[section];
    const Size most_waste = spare(section);
    std::vector<std::size_t> candidates;
    for (std::size_t e = begin; e < end && stack_[e].lowest <= floor; ++e)
      if (stack_[e].level && stack_[e].lowest == floor && live(stack_[e].buffer, section))
        candidates.push_back(e);
    std::sort(candidates.begin(), candidates.end(), [&](std::size_t a, std::size_t b) {
      const index x = stack_[a].buffer;
      const index y = stack_[b].buffer;
      return first_[x] != first_[y] ? first_[x] > first_[y] : x < y;
    });
    Size next = std::numeric_limits<Size>::max();
    if (most_waste > 0) next = next_offset(begin, end, section);
    const bool may_waste = next <= capacity_ && next - floor <= most_waste;
    if (candidates.empty() && !may_waste) failures_[section] += 1;
    const std::size_t height = stack_.size();
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      const index b = stack_[candidates[c]].buffer;
      const bool tried =
          std::any_of(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(c),
                      [&](std::size_t o) { return twin_[stack_[o].buffer] == twin_[b]; });
      if (tried) continue;
      at_[b] = floor;
      descend(begin, end, candidates[c], static_cast<Size>(floor + size_[b]),
              [&](index o) { return overlap(o, b); });
      add_to_come(b, static_cast<Size>(-size_[b]));
      bool falls_apart = false;
      for (index k = hull_[b].first + 1; k < hull_[b].last; ++k) falls_apart |= --crossing_[k] == 0;
      const bool found = falls_apart ? split_and_solve(height, stack_.size(), in)
                                     : solve(height, stack_.size(), in);
      for (index k = hull_[b].first + 1; k < hull_[b].last; ++k) ++crossing_[k];
      add_to_come(b, size_[b]);
      stack_.resize(height);
      if (found) return true;
      if (aborted_) return false;
    }
    if (!may_waste) return false;
    descend(begin, end, end, next, [&](index o) { return live(o, section); });
    const bool found = solve(height, stack_.size(), in);
    stack_.resize(height);
    return found;
  }

  std::size_t count_;
  Size capacity_;
  std::uint64_t node_limit_;
  const std::function<bool()>& stop_;
  const std::vector<section_range>& hull_;
  const std::vector<section_range>& ranges_;
  const std::vector<index>& range_start_;
  const std::vector<index>& twin_;
  std::vector<Size> size_, alignment_, fixed_;
  std::vector<std::uint64_t> key_;
  std::vector<double> first_;  // by buffer: larger is tried first
  section_choice choice_ = section_choice::fewest;
  bool all_single_ = true;  // no buffer has a gap
  // By section; good only between `measure` and the next descent.
  std::vector<Size> ends_, floor_, at_floor_, level_;
  std::vector<Size> to_come_;  // by section: bytes of the buffers still to be placed
  std::vector<double> failures_;
  std::vector<std::uint32_t>
      crossing_;  // by section: buffers to come that are live on both sides of its start
  std::vector<entry>
      stack_;  // the buffers to come of every level, each level sorted by lowest offset
  std::vector<entry> raised_;
  std::vector<Size> at_;
  std::vector<std::uint64_t> failed_states_;  // a lossy set: a slot keeps the last state
  std::uint64_t nodes_ = 0;
  bool aborted_ = false;
};

}  // namespace

search::search(const problem& of, const sections& in) : of_(std::make_unique<prepared>()) {
  prepared& to = *of_;
  to.unit = common_unit(of);
  to.section_count = in.count;
  to.base.assign(of.buffers.size(), 0);
  to.range_start.push_back(0);
  for (std::size_t i = 0; i < of.buffers.size(); ++i) {
    const buffer& b = of.buffers[i];
    const auto ranges = in.of(i);
    if (b.fixed) to.base[i] = *b.fixed;
    if (ranges.empty()) continue;
    to.original.push_back(i);
    to.size.push_back(b.size / to.unit);
    to.alignment.push_back(to.unit % b.alignment == 0 ? 1 : b.alignment / to.unit);
    to.fixed.push_back(b.fixed ? *b.fixed / to.unit : prepared::not_fixed);
    to.ranges.insert(to.ranges.end(), ranges.begin(), ranges.end());
    to.range_start.push_back(static_cast<index>(to.ranges.size()));
    to.hull.push_back({ranges.front().first, ranges.back().last});
  }
  to.count = to.original.size();
  std::vector<index> sorted(to.count);
  std::iota(sorted.begin(), sorted.end(), index{0});
  const auto ranges_of = [&](index i) {
    return std::span(to.ranges).subspan(to.range_start[i],
                                        to.range_start[i + 1] - to.range_start[i]);
  };
  const auto compare = [&](index a, index b) {  // -1, 0, 1; equal for twins
    if (to.size[a] != to.size[b]) return to.size[a] < to.size[b] ? -1 : 1;
    if (to.alignment[a] != to.alignment[b]) return to.alignment[a] < to.alignment[b] ? -1 : 1;
    if (to.fixed[a] != to.fixed[b]) return to.fixed[a] < to.fixed[b] ? -1 : 1;
    const auto x = ranges_of(a);
    const auto y = ranges_of(b);
    for (std::size_t r = 0; r < std::min(x.size(), y.size()); ++r) {
      if (x[r].first != y[r].first) return x[r].first < y[r].first ? -1 : 1;
      if (x[r].last != y[r].last) return x[r].last < y[r].last ? -1 : 1;
    }
    return x.size() == y.size() ? 0 : x.size() < y.size() ? -1 : 1;
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](index a, index b) { return compare(a, b) < 0; });
  to.twin.resize(to.count);
  for (std::size_t k = 0; k < sorted.size(); ++k)
    to.twin[sorted[k]] =
        k > 0 && compare(sorted[k - 1], sorted[k]) == 0 ? to.twin[sorted[k - 1]] : sorted[k];
}

search::~search() = default;
search::search(search&&) noexcept = default;

std::uint64_t search::unit() const {
  return of_->unit;
}

search_run search::run(std::uint64_t capacity, std::uint64_t number, std::uint64_t seed,
                       std::uint64_t node_limit, const std::function<bool()>& stop) const {
  const auto finish = [&](auto runs) {
    search_run out;
    out.status = runs.run();
    out.nodes = runs.nodes();
    if (out.status == search_status::found) {
      out.at = of_->base;
      for (std::size_t i = 0; i < of_->count; ++i)
        out.at[of_->original[i]] = runs.offset(i) * of_->unit;
    }
    return out;
  };
  // A quarter of the type's range leaves room for a sum of one offset, one size and an alignment.
  std::uint64_t largest_number = capacity / of_->unit;
  for (std::size_t i = 0; i < of_->count; ++i)
    largest_number = std::max({largest_number, of_->size[i], of_->alignment[i]});
  if (largest_number < (std::uint64_t{1} << 28))
    return finish(runner<std::int32_t>(*of_, capacity, number, seed, node_limit, stop));
  return finish(runner<std::int64_t>(*of_, capacity, number, seed, node_limit, stop));
}

}  // namespace millpond::plan
