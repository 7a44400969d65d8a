// Events made once and used again. Thread-safe; its lock is a leaf and is not held over a driver
// call.
#pragma once
#include <mutex>
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
    }
    return gpu_.event_create(out);
  }
  void put(event_handle event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  driver& gpu_;
  std::mutex mutex_;
  std::vector<event_handle> free_;
};

}  // namespace millpond::order
