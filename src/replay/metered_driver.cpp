#include "replay/metered_driver.hpp"

#include <algorithm>

namespace millpond::replay {

void metered_driver::take(std::unordered_map<std::uint64_t, std::uint64_t>& pieces,
                          std::uint64_t key, std::uint64_t bytes, memory_side_of location) {
  const std::lock_guard lock(mutex_);
  pieces[key] = bytes;
  std::uint64_t& now =
      location == memory_side_of::device ? account_.device_bytes : account_.host_bytes;
  std::uint64_t& peak =
      location == memory_side_of::device ? account_.peak_device_bytes : account_.peak_host_bytes;
  now += bytes;
  peak = std::max(peak, now);
}

void metered_driver::give(std::unordered_map<std::uint64_t, std::uint64_t>& pieces,
                          std::uint64_t key, memory_side_of location) {
  const std::lock_guard lock(mutex_);
  const auto found = pieces.find(key);
  if (found == pieces.end()) return;
  (location == memory_side_of::device ? account_.device_bytes : account_.host_bytes) -=
      found->second;
  pieces.erase(found);
}

template <class Call>
call_result metered_driver::waiting(Call&& call) noexcept {
  const std::uint64_t before = clock_();
  const call_result answer = call();
  const std::uint64_t after = clock_();
  const std::lock_guard lock(mutex_);
  ++account_.waiting_calls;
  account_.waiting_ns += after - before;
  return answer;
}

driver_account metered_driver::account() {
  const std::lock_guard lock(mutex_);
  driver_account now = account_;
  for (auto& [pool, high] : pools_) {
    pool_usage usage;
    if (gpu_->pool_get_usage(pool, &usage)) high = std::max(high, usage.reserved_high);
    now.pool_reserved_high += high;
  }
  return now;
}

call_result metered_driver::context_synchronize() noexcept {
  return waiting([this] { return gpu_->context_synchronize(); });
}

call_result metered_driver::memory_allocate(device_address* out, std::uint64_t bytes) noexcept {
  const call_result answer = gpu_->memory_allocate(out, bytes);
  if (answer) take(device_, *out, bytes, memory_side_of::device);
  return answer;
}

call_result metered_driver::memory_free(device_address at) noexcept {
  const call_result answer = waiting([&] { return gpu_->memory_free(at); });
  if (answer) give(device_, at, memory_side_of::device);
  return answer;
}

call_result metered_driver::host_allocate(void** out, std::uint64_t bytes,
                                          host_flags flags) noexcept {
  const call_result answer = gpu_->host_allocate(out, bytes, flags);
  if (answer) take(host_, reinterpret_cast<std::uint64_t>(*out), bytes, memory_side_of::host);
  return answer;
}

call_result metered_driver::host_free(void* at) noexcept {
  const call_result answer = waiting([&] { return gpu_->host_free(at); });
  if (answer) give(host_, reinterpret_cast<std::uint64_t>(at), memory_side_of::host);
  return answer;
}

call_result metered_driver::host_register(void* at, std::uint64_t bytes) noexcept {
  return gpu_->host_register(at, bytes);  // the caller's own memory: nothing more is held
}

call_result metered_driver::managed_allocate(device_address* out, std::uint64_t bytes) noexcept {
  const call_result answer = gpu_->managed_allocate(out, bytes);
  if (answer) take(device_, *out, bytes, memory_side_of::device);
  return answer;
}

call_result metered_driver::pool_create(pool_handle* out, memory_location location,
                                        std::uint64_t max_bytes) noexcept {
  const call_result answer = gpu_->pool_create(out, location, max_bytes);
  if (answer) {
    const std::lock_guard lock(mutex_);
    pools_[*out] = 0;
  }
  return answer;
}

call_result metered_driver::pool_destroy(pool_handle pool) noexcept {
  pool_usage usage;
  const bool known = gpu_->pool_get_usage(pool, &usage).ok();
  {
    const std::lock_guard lock(mutex_);
    const auto found = pools_.find(pool);
    if (found != pools_.end()) {
      account_.pool_reserved_high += std::max(found->second, known ? usage.reserved_high : 0);
      pools_.erase(found);
    }
  }
  return gpu_->pool_destroy(pool);
}

call_result metered_driver::physical_create(physical_handle* out, std::uint64_t bytes,
                                            memory_location location, shareable share) noexcept {
  const call_result answer = gpu_->physical_create(out, bytes, location, share);
  if (answer) {
    const bool device = location == memory_location::device;
    take(device ? device_handles_ : host_handles_, *out, bytes,
         device ? memory_side_of::device : memory_side_of::host);
  }
  return answer;
}

call_result metered_driver::physical_release(physical_handle handle) noexcept {
  const call_result answer = gpu_->physical_release(handle);
  if (answer) {
    give(device_handles_, handle, memory_side_of::device);
    give(host_handles_, handle, memory_side_of::host);
  }
  return answer;
}

}  // namespace millpond::replay
