// What will be done when: operations by the virtual time of their end. All durations are known when
// work is queued, so its start and end are computed at once, and only effects wait here for their
// time.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "driver/sim/operation.hpp"

namespace millpond::sim {

class agenda {
 public:
  // Ties go by the order of queueing.
  void add(std::uint64_t end_ns, work what) {
    std::size_t slot = slots_.size();
    if (free_.empty()) {
      slots_.push_back(std::make_unique<work>(std::move(what)));
    } else {
      slot = free_.back();
      free_.pop_back();
      *slots_[slot] = std::move(what);
    }
    heap_.push_back({end_ns, next_++, slot});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  [[nodiscard]] bool empty() const noexcept { return heap_.empty(); }
  [[nodiscard]] std::uint64_t first_end_ns() const noexcept { return heap_.front().end_ns; }
  // Takes the first one out and calls done(end_ns, number, work&).
  template <class Done>
  void take_first(Done&& done) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const entry first = heap_.back();
    heap_.pop_back();
    done(first.end_ns, first.number, *slots_[first.slot]);
    *slots_[first.slot] = spin_work{};  // whatever it kept alive ends here
    free_.push_back(first.slot);
  }

 private:
  struct entry {
    std::uint64_t end_ns = 0;
    std::uint64_t number = 0;
    std::size_t slot = 0;
  };
  static bool later(const entry& a, const entry& b) noexcept {
    return a.end_ns != b.end_ns ? a.end_ns > b.end_ns : a.number > b.number;
  }
  std::vector<entry> heap_;
  std::vector<std::unique_ptr<work>> slots_;
  std::vector<std::size_t> free_;
  std::uint64_t next_ = 1;
};

}  // namespace millpond::sim
