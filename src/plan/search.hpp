// The complete search: fits buffers into a capacity, or proves that it cannot be done.
//
// A canonical plan is one in which no buffer can be pushed down: each rests on the bottom or on
// another. Some optimal plan is canonical, so only those are searched, from the bottom up. Every
// section has a floor (what is placed there ends below it), and every buffer still to be placed a
// lowest offset: the highest floor under it. In each section ask which buffer comes next. Where
// every buffer that could start at this floor lies on level ground, one of them does, and nothing
// can slip under it; or none does, and the bytes up to the next possible offset are wasted. The
// search branches on the section with the fewest such answers, wherever it is, rather than on the
// lowest offset of the whole plan: mostly there is one answer.
//
// What cuts branches:
// - each section is a machine with release dates: the buffers still to come, in order of their
// lowest
//   offsets, each after the one before and not below its own lowest offset, must end within the
//   capacity (Jackson's bound, exact for one machine); the difference is the section's slack;
// - waste needs room: the buffers to come must fit above it. Slack says too little here, since
//   below a buffer that starts high anyway there may be room that costs nothing;
// - sections between which no buffer still to be placed is live fall apart, and are solved one
// after the other, the
//   tightest first; one that fails fails all;
// - states that failed are remembered: the buffers still to come and their lowest offsets say all.
// Restarts with other orders, and noise, cut the long tails that every such search has.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "plan/problem.hpp"
#include "plan/sections.hpp"

namespace millpond::plan {

enum class search_status {
  found,
  exhausted,  // proof that nothing fits
  limit,      // the node limit of the run or `stop` ended it
};

struct search_run {
  search_status status = search_status::limit;
  std::uint64_t nodes = 0;
  offsets at;  // when found
};

// One problem, prepared for runs. Problems of more than `largest` buffers are not for it: a run
// keeps up to n^2 / 2 entries of 8 or 16 bytes.
class search {
 public:
  static constexpr std::size_t largest = 6000;

  search(const problem& of, const sections& in);
  ~search();
  search(search&&) noexcept;

  // Divides every offset of a canonical plan, so peaks differ by at least this.
  [[nodiscard]] std::uint64_t unit() const;

  // Run number `number` of the portfolio (it chooses the orders) for a capacity in bytes. The
  // outcome is a function of the arguments, unless `stop` says true. Runs are independent: several
  // threads may each run at once, if `stop` allows it.
  [[nodiscard]] search_run run(std::uint64_t capacity, std::uint64_t number, std::uint64_t seed,
                               std::uint64_t node_limit, const std::function<bool()>& stop) const;

 private:
  struct prepared;
  std::unique_ptr<prepared> of_;
};

}  // namespace millpond::plan
