#include "plan/bound.hpp"

#include <fmt/format.h>
#include <algorithm>

namespace millpond::plan {

result<load_peak> peak_load(const problem& of) {
  struct change {
    std::int64_t time;
    bool starts;
    std::uint64_t size;
  };
  std::vector<change> changes;
  changes.reserve(2 * of.buffers.size());
  load_peak best;
  for (const buffer& b : of.buffers) {
    for_each_active(b, [&](interval part) {
      changes.push_back({part.lower, true, b.size});
      changes.push_back({part.upper, false, b.size});
    });
  }
  std::sort(changes.begin(), changes.end(), [](const change& a, const change& b) {
    return a.time != b.time ? a.time < b.time : a.starts < b.starts;
  });
  std::uint64_t load = 0;
  std::size_t live = 0;
  for (const change& c : changes) {
    if (!c.starts) {
      load -= c.size;
      --live;
      continue;
    }
    load += c.size;
    ++live;
    if (load >= size_limit)
      return error{error_code::bad_input,
                   fmt::format("the sizes live at time {} sum to 2^63 bytes or more", c.time)};
    if (load > best.bytes) best = {load, c.time, live, {}};
  }
  // A buffer that is never live still lies somewhere; a fixed one ends where it ends, whatever the
  // load.
  for (const buffer& b : of.buffers) {
    if (b.size > best.bytes) best = {b.size, b.lower, 1, {}};
    if (b.fixed && *b.fixed + b.size > best.bytes) best = {*b.fixed + b.size, b.lower, 1, b.id};
  }
  return best;
}

std::string explain_impossible(const load_peak& bound, std::uint64_t capacity) {
  if (!bound.fixed_by.empty())
    return fmt::format(
        "no plan fits into {} bytes: the fixed offset of buffer {} ends at {}, {} more than the "
        "capacity",
        capacity, bound.fixed_by, bound.bytes, bound.bytes - capacity);
  return fmt::format(
      "no plan fits into {} bytes: {} bytes are live at time {} ({} buffers), {} more than the "
      "capacity. "
      "This lower bound holds for every plan, so it proves that none exists",
      capacity, bound.bytes, bound.time, bound.buffers_live, bound.bytes - capacity);
}

}  // namespace millpond::plan
