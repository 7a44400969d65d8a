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
  // Blocks of a place over the run, in equal parts of it.
  struct over_time {
    std::vector<std::int64_t> net;      // allocated less freed
    std::vector<std::uint32_t> kept;    // never freed
    std::uint64_t oldest = UINT64_MAX;  // the first that was never freed: its event
  };
  void repeats(std::uint32_t number);
  void churn(std::uint32_t number, bool stalls, double after_ns);
  void kept();
  [[nodiscard]] std::vector<over_time> count_over_time() const;
  [[nodiscard]] bool grows(const site_facts& site, const over_time& of) const;
  void leak(std::uint32_t number, std::uint64_t oldest);
  void growth(std::uint32_t number, const std::vector<std::uint32_t>& parts);
  void allocator_time();

  analysis& of_;
  double loop_ns_ = 0;
  bool said_ = false;  // what takes time in allocators, place by place
};

}  // namespace millpond::advise
