// When the host waited for which stream, for questions that come after the last event.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace millpond::advise {

// 4 bytes a wait. Events are given in order.
class wait_log {
 public:
  void waited_for_stream(std::uint64_t stream, std::uint16_t device, std::uint32_t event) {
    streams_[{stream, stream == 0 ? device : std::uint16_t{0}}].push_back(event);
  }
  void waited_for_device(std::uint16_t device, std::uint32_t event) {
    devices_[device].push_back(event);
  }
  // Whether the host waited between the two events for all that this stream had been given.
  [[nodiscard]] bool stream_between(std::uint64_t stream, std::uint16_t device, std::uint32_t from,
                                    std::uint32_t to) const {
    const auto found = streams_.find({stream, stream == 0 ? device : std::uint16_t{0}});
    return (found != streams_.end() && any(found->second, from, to)) ||
           device_between(device, from, to);
  }
  [[nodiscard]] bool device_between(std::uint16_t device, std::uint32_t from,
                                    std::uint32_t to) const {
    const auto found = devices_.find(device);
    return found != devices_.end() && any(found->second, from, to);
  }

 private:
  static bool any(const std::vector<std::uint32_t>& waits, std::uint32_t from, std::uint32_t to) {
    const auto next = std::ranges::upper_bound(waits, from);
    return next != waits.end() && *next < to;
  }
  std::map<std::pair<std::uint64_t, std::uint16_t>, std::vector<std::uint32_t>> streams_;
  std::map<std::uint16_t, std::vector<std::uint32_t>> devices_;
};

}  // namespace millpond::advise
