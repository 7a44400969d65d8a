// Better orders for first fit, by squeaky wheel optimisation (Joslin and Clements, 1999): place in
// an order, find the buffers that made the peak, give them an earlier turn, and place again. An
// order costs milliseconds even for tens of thousands of buffers, so there are thousands of turns
// in a minute.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "plan/first_fit.hpp"

namespace millpond::plan {

struct improve_limits {
  std::uint64_t target = 0;      // stop at a peak of at most this
  std::uint64_t placements = 0;  // stop after placing this many buffers
  std::function<bool()> stop;    // asked after each order; may be empty
};

// Keeps its place between calls: more placements go on where the last call ended.
class improver {
 public:
  improver(const problem& of, const sections& in, std::uint64_t seed);

  // Reported of each better placement than any before.
  using found = std::function<void(const placement&, const std::string& method)>;
  // Returns the placements made.
  std::uint64_t run(const improve_limits& limits, const found& better);

  [[nodiscard]] std::uint64_t best_peak() const { return best_peak_; }

 private:
  struct start;
  void turn(start& of, const improve_limits& limits, const found& better);
  void reorder(start& of, const placement& last);

  const problem& of_;
  const sections& in_;
  std::uint64_t seed_;
  occupancy taken_;
  std::vector<start> starts_;
  std::uint64_t best_peak_ = UINT64_MAX;
  std::size_t next_start_ = 0;

 public:
  ~improver();
};

}  // namespace millpond::plan
