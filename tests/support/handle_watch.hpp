// Watches which streams a library names to the driver while it serves one call of the program. It
// may name the stream of that call, and streams that the program promised to keep; a handle of any
// other stream may be dead by now, and then the real driver crashes.
#pragma once
#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "support/forwarding_driver.hpp"

namespace millpond {

class handle_watch final : public forwarding_driver {
 public:
  using forwarding_driver::forwarding_driver;

  // While one lives on a thread, that thread's calls serve a call of the program that names
  // `stream`.
  class serving {
   public:
    explicit serving(stream_handle stream) noexcept : before_(now()) { now() = {true, stream}; }
    ~serving() { now() = before_; }
    serving(const serving&) = delete;
    serving& operator=(const serving&) = delete;

   private:
    friend class handle_watch;
    struct state {
      bool on = false;
      stream_handle stream = nullptr;
    };
    static state& now() noexcept {
      static thread_local state here;
      return here;
    }
    state before_;
  };
  void promise(stream_handle stream) {
    const std::lock_guard lock(mutex_);
    promised_.push_back(stream);
  }
  [[nodiscard]] std::vector<std::string> strangers() const {
    const std::lock_guard lock(mutex_);
    return strangers_;
  }

  call_result stream_id(stream_handle s, std::uint64_t* id) noexcept override {
    look(s, "cuStreamGetId");
    return to().stream_id(s, id);
  }
  call_result stream_device(stream_handle s, int* ordinal) noexcept override {
    look(s, "cuStreamGetCtx");
    return to().stream_device(s, ordinal);
  }
  call_result stream_capture(stream_handle s, capture_info* out) noexcept override {
    if (s != legacy_stream) look(s, "cuStreamGetCaptureInfo");
    return to().stream_capture(s, out);
  }
  call_result stream_query(stream_handle s) noexcept override {
    look(s, "cuStreamQuery");
    return to().stream_query(s);
  }
  call_result stream_synchronize(stream_handle s) noexcept override {
    look(s, "cuStreamSynchronize");
    return to().stream_synchronize(s);
  }
  call_result stream_wait_event(stream_handle s, event_handle e) noexcept override {
    look(s, "cuStreamWaitEvent");
    return to().stream_wait_event(s, e);
  }
  call_result event_record(event_handle e, stream_handle s) noexcept override {
    look(s, "cuEventRecord");
    return to().event_record(e, s);
  }

 private:
  void look(stream_handle s, const char* call) {
    const auto& now = serving::now();
    if (!now.on || s == now.stream) return;
    const std::lock_guard lock(mutex_);
    if (std::find(promised_.begin(), promised_.end(), s) != promised_.end()) return;
    strangers_.push_back(std::string(call) + " named a stream that the program's call did not");
  }
  mutable std::mutex mutex_;
  std::vector<stream_handle> promised_;
  std::vector<std::string> strangers_;
};

}  // namespace millpond
