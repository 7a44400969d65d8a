// A stream that the program never sees, for what is done later than the program asked for it.
#pragma once
#include <mutex>

#include "driver/insist.hpp"
#include "driver/own_calls.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond::detail {

// A stream that the program gave with a call may be destroyed, or capture, when the call is over:
// nothing may name it from then on. This one captures nothing and lives as long as its owner. Any
// thread.
class quiet_stream {
 public:
  // Made at the first call.
  call_result get(driver& gpu, stream_handle* out) noexcept {
    const std::lock_guard lock(mutex_);
    if (made_ == nullptr) {
      const own_calls_scope own_calls(gpu);
      if (!own_calls.entered()) return own_calls.entered();
      if (const call_result made = gpu.stream_create(&made_); !made.ok()) {
        made_ = nullptr;
        return made;
      }
    }
    *out = made_;
    return {};
  }
  // At the owner's end, where the driver lives. What waits on the stream goes on.
  void end(driver& gpu) noexcept {
    if (made_ == nullptr) return;
    const own_calls_scope own_calls(gpu);
    static_cast<void>(insist([&] { return gpu.stream_destroy(made_); }));
    made_ = nullptr;
  }

 private:
  std::mutex mutex_;  // held over cuStreamCreate alone, which waits for nothing
  stream_handle made_ = nullptr;
};

// The default stream is there as long as the context; what another handle names may end.
[[nodiscard]] inline bool keeps_its_handle(stream_handle stream) noexcept {
  return stream == nullptr || stream == legacy_stream;
}

// The handles 0, 1 and 2 where another context is current: they mean that one's streams, and inside
// an own_calls_scope, or later, they would mean ours.
[[nodiscard]] inline bool of_another_context(driver& gpu, stream_handle stream) noexcept {
  return (keeps_its_handle(stream) || stream == per_thread_stream) && !gpu.in_own_context();
}

}  // namespace millpond::detail
