#include "plan/solve.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "plan/bound.hpp"
#include "plan/first_fit.hpp"
#include "plan/improve.hpp"
#include "plan/search.hpp"
#include "plan/sweep.hpp"
#include "plan/validate.hpp"

namespace millpond::plan {
namespace {

// Nodes of the first runs of the search, by buffer; each round of runs has this much more than the
// last.
constexpr std::uint64_t first_nodes_per_buffer = 4;
constexpr double more_each_round = 1.3;
constexpr std::uint64_t runs_in_a_round = 12;
constexpr std::uint64_t runs_between = 2;  // at each capacity between the bound and the best
// The heuristics' share of the steps, once every order was tried.
constexpr std::uint64_t placements_per_node = 4;

// Alternates between the heuristics, which are good everywhere, and the search, which is exact.
class solver {
 public:
  solver(const problem& of, const load_peak& bound, const solve_options& options)
      : of_(of), options_(options), in_(make_sections(of)), improver_(of, in_, options.seed) {
    out_.lower_bound = bound.bytes;
    if (of.buffers.size() <= search::largest) search_.emplace(of, in_);
  }

  void run() {
    // Whatever the time limit, or there would be no plan to return: an order of 200,000 buffers
    // takes a minute.
    const placement first = place_by_sweep(of_);
    offer(first.at, first.peak, "one pass over time");
    if (out_.peak <= target()) return;
    improve(1);
    improve(of_.buffers.size() * 2 * all_order_keys.size());
    double budget = static_cast<double>(first_nodes_per_buffer * of_.buffers.size());
    for (std::uint64_t round = 0; !done(); ++round, budget *= more_each_round) {
      const std::uint64_t before = out_.stats.nodes;
      if (search_) search_round(round, static_cast<std::uint64_t>(budget));
      const std::uint64_t spent = out_.stats.nodes - before;
      improve(std::max(spent / placements_per_node,
                       search_ ? 0 : of_.buffers.size() * runs_in_a_round));
    }
  }

