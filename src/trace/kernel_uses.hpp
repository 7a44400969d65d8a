// Which `use` events are of a kernel: a kernel says how many of the uses that follow are its
// blocks.
#pragma once
#include <cstdint>

#include "trace/event_views.hpp"

namespace millpond::trace {

// Is shown every event of a trace in order.
class kernel_uses {
 public:
  enum class place : std::uint8_t {
    elsewhere,  // no use of a kernel
    of_kernel,
    last_of_kernel,
    of_refused,  // of a launch that the driver refused: the kernel did not run
  };

  [[nodiscard]] constexpr place see(const event& next) noexcept {
    if (next.what == action::kernel) {
      left_ = as_kernel(next).uses;
      refused_ = next.status != 0;
      return place::elsewhere;
    }
    if (next.what != action::use) {
      left_ = 0;
      return place::elsewhere;
    }
    if (left_ == 0) return place::elsewhere;
    --left_;
    if (refused_) return place::of_refused;
    return left_ == 0 ? place::last_of_kernel : place::of_kernel;
  }

 private:
  std::uint64_t left_ = 0;
  bool refused_ = false;
};

}  // namespace millpond::trace
