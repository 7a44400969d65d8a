// Fences for frees that no event on their own stream can cover any more: a stream that was
// destroyed with frees not yet sealed, a released graph. One event recorded on the whole context
// (cuCtxRecordEvent) is behind all work put on any stream so far, a destroyed stream's too; an
// event on a new stream or on the legacy stream is not (measured on an H200, driver 580.159).
// Inside any capture that call is refused and breaks the capture, so the caller says when no
// capture is known to run.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "order/stream_batches.hpp"

namespace millpond::order {

class context_fence {
 public:
  // Closes the open batches of these streams behind one context event. False where the driver
  // refused; then the batches stay as they were.
  bool seal(driver& gpu, event_cache& events,
            const std::vector<std::shared_ptr<stream_batches>>& lines, call_result* failure) {
    const std::lock_guard lock(mutex_);
    event_handle event = nullptr;
    call_result answer = events.get(&event);
    if (answer.ok()) {
      // Recorded before the batches are closed would miss a free between the two, so: close, then
      // record.
      entry made{event, {}};
      for (const auto& l : lines) {
        if (const std::uint64_t batch = l->close_open(); batch != 0)
          made.covers.push_back({l, batch});
      }
      if (made.covers.empty()) {
        events.put(event);
        return true;
      }
      answer = gpu.context_record_event(event);
      if (answer.ok()) {
        entries_.push_back(std::move(made));
        return true;
      }
      for (const auto& [l, batch] : made.covers)
        l->join(0);  // dirty again: a later fence covers it
      events.put(event);
    }
    if (failure != nullptr) *failure = answer;
    return false;
  }

  bool poll(driver& gpu, event_cache& events, std::uint64_t* queries, call_result* failure) {
    const std::lock_guard lock(mutex_);
    bool progress = false;
    while (!entries_.empty()) {
      ++*queries;
      if (const call_result answer = gpu.event_query(entries_.front().event); !answer.ok()) {
        if (answer.status != driver_status::not_ready && failure != nullptr) *failure = answer;
        break;
      }
      for (const auto& [l, batch] : entries_.front().covers) l->complete(batch);
      events.put(entries_.front().event);
      entries_.pop_front();
      progress = true;
    }
    return progress;
  }

  [[nodiscard]] event_handle nearest() const {
    const std::lock_guard lock(mutex_);
    return entries_.empty() ? nullptr : entries_.front().event;
  }

  void drain(event_cache& events) {
    const std::lock_guard lock(mutex_);
    for (const entry& e : entries_) {
      for (const auto& [l, batch] : e.covers) l->complete(batch);
      events.put(e.event);
    }
    entries_.clear();
  }

 private:
  struct entry {
    event_handle event;
    std::vector<std::pair<std::shared_ptr<stream_batches>, std::uint64_t>> covers;
  };
  mutable std::mutex mutex_;  // before that of any batches
  std::deque<entry> entries_;
};

}  // namespace millpond::order
