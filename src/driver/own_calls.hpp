// The library's own calls: made in the driver's own context, and of no matter to anybody's capture.
//
// cuCtxSynchronize waits for the current context alone, and cuEventCreate makes an event that only
// the current context's streams take: with another one current on the calling thread, as after
// cudaSetDevice, both mean the wrong one (H200, driver 580.159, 2026-12-01).
//
// While any thread captures in global mode, calls such as cuMemAlloc are refused to every thread
// and break that capture. Inside this scope the driver knows that the calling thread's calls do
// not matter to the capture (cuThreadExchangeStreamCaptureMode, relaxed), and they work:
// measured on an H200, driver 580.159, 2026-11-30, for cuMemAlloc, cuMemCreate, cuMemMap,
// cuMemSetAccess, cuMemUnmap and cuMemRelease.
//
// The handles 0, 1 and 2 name the current context's streams: a user's own handle is asked outside
// the scope, or where driver::in_own_context() holds.
#pragma once
#include "driver/insist.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

class own_calls_scope {
 public:
  // Each call is tried twice: outside the scope's mode a later one would break somebody's capture.
  // A thread that has no context has the driver's own from here on.
  explicit own_calls_scope(driver& gpu) noexcept
      : gpu_(gpu), entered_(insist([&] { return gpu.enter_context(&before_); })) {
    const call_result exchanged = exchange();
    exchanged_ = exchanged.ok();
    if (entered_.ok()) entered_ = exchanged;
  }
  ~own_calls_scope() {
    // A failure here leaves this thread relaxed, which refuses it nothing; there is no one to tell.
    if (exchanged_) static_cast<void>(exchange());
    if (before_ != nullptr)
      static_cast<void>(insist([this] { return gpu_.leave_context(before_); }));
  }
  own_calls_scope(const own_calls_scope&) = delete;
  own_calls_scope& operator=(const own_calls_scope&) = delete;
  // Success where both is so: the own context is current, and captures are left alone.
  [[nodiscard]] call_result entered() const noexcept { return entered_; }

 private:
  call_result exchange() noexcept {
    return insist([this] { return gpu_.exchange_capture_mode(&mode_); });
  }
  driver& gpu_;
  void* before_ = nullptr;
  capture_mode mode_ =
      capture_mode::relaxed;  // after the first exchange: what the thread had before
  bool exchanged_ = false;
  call_result entered_;
};

}  // namespace millpond