  result<plan> finish() {
    problem unbounded = of_;
    unbounded.capacity.reset();
    const auto checked = validate(unbounded, out_.offsets);
    MILLPOND_CHECK(checked && *checked == out_.peak,
                   checked ? std::string("peak differs") : checked.error().message);
    out_.proved_optimal = out_.peak <= out_.lower_bound;
    if (!of_.capacity || out_.peak <= *of_.capacity) {
      out_.what = outcome::found;
    } else if (out_.lower_bound > *of_.capacity) {
      out_.what = outcome::impossible;
      out_.reason = fmt::format(
          "no plan fits into {} bytes: a search of every canonical plan found none ({} nodes), "
          "though the peak load is lower; the best plan found needs {}, {} more than the capacity",
          *of_.capacity, out_.stats.nodes, out_.peak, out_.peak - *of_.capacity);
    } else {
      out_.what = outcome::gave_up;
      out_.reason = fmt::format(
          "no plan within {} bytes was found before the limit; the best found needs {}, {} more. "
          "The lower bound is {}, so it is not proved that none exists",
          *of_.capacity, out_.peak, out_.peak - *of_.capacity, out_.lower_bound);
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::uint64_t target() const {
    return std::max(out_.lower_bound, of_.capacity.value_or(0));
  }
  [[nodiscard]] std::uint64_t steps() const { return out_.stats.nodes + out_.stats.placements; }
  [[nodiscard]] bool out_of_time() const {
    return steps() >= options_.node_limit || (options_.stop && options_.stop());
  }
  [[nodiscard]] bool done() const {
    return out_.peak <= target() || (of_.capacity && out_.lower_bound > *of_.capacity) ||
           out_of_time();
  }

  void offer(const offsets& at, std::uint64_t peak, const std::string& method) {
    if (!out_.offsets.empty() && peak >= out_.peak) return;
    out_.offsets = at;
    out_.peak = peak;
    out_.stats.method = method;
    if (options_.progress) options_.progress(peak, out_.stats.nodes);
  }

  void improve(std::uint64_t placements) {
    if (of_.buffers.empty()) return;
    const std::uint64_t left = options_.node_limit - std::min(options_.node_limit, steps());
    const improve_limits limits{target(), std::min(placements, left), options_.stop};
    out_.stats.placements += improver_.run(
        limits,
        [&](const placement& p, const std::string& method) { offer(p.at, p.peak, method); });
  }

  // Runs for one capacity; true if the matter is settled: found, or proved impossible.
  bool try_capacity(std::uint64_t capacity, std::uint64_t first_run, std::uint64_t runs,
                    std::uint64_t budget) {
    for (std::uint64_t k = 0; k < runs && !out_of_time(); ++k) {
      const std::uint64_t left = options_.node_limit - steps();
      search_run one = search_->run(capacity, first_run + k, options_.seed, std::min(budget, left),
                                    options_.stop);
      out_.stats.nodes += one.nodes;
      out_.stats.restarts += 1;
      if (one.status == search_status::exhausted) {
        const std::uint64_t unit = search_->unit();
        out_.lower_bound = std::max(out_.lower_bound, (capacity / unit + 1) * unit);
        return true;
      }
      if (one.status == search_status::limit) continue;
      std::uint64_t peak = 0;
      for (std::size_t i = 0; i < one.at.size(); ++i)
        peak = std::max(peak, one.at[i] + of_.buffers[i].size);
      offer(one.at, peak, "search");
      return true;
    }
    return false;
  }

  void search_round(std::uint64_t round, std::uint64_t budget) {
    const std::uint64_t first_run = round * runs_in_a_round;
    if (of_.capacity) {
      try_capacity(*of_.capacity, first_run, runs_in_a_round, budget);
      return;
    }
    // The bound itself first, since it is often reached; then half way up, and closer to the best
    // each time that fails; a success starts again from the new best. Last one step below the best.
    const std::uint64_t before = out_.stats.nodes;
    try_capacity(out_.lower_bound, first_run, runs_in_a_round, budget);
    for (std::uint64_t part = 2; !done();) {
      const std::uint64_t gap = out_.peak - out_.lower_bound;
      const std::uint64_t below = std::max<std::uint64_t>(gap / part, 1);
      const result_of_try got = try_below(below, first_run, runs_between, budget);
      if (got == result_of_try::settled) return;
      if (got == result_of_try::better) continue;
      if (part >= 512 || below <= search_->unit()) break;
      part *= 2;
    }
    descend(out_.stats.nodes - before);
  }

  // One step below the best, with short runs first again after each success: what they find is
  // found soon or seldom. As many nodes as the rest of the round had since the last success.
  void descend(std::uint64_t nodes) {
    std::uint64_t until = out_.stats.nodes + nodes;
    while (!done() && out_.stats.nodes < until) {
      const double budget = static_cast<double>(first_nodes_per_buffer * of_.buffers.size()) *
                            std::pow(more_each_round, static_cast<double>(descent_round_));
      const result_of_try got = try_below(search_->unit(), descent_round_ * runs_in_a_round,
                                          runs_in_a_round, static_cast<std::uint64_t>(budget));
      if (got == result_of_try::settled) return;
      if (got == result_of_try::nothing) {
        ++descent_round_;
        continue;
      }
      descent_round_ = 0;
      until = out_.stats.nodes + nodes;
    }
  }

  enum class result_of_try {
    better,
    settled,
    nothing
  };  // settled: proved that there is nothing there
  result_of_try try_below(std::uint64_t step, std::uint64_t first_run, std::uint64_t runs,
                          std::uint64_t budget) {
    if (step > out_.peak) return result_of_try::settled;
    const std::uint64_t best = out_.peak;
    if (!try_capacity(best - step, first_run, runs, budget)) return result_of_try::nothing;
    return out_.peak < best ? result_of_try::better : result_of_try::settled;
  }

  const problem& of_;
  const solve_options& options_;
  sections in_;
  improver improver_;
  std::optional<search> search_;
  std::uint64_t descent_round_ = 0;  // since the last success one step below the best
  plan out_;
};

}  // namespace

const char* to_string(outcome what) noexcept {
  switch (what) {
    case outcome::found: return "found";
    case outcome::impossible: return "impossible";
    case outcome::gave_up: return "gave up";
  }
  return "unknown";
}

namespace {
// Buffers that have no choice may not meet: no plan could have them.
result<void> check_fixed(const problem& of) {
  problem fixed;
  offsets at;
  for (const buffer& b : of.buffers) {
    if (!b.fixed) continue;
    fixed.buffers.push_back(b);
    at.push_back(*b.fixed);
  }
  if (const auto good = validate(fixed, at); !good)
    return error{error_code::bad_input, "the fixed offsets are no plan: " + good.error().message};
  return {};
}

// In whatever order they are placed, each lies below the sum of all and what aligning them takes:
// where that is below 2^63, no sum of the planner can pass it.
result<void> check_sum(const problem& of) {
  std::uint64_t sum = 0, highest = 0;
  const buffer* most = nullptr;
  for (const buffer& b : of.buffers) {
    if (most == nullptr || b.size + b.alignment > most->size + most->alignment) most = &b;
    sum += b.fixed ? 0 : b.size + (b.alignment - 1);
    if (b.fixed) highest = std::max(highest, *b.fixed + b.size);
    if (sum + highest < size_limit && sum < size_limit) continue;
    return error{error_code::bad_input,
                 fmt::format("the sizes and alignments sum to 2^63 or more, so offsets would pass "
                             "it; buffer {} alone has size {} and alignment {}",
                             most->id, most->size, most->alignment)};
  }
  return {};
}
}  // namespace

result<void> check_problem(const problem& of) {
  for (const buffer& b : of.buffers) {
    const auto broken = [&](std::string_view why) {
      return error{error_code::bad_input, fmt::format("buffer {}: {}", b.id, why)};
    };
    if (b.upper < b.lower)
      return broken(fmt::format("upper {} is below lower {}", b.upper, b.lower));
    if (b.size == 0 || b.size >= size_limit)
      return broken(fmt::format("size {} is not 1 to 2^63 - 1", b.size));
    if (b.alignment == 0 || b.alignment >= size_limit)
      return broken(fmt::format("alignment {} is not 1 to 2^63 - 1", b.alignment));
    if (b.fixed && (*b.fixed % b.alignment != 0 || *b.fixed >= size_limit - b.size))
      return broken(fmt::format("fixed offset {} is misaligned or passes 2^63", *b.fixed));
    std::int64_t from = b.lower;
    for (const interval& gap : b.gaps) {
      if (gap.lower < from || gap.upper <= gap.lower || gap.upper > b.upper)
        return broken(fmt::format("gap {}-{} is empty, out of order or outside the lifetime",
                                  gap.lower, gap.upper));
      from = gap.upper;
    }
  }
  return check_fixed(of);
}

result<plan> solve(const problem& of, const solve_options& options) {
  if (auto good = check_problem(of); !good) return good.error();
  auto bound = peak_load(of);
  if (!bound) return bound.error();
  if (auto good = check_sum(of); !good) return good.error();
  if (of.capacity && bound->bytes > *of.capacity) {
    plan out;
    out.what = outcome::impossible;
    out.lower_bound = bound->bytes;
    out.reason = explain_impossible(*bound, *of.capacity);
    return out;
  }
  solver work(of, *bound, options);
  work.run();
  return work.finish();
}

}  // namespace millpond::plan
