// Foreign programs call with any device current; the driver's calls want ours. Only where there are
// several devices: with one, whatever context is current is the device's primary one, or the pool
// binds it when a call says that none is.
#pragma once
#include "millpond/driver/driver.hpp"

namespace millpond {

class context_guard {
 public:
  context_guard(driver& gpu, int devices) noexcept {
    if (devices > 1 && !gpu.simulated()) enter(gpu);
  }
  ~context_guard() {
    if (changed_) leave();
  }
  context_guard(const context_guard&) = delete;
  context_guard& operator=(const context_guard&) = delete;

 private:
  void enter(driver& gpu) noexcept;
  void leave() noexcept;
  void* before_ = nullptr;
  bool changed_ = false;
};

}  // namespace millpond
