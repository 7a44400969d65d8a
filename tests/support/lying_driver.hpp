// A driver that breaks one rule at a time, for tests that must see it caught: what the pool asks is
// answered wrongly, or what it orders is not done.
#pragma once
#include <map>
#include <mutex>
#include <vector>

#include "support/forwarding_driver.hpp"

namespace millpond {

enum class lie : std::uint8_t {
  none,
  event_passed_early,  // cuEventQuery: always passed
  event_not_recorded,  // cuEventRecord does nothing: the event is as it was made, which is passed
  identity_is_the_handle,   // cuStreamGetId answers the handle's value
  nothing_captures,         // cuStreamGetCaptureInfo: no stream captures
  no_capture_mode,          // cuThreadExchangeStreamCaptureMode is not carried out
  context_event_empty,      // cuCtxRecordEvent does nothing
  context_event_on_stream,  // cuCtxRecordEvent records on one new stream: not behind a destroyed
                            // stream's work
  wait_not_put,             // cuStreamWaitEvent does nothing
  graph_gone_at_once,       // a graph's release is reported while the graph lives
  two_maps_of_one_memory,   // cuMemMap of a new handle maps an older one again
  lossy_unmap,              // cuMemUnmap takes a live mapping instead of the one named
};

class lying_driver final : public forwarding_driver {
 public:
  lying_driver(std::shared_ptr<driver> to, lie which)
      : forwarding_driver(std::move(to)), lie_(which) {
    if (lie_ == lie::context_event_on_stream) static_cast<void>(this->to().stream_create(&other_));
  }
  ~lying_driver() override {
    if (other_ != nullptr) static_cast<void>(to().stream_destroy(other_));
  }

  call_result event_query(event_handle e) noexcept override {
    if (lie_ == lie::event_passed_early) return {driver_status::success, "cuEventQuery"};
    return forwarding_driver::event_query(e);
  }
  call_result event_record(event_handle e, stream_handle s) noexcept override {
    if (lie_ == lie::event_not_recorded) return {driver_status::success, "cuEventRecord"};
    return forwarding_driver::event_record(e, s);
  }
  call_result stream_id(stream_handle s, std::uint64_t* id) noexcept override {
    if (lie_ != lie::identity_is_the_handle) return forwarding_driver::stream_id(s, id);
    *id = reinterpret_cast<std::uintptr_t>(s);
    return {driver_status::success, "cuStreamGetId"};
  }
  call_result stream_capture(stream_handle s, capture_info* out) noexcept override {
    if (lie_ != lie::nothing_captures) return forwarding_driver::stream_capture(s, out);
    *out = {};
    return {driver_status::success, "cuStreamGetCaptureInfo"};
  }
  call_result exchange_capture_mode(capture_mode* mode) noexcept override {
    if (lie_ == lie::no_capture_mode)
      return {driver_status::success, "cuThreadExchangeStreamCaptureMode"};
    return forwarding_driver::exchange_capture_mode(mode);
  }
  call_result context_record_event(event_handle e) noexcept override {
    if (lie_ == lie::context_event_empty) return {driver_status::success, "cuCtxRecordEvent"};
    if (lie_ == lie::context_event_on_stream) return to().event_record(e, other_);
    return forwarding_driver::context_record_event(e);
  }
  call_result stream_wait_event(stream_handle s, event_handle e) noexcept override {
    if (lie_ == lie::wait_not_put) return {driver_status::success, "cuStreamWaitEvent"};
    return forwarding_driver::stream_wait_event(s, e);
  }
  call_result graph_retain(graph_handle graph, void (*destroy)(void*),
                           void* data) noexcept override {
    if (lie_ != lie::graph_gone_at_once)
      return forwarding_driver::graph_retain(graph, destroy, data);
    early_.emplace_back(destroy, data);
    return {driver_status::success, "cuGraphRetainUserObject"};
  }
  // The moment of the lie.
  void tell_graphs_gone() {
    for (const auto& [destroy, data] : std::exchange(early_, {})) destroy(data);
  }
  call_result map(device_address at, std::uint64_t bytes,
                  physical_handle handle) noexcept override {
    mapped_[at] = bytes;
    const auto known = first_.emplace(bytes, handle).first;
    return forwarding_driver::map(at, bytes,
                                  lie_ == lie::two_maps_of_one_memory ? known->second : handle);
  }
  call_result unmap(device_address at, std::uint64_t bytes) noexcept override {
    if (lie_ == lie::lossy_unmap && victim_ != 0) {
      at = std::exchange(victim_, 0);
      bytes = mapped_[at];
    }
    return forwarding_driver::unmap(at, bytes);
  }
  // The mapping that the next unmap takes.
  void aim(device_address at) { victim_ = at; }

 private:
  const lie lie_;
  stream_handle other_ = nullptr;
  device_address victim_ = 0;
  std::map<std::uint64_t, physical_handle> first_;
  std::map<device_address, std::uint64_t> mapped_;
  std::vector<std::pair<void (*)(void*), void*>> early_;
};

}  // namespace millpond
