// What PyTorch's memory viewer shows: the last allocations and frees, and the blocks that are live,
// with the Python frames of their callers where PyTorch's entry points tell them. Off until asked
// for.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "millpond/driver/driver.hpp"

namespace millpond::torch {

class history {
 public:
  enum class action : std::uint8_t { alloc, free_requested, oom };
  struct entry {
    action what{};
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t stream = 0;
    std::uint64_t time_us = 0;
    std::uint32_t stack = 0;  // index of its frames; 0 for none
  };

  // most_entries: the oldest go first. Turning it on empties it.
  void start(std::uint64_t most_entries);
  void stop() noexcept { on_.store(false, std::memory_order_relaxed); }
  // Noted by allocations that come later, no more: threads in a call may miss the change.
  [[nodiscard]] bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  void note(action what, std::uint64_t address, std::uint64_t bytes, stream_handle stream);

  // As JSON: {"entries": [[action, address, bytes, stream, time_us, stack]...], "live": [...],
  // "stacks": [text...]}, a stack's text being "name\x1f" "file\x1f" "line" a frame, frames parted
  // by "\x1e".
  [[nodiscard]] std::string json() const;

  // Who tells the frames of the calling thread, or nullptr.
  using frame_source = std::uint64_t (*)(char* text, std::uint64_t most_bytes);
  static void set_frame_source(frame_source source) noexcept;

 private:
  std::atomic<bool> on_{false};
  mutable std::mutex mutex_;
  std::deque<entry> entries_;
  std::map<std::uint64_t, entry> live_;
  std::map<std::string, std::uint32_t> stacks_;
  std::uint64_t most_ = 0;
};

}  // namespace millpond::torch
