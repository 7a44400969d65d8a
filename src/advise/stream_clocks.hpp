// What is ordered before what: a vector clock a stream, and one of the host, over the recorded
// order of launches, events, waits and synchronises.
//
// The host is one actor here though it has many threads: what one thread has waited for, every
// thread is taken to know. That can miss a race between threads and never invents one. Streams that
// the trace does not say are non-blocking wait for the default stream of their device, and it for
// them, as CUDA has it.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace millpond::advise {

// One piece of work on a stream: the stream's slot and how many it had been given with it.
struct epoch {
  std::uint32_t slot = UINT32_MAX;  // UINT32_MAX: not tracked; taken as known to everyone
  std::uint32_t value = 0;
  [[nodiscard]] bool tracked() const noexcept { return slot != UINT32_MAX; }
};

// Not thread-safe. Costs one addition a launch, and work in the number of streams where streams
// meet.
class stream_clocks {
 public:
  static constexpr std::uint32_t most_streams = 4096;

  void stream_created(std::uint64_t stream, std::uint16_t device, bool waits_for_default);
  // Work was given to the stream.
  epoch issue(std::uint64_t stream, std::uint16_t device);
  void record(std::uint64_t event, std::uint64_t stream, std::uint16_t device);
  void wait(std::uint64_t event, std::uint64_t stream, std::uint16_t device);
  void host_waits_for_stream(std::uint64_t stream, std::uint16_t device);
  void host_waits_for_event(std::uint64_t event);
  void host_waits_for_device(std::uint16_t device);

  // Whether the newest work of this stream is ordered after `work`. True for what is not tracked.
  [[nodiscard]] bool knows(std::uint64_t stream, std::uint16_t device, epoch work);
  [[nodiscard]] bool host_knows(epoch work) const noexcept;
  // Whether work was issued on the device that the host has not waited for.
  [[nodiscard]] bool device_busy(std::uint16_t device) const noexcept;
  [[nodiscard]] std::uint64_t streams() const noexcept { return caches_.size(); }
  [[nodiscard]] bool overflowed() const noexcept { return overflowed_; }

 private:
  using clock = std::vector<std::uint32_t>;
  struct cache {
    clock seen;  // seen[slot of this cache] counts its own work
    std::uint64_t host_version = 0;
    std::uint64_t version = 0;          // of `seen`
    std::uint64_t default_version = 0;  // of the default stream's clock when it was last taken in
    std::uint16_t device = 0;
    bool is_default = false;
    bool waits_for_default = true;
  };
  static void join(clock& into, const clock& from);
  [[nodiscard]] static std::uint32_t at(const clock& of, std::uint32_t slot) noexcept {
    return slot < of.size() ? of[slot] : 0;
  }
  std::uint32_t slot_of(std::uint64_t stream, std::uint16_t device);
  cache& brought_up(
      std::uint32_t slot);  // with the host's and the default stream's knowledge taken in

  std::vector<cache> caches_;
  std::unordered_map<std::uint64_t, std::uint32_t>
      slots_;  // by stream; the default stream by device
  std::unordered_map<std::uint64_t, clock> events_;
  std::unordered_map<std::uint32_t, std::uint32_t> defaults_;  // device -> slot
  clock host_;
  std::uint64_t host_version_ = 1;
  bool overflowed_ = false;
};

}  // namespace millpond::advise
