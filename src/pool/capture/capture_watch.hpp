// Which streams capture, as far as the pool has seen: what a fence over the context would break.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/mutex.hpp"
#include "millpond/driver/driver.hpp"

namespace millpond {

// Any thread; its lock is a leaf. A capture counts as running until one of its streams is seen out
// of it or its graph is gone: no stream handle but the one in the caller's hand may be asked, since
// every driver call on a destroyed stream's handle ends the process (H200, driver 580.159).
class capture_watch {
 public:
  explicit capture_watch(driver& gpu) : gpu_(gpu) { capturing_.reserve(usual); }

  // The stream captures. The capture's number where it is known, so that the end of its graph tells
  // too; else 0.
  void note(stream_handle stream, std::uint64_t capture_id) noexcept;
  // The stream was seen outside: whatever capture it was in has ended, for all of its streams.
  void note_end(stream_handle stream) noexcept;
  // Asks the driver for that, where the user's own call names the stream.
  void look_for_end(stream_handle stream) noexcept;
  // The graph of that capture is gone.
  void forget(std::uint64_t capture_id) noexcept;

  // Whether a capture may run: cuCtxRecordEvent would break it. Captures that never asked this pool
  // for memory are known only where the legacy stream tells of them, which it does for blocking
  // streams.
  [[nodiscard]] bool may_run() noexcept;
  // How many streams were seen to capture.
  [[nodiscard]] std::uint64_t count() const noexcept {
    return count_.load(std::memory_order_relaxed);
  }
  // Whether any was, and whether this one may: looks for the fast path.
  [[nodiscard]] bool any() const noexcept { return bits_.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] bool may_capture(stream_handle stream) const noexcept {
    const std::uint64_t bits = bits_.load(std::memory_order_relaxed);
    return bits != 0 && (bits & bit_of(key_of(stream))) != 0;
  }
  // A stream within a capture. 0, 1 and 2 are other streams on other threads, so there the thread
  // is part of the key.
  [[nodiscard]] static std::uint64_t key_of(stream_handle stream) noexcept;

 private:
  // One of 64.
  [[nodiscard]] static constexpr std::uint64_t bit_of(std::uint64_t key) noexcept {
    return std::uint64_t{1} << ((key * 0x9e3779b97f4a7c15ULL) >> 58);
  }
  void changed() noexcept MILLPOND_REQUIRES(mutex_);

  driver& gpu_;
  mutex mutex_;
  struct capturing {
    std::uint64_t key;
    std::uint64_t capture_id;  // 0: not known
  };
  static constexpr std::size_t usual = 32;  // with room from the start
  std::vector<capturing> capturing_ MILLPOND_GUARDED_BY(mutex_);
  // One found no host memory to be noted: from then on a capture may always run.
  bool missed_ MILLPOND_GUARDED_BY(mutex_) = false;
  // Their number and a bit for each key, for looks without the lock: they publish nothing, since a
  // thread asks them about its own streams alone.
  std::atomic<std::uint64_t> count_{0}, bits_{0};
};

}  // namespace millpond
