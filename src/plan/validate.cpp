#include "plan/validate.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <map>

namespace millpond::plan {
namespace {

struct change {
  std::int64_t time;
  bool starts;  // ends sort before starts at one time: lifetimes are half-open
  std::size_t index;
};

error violation(std::string text) {
  return {error_code::invalid_argument, std::move(text)};
}

std::string describe(const problem& of, const offsets& plan, std::size_t i) {
  return fmt::format("buffer {} at [{}, {})", of.buffers[i].id, plan[i],
                     plan[i] + of.buffers[i].size);
}

}  // namespace

result<std::uint64_t> validate(const problem& of, const offsets& plan) {
  if (plan.size() != of.buffers.size())
    return violation(fmt::format("{} offsets for {} buffers", plan.size(), of.buffers.size()));
  std::uint64_t peak = 0;
  std::vector<change> changes;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const buffer& b = of.buffers[i];
    if (plan[i] >= size_limit || b.size >= size_limit || plan[i] + b.size > size_limit)
      return violation(
          fmt::format("buffer {}: offset {} and size {} pass 2^63", b.id, plan[i], b.size));
    if (b.alignment == 0 || plan[i] % b.alignment != 0)
      return violation(fmt::format("{} is not aligned to {}", describe(of, plan, i), b.alignment));
    if (b.fixed && *b.fixed != plan[i])
      return violation(
          fmt::format("{} is not at its fixed offset {}", describe(of, plan, i), *b.fixed));
    if (of.capacity && plan[i] + b.size > *of.capacity)
      return violation(fmt::format("{} passes the capacity {} by {}", describe(of, plan, i),
                                   *of.capacity, plan[i] + b.size - *of.capacity));
    peak = std::max(peak, plan[i] + b.size);
    for_each_active(b, [&](interval part) {
      changes.push_back({part.lower, true, i});
      changes.push_back({part.upper, false, i});
    });
  }
  std::sort(changes.begin(), changes.end(), [](const change& a, const change& b) {
    return a.time != b.time ? a.time < b.time : a.starts < b.starts;
  });
  std::map<std::uint64_t, std::size_t> live;  // by offset; disjoint, or we have returned
  for (const change& c : changes) {
    if (!c.starts) {
      live.erase(plan[c.index]);
      continue;
    }
    const auto after = live.lower_bound(plan[c.index]);
    std::size_t other = plan.size();
    if (after != live.end() && after->first < plan[c.index] + of.buffers[c.index].size)
      other = after->second;
    if (after != live.begin()) {
      const auto before = std::prev(after);
      if (before->first + of.buffers[before->second].size > plan[c.index]) other = before->second;
    }
    if (other != plan.size())
      return violation(fmt::format("{} and {} share bytes at time {}", describe(of, plan, other),
                                   describe(of, plan, c.index), c.time));
    live.emplace(plan[c.index], c.index);
  }
  return peak;
}

}  // namespace millpond::plan
