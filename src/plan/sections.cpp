#include "plan/sections.hpp"

#include <algorithm>

namespace millpond::plan {
namespace {

struct change {
  std::int64_t time;
  bool starts;
  index range;
};

}  // namespace

sections make_sections(const problem& of) {
  sections out;
  std::vector<change> changes;
  out.range_start.reserve(of.buffers.size() + 1);
  out.range_start.push_back(0);
  std::vector<std::uint64_t> size_of_range;
  for (const buffer& b : of.buffers) {
    for_each_active(b, [&](interval part) {
      const auto range = static_cast<index>(size_of_range.size());
      changes.push_back({part.lower, true, range});
      changes.push_back({part.upper, false, range});
      size_of_range.push_back(b.size);
    });
    out.range_start.push_back(static_cast<index>(size_of_range.size()));
  }
  out.ranges.resize(size_of_range.size());
  std::sort(changes.begin(), changes.end(), [](const change& a, const change& b) {
    if (a.time != b.time) return a.time < b.time;
    if (a.starts != b.starts) return b.starts;
    return a.range < b.range;
  });
  std::uint64_t load = 0;
  bool ended = true;
  for (const change& c : changes) {
    if (c.starts) {
      if (ended) {
        ++out.count;
        out.load.push_back(0);
        out.time.push_back(c.time);
        ended = false;
      }
      load += size_of_range[c.range];
      out.load.back() = load;
      out.time.back() = c.time;
      out.ranges[c.range].first = out.count - 1;
    } else {
      load -= size_of_range[c.range];
      out.ranges[c.range].last = out.count;
      ended = true;
    }
  }
  // Around a gap without an event of others the two parts may touch: join them, so that ranges are
  // maximal.
  std::vector<section_range> joined;
  std::vector<index> starts{0};
  for (std::size_t i = 0; i + 1 < out.range_start.size(); ++i) {
    for (index r = out.range_start[i]; r < out.range_start[i + 1]; ++r) {
      if (r > out.range_start[i] && joined.back().last >= out.ranges[r].first)
        joined.back().last = std::max(joined.back().last, out.ranges[r].last);
      else
        joined.push_back(out.ranges[r]);
    }
    starts.push_back(static_cast<index>(joined.size()));
  }
  out.ranges = std::move(joined);
  out.range_start = std::move(starts);
  return out;
}

}  // namespace millpond::plan
