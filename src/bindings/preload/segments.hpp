// Blocks for other processes: each is one allocation of the driver (cuMemAlloc), so that a handle
// to it opens at its start, and none is ever moved or carved. Freed blocks are kept and serve
// requests of nearly their size.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "millpond/driver/driver.hpp"

namespace millpond::preload {

// Thread-safe. What is freed must be done on the device: the caller has waited.
class segments {
 public:
  explicit segments(std::shared_ptr<driver> gpu, std::uint64_t limit_bytes)
      : gpu_(std::move(gpu)), limit_(limit_bytes) {}
  // Gives back everything, live blocks too.
  ~segments();

  // 0 where there is no memory, after what was kept has been given back.
  [[nodiscard]] device_address allocate(std::uint64_t bytes);
  // False where the address is not the start of a live block.
  bool deallocate(device_address at);
  [[nodiscard]] bool owns(device_address at) const;
  // Freed by the program, and kept. For errors: it looks at all that is kept.
  [[nodiscard]] bool keeps(device_address at) const;
  void trim();

  struct numbers {
    std::uint64_t live = 0, reserved = 0, peak_reserved = 0;
  };
  [[nodiscard]] numbers count() const;

 private:
  void trim_locked();
  const std::shared_ptr<driver> gpu_;
  const std::uint64_t limit_;
  mutable std::mutex mutex_;
  std::unordered_map<device_address, std::uint64_t> live_;  // bytes of each segment
  std::multimap<std::uint64_t, device_address> kept_;       // by bytes
  numbers now_;
};

}  // namespace millpond::preload
