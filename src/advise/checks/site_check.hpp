// What a place of the program does again and again: waits for the device, allocates for each
// request, leaks, grows.
#pragma once
#include <cstdint>
#include <vector>

#include "advise/analysis.hpp"

namespace millpond::advise {

class site_check {
 public:
  explicit site_check(analysis& of) : of_(of) {}
  // Before the free's own waiting is taken in.
  void freed(const trace::event& at, std::uint32_t block);
  void failed(const trace::event& at, std::uint32_t index);
  // After the last event.
  void finish();

 private:
  void repeats(const site_facts& site);
  void kept();
  void leak(const site_facts& site, std::uint64_t oldest);
  void growth(const site_facts& site, const std::vector<std::uint32_t>& parts);
  void allocator_time();
  [[nodiscard]] static double estimated_ns(const site_facts& site);

  analysis& of_;
  double loop_ns_ = 0;
};

}  // namespace millpond::advise
