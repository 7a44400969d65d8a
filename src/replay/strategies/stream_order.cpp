#include "replay/strategy.hpp"

namespace millpond::replay {

result<void> stream_order::prepare(std::shared_ptr<driver> gpu,
                                   std::span<const stream_handle> streams) {
  gpu_ = std::move(gpu);
  streams_.assign(streams.begin(), streams.end());
  events_.assign(streams.size(), nullptr);
  return {};
}

result<void> stream_order::order(std::uint16_t from, std::uint16_t to) {
  if (from == to) return {};
  if (events_[from] == nullptr) {
    if (const auto made = gpu_->event_create(&events_[from]); !made) {
      events_[from] = nullptr;
      return to_error(made, "making an event");
    }
  }
  if (const auto done = gpu_->event_record(events_[from], streams_[from]); !done) {
    return to_error(done, "recording an event");
  }
  if (const auto done = gpu_->stream_wait_event(streams_[to], events_[from]); !done) {
    return to_error(done, "ordering two streams");
  }
  return {};
}

result<void> stream_order::finish() {
  result<void> answer;
  for (event_handle& event : events_) {
    if (event == nullptr) continue;
    if (const auto done = gpu_->event_destroy(event); !done)
      answer = to_error(done, "destroying an event");
    event = nullptr;
  }
  return answer;
}

}  // namespace millpond::replay
