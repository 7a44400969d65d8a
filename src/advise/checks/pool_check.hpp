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
  // The host has waited for something on this device: a pool of it gives back what it holds over
  // its threshold.
  void synchronised(std::uint16_t device);
  void finish();

 private:
  struct pool {
    std::uint64_t threshold = 0;  // the driver's default
    std::uint64_t live = 0, reserved = 0, peak_reserved = 0;
    std::uint64_t refills = 0;  // growths to what had been reserved before
    std::uint64_t refilled_bytes = 0;
    double refill_ns = 0;    // recorded, or by the bytes that are fetched
    bool estimated = false;  // some of it was not recorded
    std::uint16_t device = 0;
    std::uint32_t first = no_index, last = no_index;
    std::uint32_t stack = 0, call = 0;
  };
  struct site_refills {
    double ns = 0, after_ns = 0;
    std::uint64_t count = 0;
    bool estimated = false;
  };
  void grows(pool& mine, const trace::event& at, std::uint32_t index, std::uint32_t block);

  analysis& of_;
  std::map<std::uint32_t, site_refills> by_site_;
  std::map<std::uint64_t, pool> pools_;
  std::map<std::uint32_t, std::uint64_t> pool_of_;  // of live blocks
};

}  // namespace millpond::advise
