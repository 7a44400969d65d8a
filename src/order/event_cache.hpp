// Events made once and used again. Thread-safe; its lock is a leaf and is not held over a driver
// call.
#pragma once
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "millpond/driver/driver.hpp"

namespace millpond::order {

class event_cache {
 public:
  explicit event_cache(driver& gpu) noexcept : gpu_(gpu) {}
  // The events that were given back, for the caller to destroy.
  [[nodiscard]] std::vector<event_handle> take_all() {
    const std::lock_guard lock(mutex_);
    return std::exchange(free_, {});
  }
  call_result get(event_handle* out) {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        *out = free_.back();
        free_.pop_back();
        return {};
      }
      // Room for it to come back, so that giving back never needs host memory.
      try {
        free_.reserve(made_ + 1);
      } catch (const std::bad_alloc&) {
        return {driver_status::out_of_memory, "host memory for an event"};
      }
      ++made_;
    }
    const call_result answer = gpu_.event_create(out);
    if (!answer.ok()) {
      const std::lock_guard lock(mutex_);
      --made_;
    }
    return answer;
  }
  // An event that the driver no longer answers for: nobody gets it again.
  void discard(event_handle event) noexcept {
    static_cast<void>(gpu_.event_destroy(event));
    const std::lock_guard lock(mutex_);
    --made_;
  }
  void put(event_handle event) noexcept {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  driver& gpu_;
  std::mutex mutex_;
  std::size_t made_ = 0;            // events that there are
  std::vector<event_handle> free_;  // with room for all of them
};

}  // namespace millpond::order
