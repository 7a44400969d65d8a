// A driver whose own allocations of host memory never fail: what a simulated one keeps in its books
// is no part of what a test of ours is about.
#pragma once
#include <optional>

#include "support/failing_new.hpp"
#include "support/forwarding_driver.hpp"

namespace millpond {

// For one thread.
class sparing_driver final : public forwarding_driver {
 public:
  using forwarding_driver::forwarding_driver;

 protected:
  driver_status refuse(sim::call) noexcept override {
    spare_.emplace();
    return driver_status::success;
  }
  void went_through() noexcept override { spare_.reset(); }

 private:
  std::optional<failing_new::pause> spare_;
};

}  // namespace millpond
