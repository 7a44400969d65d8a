// A driver whose Nth call fails, or several from the Nth on, and only the calls of whoever holds
// this one count.
#pragma once
#include <string>

#include "support/forwarding_driver.hpp"

namespace millpond {

class failing_driver final : public forwarding_driver {
 public:
  using forwarding_driver::forwarding_driver;
  // Counting starts again; 0: nothing fails.
  void fail(std::uint64_t at, driver_status status, std::uint64_t count = 1) {
    at_ = at;
    count_ = count;
    status_ = status;
    calls_ = 0;
    failed_.clear();
  }
  [[nodiscard]] std::uint64_t calls() const noexcept { return calls_; }
  // The CUDA function that failed first; empty where none has.
  [[nodiscard]] const std::string& failed() const noexcept { return failed_; }

 protected:
  driver_status refuse(sim::call which) noexcept override {
    ++calls_;
    if (at_ == 0 || calls_ < at_ || calls_ >= at_ + count_) return driver_status::success;
    if (failed_.empty()) failed_ = sim::name_of(which);
    return status_;
  }

 private:
  std::uint64_t at_ = 0;
  std::uint64_t count_ = 1;
  std::uint64_t calls_ = 0;
  driver_status status_ = driver_status::unknown;
  std::string failed_;
};

}  // namespace millpond
