// The validator for several streams: reachability over single steps instead of the solver's clocks.
#include <fmt/format.h>
#include <algorithm>
#include <set>

#include "plan/streams.hpp"

namespace millpond::plan {
namespace {

// Is step `done` of `from` complete before step `at` of `to` starts? Walks back from the latter
// over the waits: a wait counts when it is at or before the step reached on its stream.
bool happens_before(const stream_problem& of, std::uint32_t from, std::uint64_t done,
                    std::uint32_t to, std::uint64_t at) {
  if (from == to) return done < at;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> open{{to, at}};
  std::set<std::size_t> followed;
  while (!open.empty()) {
    const auto [stream, step] = open.back();
    open.pop_back();
    for (std::size_t w = 0; w < of.waits.size(); ++w) {
      const stream_wait& wait = of.waits[w];
      if (wait.stream != stream || wait.step > step || !followed.insert(w).second) continue;
      if (wait.for_stream == from && wait.for_step >= done) return true;
      open.emplace_back(wait.for_stream, wait.for_step);
    }
  }
  return false;
}

bool all_before(const stream_problem& of, const stream_buffer& a, const stream_buffer& b) {
  return std::all_of(a.uses.begin(), a.uses.end(), [&](const stream_use& x) {
    return std::all_of(b.uses.begin(), b.uses.end(), [&](const stream_use& y) {
      return happens_before(of, x.stream, x.last, y.stream, y.first);
    });
  });
}

}  // namespace

result<std::uint64_t> validate_streams(const stream_problem& of, const offsets& plan) {
  const auto violation = [](std::string text) {
    return error{error_code::invalid_argument, std::move(text)};
  };
  if (plan.size() != of.buffers.size())
    return violation(fmt::format("{} offsets for {} buffers", plan.size(), of.buffers.size()));
  std::uint64_t peak = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const stream_buffer& b = of.buffers[i];
    if (plan[i] >= size_limit || plan[i] + b.size > size_limit)
      return violation(fmt::format("buffer {} passes 2^63", b.id));
    if (plan[i] % b.alignment != 0)
      return violation(
          fmt::format("buffer {} at {} is not aligned to {}", b.id, plan[i], b.alignment));
    if (of.capacity && plan[i] + b.size > *of.capacity)
      return violation(fmt::format("buffer {} ends at {}, past the capacity {}", b.id,
                                   plan[i] + b.size, *of.capacity));
    peak = std::max(peak, plan[i] + b.size);
    for (std::size_t j = 0; j < i; ++j) {
      const stream_buffer& other = of.buffers[j];
      if (plan[j] >= plan[i] + b.size || plan[i] >= plan[j] + other.size) continue;
      if (!all_before(of, b, other) && !all_before(of, other, b))
        return violation(
            fmt::format("buffers {} at {} and {} at {} share bytes, and neither's uses all come "
                        "before the other's",
                        other.id, plan[j], b.id, plan[i]));
    }
  }
  return peak;
}

}  // namespace millpond::plan
