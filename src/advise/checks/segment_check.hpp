// Fragmentation of a recorded allocator: what it had reserved, and why a request did not fit in
// what was free.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "advise/analysis.hpp"

namespace millpond::advise {

class segment_check {
 public:
  explicit segment_check(analysis& of) : of_(of) {}
  void reserved(const trace::event& at, std::uint32_t index);
  void given_back(const trace::event& at, std::uint32_t index);
  void finish();

 private:
  struct segment {
    std::uint64_t begin = 0, end = 0, stream = 0;
    std::uint32_t made = 0, gone = no_index;
    double cost_ns = 0;
  };
  // One device's: what one has reserved serves no other.
  struct reserve {
    std::vector<segment> segments;
    std::uint64_t reserved = 0, peak = 0;
    std::uint32_t peak_event = no_index;
    std::uint64_t given_back = 0, again = 0;
  };
  struct gaps {
    struct sort {
      std::uint64_t bytes = 0, pieces = 0;
    };
    std::uint64_t largest = 0;
    sort too_small, other_stream, would_fit;  // why a piece could not serve the request
  };
  [[nodiscard]] gaps gaps_at(const reserve& of, std::uint16_t device, std::uint64_t request,
                             std::uint64_t stream) const;
  [[nodiscard]] std::string summary(const reserve& of, std::uint16_t device, const gaps& left,
                                    std::uint64_t request) const;
  void judge(std::uint16_t device, const reserve& of);
  [[nodiscard]] std::vector<std::string> remedy(const gaps& left) const;

  analysis& of_;
  std::map<std::uint16_t, reserve> devices_;
};

}  // namespace millpond::advise
