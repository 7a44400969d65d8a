// A driver whose Nth call fails, and only the calls of whoever holds this one count.
#pragma once
#include <string>

#include "support/forwarding_driver.hpp"

namespace millpond {

class failing_driver final : public forwarding_driver {
 public:
  using forwarding_driver::forwarding_driver;
  // Counting starts again; 0: nothing fails.
  void fail(std::uint64_t at, driver_status status) {
    at_ = at;
    status_ = status;
    calls_ = 0;
    failed_.clear();
  }
  [[nodiscard]] std::uint64_t calls() const noexcept { return calls_; }
  // The CUDA function that failed; empty where none has.
  [[nodiscard]] const std::string& failed() const noexcept { return failed_; }

 protected:
  driver_status refuse(sim::call which) noexcept override {
    if (++calls_ != at_) return driver_status::success;
    failed_ = sim::name_of(which);
    return status_;
  }

 private:
  std::uint64_t at_ = 0;
  std::uint64_t calls_ = 0;
  driver_status status_ = driver_status::unknown;
  std::string failed_;
};

}  // namespace millpond
