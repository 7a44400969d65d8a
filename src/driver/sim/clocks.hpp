// Who is ordered after whom. Every stream (and every branch of a capture) is a timeline with a
// number that is never used again; each piece of work on it is a tick. A vector clock says up to
// which tick of the other timelines a timeline is ordered; what the host has seen to be done orders
// everything after it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace millpond::sim {

// Up to and including this tick of this timeline.
struct point {
  std::uint64_t timeline = 0;
  std::uint64_t tick = 0;
};

// Sparse: only the timelines that the host has not seen done, which are few. Sorted by timeline.
class vector_clock {
 public:
  [[nodiscard]] std::uint64_t at(std::uint64_t timeline) const noexcept {
    for (const point& p : points_) {
      if (p.timeline == timeline) return p.tick;
    }
    return 0;
  }
  // True when that says more than before.
  bool raise(point p) {
    const auto it =
        std::lower_bound(points_.begin(), points_.end(), p.timeline,
                         [](const point& a, std::uint64_t b) { return a.timeline < b; });
    if (it == points_.end() || it->timeline != p.timeline) {
      points_.insert(it, p);
      return true;
    }
    const bool more = p.tick > it->tick;
    it->tick = std::max(it->tick, p.tick);
    return more;
  }
  void join(const vector_clock& other) {
    for (const point& p : other.points_) raise(p);
  }
  // Of one that is not needed any more: the fewer go to the more, since thousands of streams may
  // have freed into what is joined.
  void join(vector_clock&& other) {
    if (points_.size() < other.points_.size()) points_.swap(other.points_);
    for (const point& p : other.points_) raise(p);
  }
  template <class Predicate>
  void drop(Predicate&& done) {
    std::erase_if(points_, done);
  }
  [[nodiscard]] const std::vector<point>& points() const noexcept { return points_; }
  void clear() noexcept { points_.clear(); }

 private:
  std::vector<point> points_;
};

// A timeline's own state: its number, and what it is ordered after.
struct timeline {
  std::uint64_t number = 0;
  vector_clock clock;
};

// The ticks of all timelines, and what the host has seen of them.
class order_book {
 public:
  [[nodiscard]] timeline make(std::uint64_t context) { return add(context); }
  // A branch of that capture: nothing on it ever runs, so nobody sees it done.
  [[nodiscard]] timeline make_branch(std::uint64_t capture) { return add(branch_bit | capture); }
  // Of a branch; 0 for a stream's timeline.
  [[nodiscard]] std::uint64_t capture_of(std::uint64_t timeline) const noexcept {
    const std::uint64_t where = contexts_[timeline];
    return (where & branch_bit) != 0 ? where & ~branch_bit : 0;
  }
  // One more piece of work on it.
  point advance(const timeline& line) noexcept { return {line.number, ++ticks_[line.number]}; }
  // From here on `line` is ordered after `clock`. That is a tick too: an event that was recorded on
  // the line before stands for less.
  void order_after(timeline& line, const vector_clock& clock) {
    bool more = false;
    for (const point& p : clock.points()) {
      if (p.timeline != line.number && !seen(p)) more = line.clock.raise(p) || more;
    }
    if (more) advance(line);
  }
  [[nodiscard]] point now(const timeline& line) const noexcept {
    return {line.number, ticks_[line.number]};
  }
  [[nodiscard]] bool seen(point p) const noexcept { return p.tick <= seen_[p.timeline]; }
  // The work at p, and all before it there, comes before whatever `line` is given next.
  [[nodiscard]] bool ordered(point p, const timeline& line) const noexcept {
    return p.timeline == line.number || seen(p) || p.tick <= line.clock.at(p.timeline);
  }
  // What an event recorded on `line` now stands for.
  [[nodiscard]] vector_clock snapshot(timeline& line) {
    line.clock.drop([&](const point& p) { return seen(p); });
    vector_clock clock = line.clock;
    const point own = now(line);
    if (!seen(own)) clock.raise(own);
    return clock;
  }
  // The host knows that this is done.
  void observe(const vector_clock& clock) noexcept {
    for (const point& p : clock.points()) seen_[p.timeline] = std::max(seen_[p.timeline], p.tick);
  }
  void observe_all() noexcept {
    observe_all([](std::uint64_t) { return true; });
  }
  // All of the contexts for which covered(number) holds.
  template <class Covered>
  void observe_all(Covered&& covered) noexcept {
    for (std::size_t i = 1; i < ticks_.size(); ++i) {
      if ((contexts_[i] & branch_bit) == 0 && covered(contexts_[i])) seen_[i] = ticks_[i];
    }
  }
  // Everything that the host has not seen of the timelines of those contexts, dead ones too.
  template <class Covered>
  [[nodiscard]] vector_clock everything(Covered&& covered) const {
    vector_clock clock;
    for (std::uint64_t i = 1; i < ticks_.size(); ++i) {
      if (ticks_[i] <= seen_[i] || (contexts_[i] & branch_bit) != 0) continue;
      if (covered(contexts_[i])) clock.raise({i, ticks_[i]});
    }
    return clock;
  }

 private:
  static constexpr std::uint64_t branch_bit = std::uint64_t{1} << 63;
  timeline add(std::uint64_t where) {
    contexts_.push_back(where);
    ticks_.push_back(0);
    seen_.push_back(0);
    return {ticks_.size() - 1, {}};
  }

  std::vector<std::uint64_t> ticks_{0};  // by timeline; 0 is nobody's number
  std::vector<std::uint64_t> seen_{0};
  std::vector<std::uint64_t> contexts_{0};  // or the capture of a branch
};

}  // namespace millpond::sim
