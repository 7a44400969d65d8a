#include "plan/solve.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "plan/bound.hpp"
#include "plan/first_fit.hpp"
#include "plan/validate.hpp"

namespace millpond::plan {
namespace {

struct best_plan {
  placement found{{}, UINT64_MAX};
  std::string method;

  bool offer(placement candidate, std::string name) {
    if (candidate.peak >= found.peak) return false;
    found = std::move(candidate);
    method = std::move(name);
    return true;
  }
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

result<void> check_problem(const problem& of) {
  for (const buffer& b : of.buffers) {
    const auto broken = [&](std::string_view why) {
      return error{error_code::bad_input, fmt::format("buffer {}: {}", b.id, why)};
    };
    if (b.upper < b.lower) return broken(fmt::format("upper {} is below lower {}", b.upper, b.lower));
    if (b.size == 0 || b.size >= size_limit) return broken(fmt::format("size {} is not 1 to 2^63 - 1", b.size));
    if (b.alignment == 0 || b.alignment >= size_limit)
      return broken(fmt::format("alignment {} is not 1 to 2^63 - 1", b.alignment));
    if (b.fixed && (*b.fixed % b.alignment != 0 || *b.fixed >= size_limit - b.size))
      return broken(fmt::format("fixed offset {} is misaligned or passes 2^63", *b.fixed));
    std::int64_t from = b.lower;
    for (const interval& gap : b.gaps) {
      if (gap.lower < from || gap.upper <= gap.lower || gap.upper > b.upper)
        return broken(fmt::format("gap {}-{} is empty, out of order or outside the lifetime", gap.lower, gap.upper));
      from = gap.upper;
    }
  }
  return {};
}

result<plan> solve(const problem& of, const solve_options& options) {
  if (auto good = check_problem(of); !good) return good.error();
  auto bound = peak_load(of);
  if (!bound) return bound.error();
  plan out;
  out.lower_bound = bound->bytes;
  if (of.capacity && bound->bytes > *of.capacity) {
    out.what = outcome::impossible;
    out.reason = explain_impossible(*bound, *of.capacity);
    return out;
  }
  const sections in = make_sections(of);
  occupancy taken(in.count);
  best_plan best;
  for (const order_key key : all_order_keys) {
    const std::vector<index> order = make_order(of, in, key);
    if (best.offer(place_in_order(of, in, order, fit::first, taken), fmt::format("first fit by {}", to_string(key))) &&
        options.progress)
      options.progress(best.found.peak, 0);
    out.stats.placements += order.size();
    if (best.found.peak <= bound->bytes || (options.stop && options.stop())) break;
  }
  out.offsets = std::move(best.found.at);
  out.peak = best.found.peak;
  out.stats.method = best.method;
  problem unbounded = of;
  unbounded.capacity.reset();
  const auto checked = validate(unbounded, out.offsets);
  MILLPOND_CHECK(checked && *checked == out.peak, checked ? std::string("peak differs") : checked.error().message);
  out.proved_optimal = out.peak == out.lower_bound;
  if (of.capacity && out.peak > *of.capacity) {
    out.what = outcome::gave_up;
    out.reason = fmt::format("no plan within {} bytes was found before the limit; the best found needs {}, {} more. "
                             "The lower bound is {}, so it is not proved that none exists",
                             *of.capacity, out.peak, out.peak - *of.capacity, out.lower_bound);
  } else {
    out.what = outcome::found;
  }
  return out;
}

}  // namespace millpond::plan
