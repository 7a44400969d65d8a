// Notes each driver call that names a destroyed stream: on a card such a call ends the process, or
// means another stream that has the handle by then.
#pragma once
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "support/forwarding_driver.hpp"

namespace millpond {

class dead_streams final : public forwarding_driver {
 public:
  using forwarding_driver::forwarding_driver;

  // "cuStreamGetId", once a call.
  [[nodiscard]] std::vector<std::string> named() const {
    const std::lock_guard lock(mutex_);
    return named_;
  }

  call_result stream_create(stream_handle* out) noexcept override {
    const call_result made = to().stream_create(out);
    const std::lock_guard lock(mutex_);
    if (made.ok()) dead_.erase(*out);
    return made;
  }
  call_result stream_destroy(stream_handle s) noexcept override {
    look(s, "cuStreamDestroy");
    {
      const std::lock_guard lock(mutex_);
      dead_.insert(s);
    }
    return to().stream_destroy(s);
  }
  call_result stream_id(stream_handle s, std::uint64_t* id) noexcept override {
    look(s, "cuStreamGetId");
    return to().stream_id(s, id);
  }
  call_result stream_capture(stream_handle s, capture_info* out) noexcept override {
    look(s, "cuStreamGetCaptureInfo");
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
  call_result pool_free(device_address at, stream_handle s) noexcept override {
    look(s, "cuMemFreeAsync");
    return to().pool_free(at, s);
  }
  call_result prefetch_async(device_address at, std::uint64_t bytes, memory_location where,
                             stream_handle s) noexcept override {
    look(s, "cuMemPrefetchAsync");
    return to().prefetch_async(at, bytes, where, s);
  }

 private:
  void look(stream_handle s, const char* call) {
    const std::lock_guard lock(mutex_);
    if (dead_.contains(s)) named_.emplace_back(call);
  }
  mutable std::mutex mutex_;
  std::set<stream_handle> dead_;
  std::vector<std::string> named_;
};

}  // namespace millpond
