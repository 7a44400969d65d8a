// Small problems from a seed, and their best peak by trying everything: what the solver is tested
// against.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "base/random.hpp"
#include "plan/problem.hpp"

namespace millpond::plan::testing_support {

enum class features { plain, all };  // all: alignments, gaps, fixed offsets, empty lifetimes too

inline problem small_problem(random& any, std::uint64_t most_buffers, features with) {
  problem of;
  const std::uint64_t n = any.between(1, most_buffers);
  std::uint64_t fixed_end = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    buffer b;
    b.id = std::to_string(i);
    b.lower = static_cast<std::int64_t>(any.below(8));
    b.upper = b.lower + static_cast<std::int64_t>(any.between(with == features::all ? 0 : 1, 6));
    b.size = any.between(1, 9);
    if (with == features::all) {
      if (any.chance(0.3)) b.alignment = any.between(1, 4);
      if (any.chance(0.3) && b.upper - b.lower > 2) b.gaps.push_back({b.lower + 1, b.upper - 1});
      if (any.chance(0.15)) {  // fixed ones never share a byte, so that a plan exists
        b.fixed = (fixed_end + b.alignment - 1) / b.alignment * b.alignment;
        fixed_end = *b.fixed + b.size + any.below(3);
      }
    }
    of.buffers.push_back(std::move(b));
  }
  return of;
}

inline bool in_conflict(const buffer& a, const buffer& b) {
  bool meets = false;
  for_each_active(a, [&](interval x) {
    for_each_active(b, [&](interval y) {
      meets = meets || std::max(x.lower, y.lower) < std::min(x.upper, y.upper);
    });
  });
  return meets;
}

// The smallest peak of all. Placing in order of a best plan's offsets, each as low as it fits,
// gives no higher offset than that plan; so some order of all is as good.
inline std::uint64_t best_peak_by_brute_force(const problem& of) {
  const std::size_t n = of.buffers.size();
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto is_fixed = [&](std::size_t i) { return of.buffers[i].fixed.has_value(); };
  const auto free_from = std::stable_partition(order.begin(), order.end(), is_fixed);
  std::uint64_t best = UINT64_MAX;
  do {
    std::vector<std::uint64_t> at(n, 0);
    std::uint64_t peak = 0;
    for (std::size_t k = 0; k < n; ++k) {
      const buffer& b = of.buffers[order[k]];
      std::uint64_t offset = b.fixed.value_or(0);
      for (bool moved = !b.fixed; moved;) {
        moved = false;
        for (std::size_t j = 0; j < k; ++j) {
          const buffer& other = of.buffers[order[j]];
          if (!in_conflict(b, other) || at[order[j]] >= offset + b.size ||
              offset >= at[order[j]] + other.size)
            continue;
          offset = (at[order[j]] + other.size + b.alignment - 1) / b.alignment * b.alignment;
          moved = true;
        }
      }
      at[order[k]] = offset;
      peak = std::max(peak, offset + b.size);
    }
    best = std::min(best, peak);
  } while (std::next_permutation(free_from, order.end()));
  return best;
}

}  // namespace millpond::plan::testing_support
