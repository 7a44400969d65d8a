// Driver pools that give their memory back at each synchronise and fetch it again.
#pragma once
#include <cstdint>
#include <map>

#include "advise/analysis.hpp"

namespace millpond::advise {

class pool_check {
 public:
  explicit pool_check(analysis& of) : of_(of) {}
  void allocated(const trace::event& at, std::uint32_t index, std::uint32_t block);
  void freed(std::uint32_t block);
  void set(const trace::event& at);
  // The host has waited for something: a pool gives back what it holds over its threshold.
  void synchronised();
  void finish();

 private:
  struct pool {
    std::uint64_t threshold = 0;  // the driver's default
    std::uint64_t live = 0, reserved = 0, peak_reserved = 0;
    std::uint64_t refills = 0;  // growths to what had been reserved before
    std::uint64_t refilled_bytes = 0;
    double refill_ns = 0;
    bool timed = false;
    std::uint32_t first = no_index, last = no_index;
    std::uint32_t stack = 0, call = 0;
  };
  analysis& of_;
  std::map<std::uint64_t, pool> pools_;
  std::map<std::uint32_t, std::uint64_t> pool_of_;  // of live blocks
};

}  // namespace millpond::advise
