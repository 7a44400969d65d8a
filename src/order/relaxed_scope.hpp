// While it lives, the calling thread's driver calls are allowed although some thread captures in global or
// thread-local mode (cuThreadExchangeStreamCaptureMode). Needed around every call of a slow path: a capture
// in global mode forbids cuMemCreate, cuEventQuery and their like to all threads.
#pragma once
#include "millpond/driver.hpp"

namespace millpond::order {

class relaxed_scope {
 public:
  explicit relaxed_scope(driver& gpu) noexcept : gpu_(gpu) {
    engaged_ = gpu_.exchange_capture_mode(&mode_).ok();
  }
  ~relaxed_scope() {
    if (engaged_) static_cast<void>(gpu_.exchange_capture_mode(&mode_));
  }
  relaxed_scope(const relaxed_scope&) = delete;
  relaxed_scope& operator=(const relaxed_scope&) = delete;

 private:
  driver& gpu_;
  capture_mode mode_ = capture_mode::relaxed;
  bool engaged_ = false;
};

}  // namespace millpond::order
