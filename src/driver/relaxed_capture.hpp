// While any thread captures in global mode, calls such as cuMemAlloc are refused to every thread
// and break that capture. Inside this scope the driver knows that the calling thread's calls do
// not matter to the capture (cuThreadExchangeStreamCaptureMode, relaxed), and they work:
// measured on an H200, driver 580.159, 2026-11-30, for cuMemAlloc, cuMemCreate, cuMemMap,
// cuMemSetAccess, cuMemUnmap and cuMemRelease.
#pragma once
#include "millpond/driver/driver.hpp"

namespace millpond {

class relaxed_capture_scope {
 public:
  // Each exchange is tried twice: outside the scope's mode a later call would break somebody's
  // capture.
  explicit relaxed_capture_scope(driver& gpu) noexcept
      : gpu_(gpu), entered_(gpu.exchange_capture_mode(&mode_)) {
    if (entered_.status == driver_status::invalid_context)
      static_cast<void>(gpu_.bind_thread());  // a thread's first call
    if (!entered_.ok()) entered_ = gpu_.exchange_capture_mode(&mode_);
  }
  ~relaxed_capture_scope() {
    // A failure here leaves this thread relaxed, which refuses it nothing; there is no one to tell.
    if (entered_.ok() && !gpu_.exchange_capture_mode(&mode_).ok())
      static_cast<void>(gpu_.exchange_capture_mode(&mode_));
  }
  relaxed_capture_scope(const relaxed_capture_scope&) = delete;
  relaxed_capture_scope& operator=(const relaxed_capture_scope&) = delete;
  [[nodiscard]] call_result entered() const noexcept { return entered_; }

 private:
  driver& gpu_;
  capture_mode mode_ =
      capture_mode::relaxed;  // after the first exchange: what the thread had before
  call_result entered_;
};

}  // namespace millpond
