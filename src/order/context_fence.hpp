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
#include <new>
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
      // All host memory before anything is changed.
      try {
        entries_.emplace_back();
      } catch (const std::bad_alloc&) {
        events.put(event);
        if (failure != nullptr) *failure = no_host_memory;
        return false;
      }
      entry& made = entries_.back();
      try {
        made.covers.reserve(lines.size());
      } catch (const std::bad_alloc&) {
        entries_.pop_back();
        events.put(event);
        if (failure != nullptr) *failure = no_host_memory;
        return false;
      }
      // Recorded before the batches are closed would miss a free between the two, so: close, then
      // record.
      made.event = event;
      for (const auto& l : lines) {
        if (const std::uint64_t batch = l->close_open(); batch != 0)
          made.covers.push_back({l, batch});
      }
      if (made.covers.empty()) {
        entries_.pop_back();
        events.put(event);
        return true;
      }
      answer = gpu.context_record_event(event);
      if (answer.ok()) return true;
      for (const auto& [l, batch] : made.covers)
        l->join(0);  // dirty again: a later fence covers it
      entries_.pop_back();
      events.put(event);
    }
    if (failure != nullptr) *failure = answer;
    return false;
  }

  bool poll(driver& gpu, event_cache& events, std::uint64_t* queries, call_result* failure) {
    const std::lock_guard lock(mutex_);
    // A later event of the context is behind all work that an earlier one is behind.
    std::size_t passed = 0;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      ++*queries;
      const call_result answer = gpu.event_query(entries_[i].event);
      if (answer.status == driver_status::not_ready) break;
      entries_[i].refused = !answer.ok();
      if (answer.ok()) {
        passed = i + 1;
      } else if (failure != nullptr) {
        *failure = answer;
      }
    }
    for (std::size_t i = 0; i < passed; ++i) {
      const entry& e = entries_.front();
      for (const auto& [l, batch] : e.covers) l->complete(batch);
      if (e.refused)
        events.discard(e.event);
      else
        events.put(e.event);
      entries_.pop_front();
    }
    return passed != 0;
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
  static constexpr call_result no_host_memory{driver_status::out_of_memory,
                                              "host memory for a fence over the context"};
  struct entry {
    event_handle event = nullptr;
    bool refused = false;  // the driver did not answer for it when it was last asked
    std::vector<std::pair<std::shared_ptr<stream_batches>, std::uint64_t>> covers;
  };
  mutable std::mutex mutex_;  // before that of any batches
  std::deque<entry> entries_;
};

}  // namespace millpond::order
