// Host memory that a workload's copies go through: one buffer a stream, pinned or pageable, taken
// once.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "millpond/driver/driver.hpp"
#include "replay/strategy.hpp"

namespace millpond::replay {

class stages {
 public:
  enum class direction : std::uint8_t { in, out };

  stages() = default;
  stages(const stages&) = delete;
  stages& operator=(const stages&) = delete;
  ~stages();

  // Buffers of at most 256 MiB: larger copies go in pieces.
  [[nodiscard]] result<void> prepare(std::shared_ptr<driver> gpu, staging kind,
                                     std::uint64_t largest, std::size_t streams);
  // Takes a stream's buffer now, so that its first copy does not pay for it.
  [[nodiscard]] result<void> make_ready(std::size_t index);
  [[nodiscard]] result<void> copy(device_address block, std::uint64_t bytes, stream_handle stream,
                                  std::size_t index, direction way);
  // After the device is done with them.
  [[nodiscard]] result<void> finish();

 private:
  result<void*> buffer(std::size_t index);

  std::shared_ptr<driver> gpu_;
  staging kind_ = staging::none;
  std::uint64_t bytes_ = 0;
  std::vector<void*> buffers_;  // made when first needed
};

}  // namespace millpond::replay
