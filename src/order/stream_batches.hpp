// One stream's batches. A free joins the open batch; sealing closes it with one recorded event;
// when that event has passed, every free of the batch is behind the GPU and its memory may serve
// any stream.
#pragma once
#include <cstdint>
#include <deque>
#include <mutex>

#include "base/atomic.hpp"
#include "millpond/driver/driver.hpp"
#include "order/event_cache.hpp"

namespace millpond::order {

enum class seal_outcome : std::uint8_t {
  sealed,
  nothing,           // no free since the last seal
  capturing,         // the stream captures: an event would become part of the user's graph
  beside_a_capture,  // a default stream that may be asked nothing, while a blocking one captures
  gone,              // the handle is another stream's by now, or nobody's: needs something wider
  failed,            // a driver call failed; the frees stay in the open batch
};

// Thread-safe. join() takes no lock. The mutex is held over cuEventRecord and cuEventQuery,
// which do not wait for the GPU, and over no other lock but the event cache's.
class stream_batches {
 public:
  stream_batches(std::uint64_t id, stream_handle handle) noexcept : id_(id), handle_(handle) {}

  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] stream_handle handle() const noexcept { return handle_; }

  // The batch that a free made now belongs to. Its number is read before the batch is marked dirty,
  // and sealing cleans the mark before it takes the next number and records its event after: so a
  // free that was given this number is behind that event, and a free that was given the next
  // leaves its mark standing.
  std::uint64_t join(std::uint64_t bytes) noexcept {
    const std::uint64_t batch = open_.load(std::memory_order_acquire);
    dirty_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    dirty_.store(true, std::memory_order_release);
    return batch;
  }
  [[nodiscard]] bool dirty() const noexcept { return dirty_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t dirty_bytes() const noexcept {
    return dirty_bytes_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t completed() const noexcept {
    return completed_.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::uint64_t open() const noexcept {
    return open_.load(std::memory_order_acquire);
  }
  [[nodiscard]] bool gone() const noexcept { return gone_.load(std::memory_order_relaxed); }
  void set_gone() noexcept { gone_.store(true, std::memory_order_relaxed); }
  void set_here() noexcept {
    if (gone()) gone_.store(false, std::memory_order_relaxed);
  }
  [[nodiscard]] bool quiet() const {
    const std::lock_guard lock(mutex_);
    return sealed_.empty() && !dirty_.load(std::memory_order_relaxed);
  }

  // Closes the open batch behind an event on the stream. Call it only while the caller's own call
  // names the stream, so that the handle is alive. Identity and capture are asked first.
  seal_outcome seal(driver& gpu, event_cache& events, call_result* failure);
  // Closes the open batch and hands it to something wider; the answer is its number, 0 where it is
  // empty.
  std::uint64_t close_open();
  // Frees up to `batch` have passed, as something wider says.
  void complete(std::uint64_t batch) noexcept;

  // Asks the oldest events, oldest first, until one has not passed. True where a batch completed.
  // Events pass in their order, so one that the driver refuses to answer for is behind a later one.
  bool poll(driver& gpu, event_cache& events, std::uint64_t* queries, call_result* failure);
  // The oldest sealed event, or nullptr. It stays this one's: valid until a poll completes it.
  [[nodiscard]] event_handle nearest() const;
  // Makes `stream` wait for the newest sealed batch and answers that batch; 0 where none or it
  // failed.
  std::uint64_t make_wait(driver& gpu, stream_handle stream, call_result* failure);
  // Gives the events back without asking: only after the device was synchronised.
  void drain(event_cache& events);

 private:
  struct sealed_batch {
    std::uint64_t batch;
    event_handle event;
    bool refused = false;  // the driver did not answer for it when it was last asked
  };

  const std::uint64_t id_;
  const stream_handle handle_;
  atomic<std::uint64_t> open_{1};
  atomic<std::uint64_t> completed_{0};  // publishes that the GPU has passed the batch
  atomic<std::uint64_t> dirty_bytes_{0};
  atomic<bool> dirty_{false};
  atomic<bool> gone_{false};
  mutable usual_mutex mutex_;
  std::deque<sealed_batch> sealed_;
};

}  // namespace millpond::order
