#include "plan/first_fit.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace millpond::plan {
namespace {

// Long lifetimes span tens of thousands of sections: their loads are looked at by the block.
constexpr index sections_a_block = 64;

std::vector<std::uint64_t> load_by_block(const sections& in) {
  std::vector<std::uint64_t> out((in.load.size() + sections_a_block - 1) / sections_a_block, 0);
  for (std::size_t s = 0; s < in.load.size(); ++s)
    out[s / sections_a_block] = std::max(out[s / sections_a_block], in.load[s]);
  return out;
}

}  // namespace

const char* to_string(order_key key) noexcept {
  switch (key) {
    case order_key::size: return "size";
    case order_key::area: return "area";
    case order_key::length: return "lifetime";
    case order_key::start: return "start";
    case order_key::load: return "load";
    case order_key::size_by_root_length: return "size by root of lifetime";
    case order_key::size_class: return "size class and start";
    case order_key::size_class_coarse: return "coarse size class and start";
    case order_key::size_class_fine: return "fine size class and start";
  }
  return "unknown";
}

std::vector<index> make_order(const problem& of, const sections& in, order_key by) {
  const std::size_t n = of.buffers.size();
  std::vector<double> first(n);  // larger goes first
  std::vector<std::uint64_t> block_load;
  if (by == order_key::load) block_load = load_by_block(in);
  for (std::size_t i = 0; i < n; ++i) {
    const auto size = static_cast<double>(of.buffers[i].size);
    const auto length = static_cast<double>(in.length(i));
    const auto ranges = in.of(i);
    switch (by) {
      case order_key::size: first[i] = size; break;
      case order_key::area: first[i] = size * length; break;
      case order_key::length: first[i] = length; break;
      case order_key::start:
        first[i] = ranges.empty() ? 0 : -static_cast<double>(ranges.front().first);
        break;
      case order_key::size_by_root_length: first[i] = size * std::sqrt(length); break;
      case order_key::size_class:
      case order_key::size_class_coarse:
      case order_key::size_class_fine: {
        const double classes = by == order_key::size_class          ? 2
                               : by == order_key::size_class_coarse ? 1
                                                                    : 6;
        const double start = ranges.empty() ? 0 : static_cast<double>(ranges.front().first);
        first[i] =
            std::floor(classes * std::log2(size)) - start / (static_cast<double>(in.count) + 1);
        break;
      }
      case order_key::load: {
        std::uint64_t most = 0;
        for (const section_range r : ranges)
          for (index s = r.first; s < r.last;) {
            const bool whole = s % sections_a_block == 0 && r.last - s >= sections_a_block;
            most = std::max(most, whole ? block_load[s / sections_a_block] : in.load[s]);
            s += whole ? sections_a_block : 1;
          }
        first[i] = static_cast<double>(most);
        break;
      }
    }
  }
  std::vector<index> order(n);
  std::iota(order.begin(), order.end(), index{0});
  std::sort(order.begin(), order.end(), [&](index a, index b) {
    const buffer& x = of.buffers[a];
    const buffer& y = of.buffers[b];
    if (x.fixed.has_value() != y.fixed.has_value()) return x.fixed.has_value();
    if (first[a] != first[b]) return first[a] > first[b];
    if (x.size != y.size) return x.size > y.size;
    if (x.lower != y.lower) return x.lower < y.lower;
    return a < b;
  });
  return order;
}

placement place_in_order(const problem& of, const sections& in, const std::vector<index>& order,
                         fit how, occupancy& taken, const place_limits& limits) {
  placement out;
  out.at.assign(of.buffers.size(), 0);
  taken.clear();
  std::size_t placed = 0;
  for (const index i : order) {
    const buffer& b = of.buffers[i];
    const auto ranges = in.of(i);
    if (b.fixed)
      out.at[i] = *b.fixed;
    else if (ranges.empty())
      out.at[i] = 0;
    else if (how == fit::first)
      out.at[i] = taken.first_fit(ranges, b.size, b.alignment);
    else
      out.at[i] = taken.best_fit(ranges, b.size, b.alignment);
    out.peak = std::max(out.peak, out.at[i] + b.size);
    if (out.peak > limits.peak || (++placed % 256 == 0 && limits.stop && limits.stop())) {
      out.peak = UINT64_MAX;
      return out;
    }
    taken.take(ranges, out.at[i], b.size);
  }
  return out;
}

}  // namespace millpond::plan
