#include "plan/sweep.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/bits.hpp"

namespace millpond::plan {
namespace {

// Free bytes below the highest taken one.
class holes {
 public:
  explicit holes(std::uint64_t base) : top_(base) {}

  // The smallest hole that serves, of the first few that are large enough; else the top.
  std::uint64_t take(std::uint64_t size, std::uint64_t alignment) {
    constexpr int most_looked_at = 16;
    auto each = by_size_.lower_bound({size, 0});
    for (int looked = 0; each != by_size_.end() && looked < most_looked_at; ++each, ++looked) {
      const auto [bytes, begin] = *each;
      const std::uint64_t at = next_multiple(begin, alignment);
      if (at - begin > bytes - size) continue;
      remove(begin, begin + bytes);
      if (at > begin) add(begin, at);
      if (at + size < begin + bytes) add(at + size, begin + bytes);
      return at;
    }
    const std::uint64_t at = next_multiple(top_, alignment);
    if (at > top_) add(top_, at);
    top_ = at + size;
    return at;
  }

  void give_back(std::uint64_t begin, std::uint64_t end) {
    auto after = by_begin_.lower_bound(begin);
    if (after != by_begin_.end() && after->first == end) {
      end = after->second;
      remove(after->first, after->second);
    }
    after = by_begin_.lower_bound(begin);
    if (after != by_begin_.begin() && std::prev(after)->second == begin) {
      const auto before = *std::prev(after);
      begin = before.first;
      remove(before.first, before.second);
    }
    if (end == top_)
      top_ = begin;
    else
      add(begin, end);
  }

 private:
  void add(std::uint64_t begin, std::uint64_t end) {
    by_begin_.emplace(begin, end);
    by_size_.emplace(end - begin, begin);
  }
  void remove(std::uint64_t begin, std::uint64_t end) {
    by_begin_.erase(begin);
    by_size_.erase({end - begin, begin});
  }
  std::uint64_t top_;
  std::map<std::uint64_t, std::uint64_t> by_begin_;            // begin -> end
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // size, begin
};

struct sweep_step {
  std::int64_t time;
  bool starts;
  index of;
};

}  // namespace

placement place_by_sweep(const problem& of) {
  placement made;
  made.at.assign(of.buffers.size(), 0);
  std::uint64_t base = 0;  // where the fixed ones end
  std::vector<sweep_step> steps;
  steps.reserve(2 * of.buffers.size());
  for (index i = 0; i < of.buffers.size(); ++i) {
    const buffer& b = of.buffers[i];
    made.peak = std::max(made.peak, b.fixed.value_or(0) + b.size);
    if (b.fixed) {
      made.at[i] = *b.fixed;
      base = std::max(base, *b.fixed + b.size);
    } else if (b.upper > b.lower) {
      steps.push_back({b.lower, true, i});
      steps.push_back({b.upper, false, i});
    }
  }
  // What ends at a time makes room for what starts then; of those, the largest first.
  std::sort(steps.begin(), steps.end(), [&](const sweep_step& a, const sweep_step& b) {
    if (a.time != b.time) return a.time < b.time;
    if (a.starts != b.starts) return b.starts;
    const std::uint64_t x = of.buffers[a.of].size, y = of.buffers[b.of].size;
    return x != y ? x > y : a.of < b.of;
  });
  holes free(base);
  for (const sweep_step& each : steps) {
    const buffer& b = of.buffers[each.of];
    std::uint64_t& at = made.at[each.of];
    if (!each.starts) {
      free.give_back(at, at + b.size);
      continue;
    }
    at = free.take(b.size, b.alignment);
    made.peak = std::max(made.peak, at + b.size);
  }
  return made;
}

}  // namespace millpond::plan
