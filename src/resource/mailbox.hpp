// A mailbox: what one lane frees of what another lane of the same stream handed out, on its way back. The sender writes words,
// the receiver reads them, and neither makes an atomic read-modify-write: what passes between their caches is a line in eight
// blocks, and no store waits for it.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "base/prefetch.hpp"
#include "heap/segment.hpp"
#include "resource/own_counter.hpp"

namespace millpond {

struct stream_lane;

// One sender at a time and one receiver at a time: whoever holds the lock of the sending lane, and of the receiving one. A block
// that was put publishes what its record says.
class mailbox {
 public:
  mailbox(stream_lane& sender, stream_lane& receiver) noexcept : sender_(&sender), receiver_(&receiver) {}

  // The lanes; neither is asked once it has left the pool.
  [[nodiscard]] stream_lane& sender() const noexcept { return *sender_; }
  [[nodiscard]] stream_lane& receiver() const noexcept { return *receiver_; }

  // Sender. False where the box is full, or would hold more than `limit` bytes.
  [[nodiscard]] bool put(heap::segment* block, std::uint64_t limit) noexcept {
    if (__builtin_expect(full(block->bytes, limit), 0)) {
      seen_taken_ = taken_.load(std::memory_order_acquire);
      seen_taken_bytes_ = taken_bytes_.get();
      if (full(block->bytes, limit)) return false;
    }
    words_[put_ % slots].store(reinterpret_cast<std::uintptr_t>(block) | lap_of(put_), std::memory_order_release);
    ++put_;
    put_bytes_.add(block->bytes);
    return true;
  }

  // Receiver. The oldest block, or nullptr.
  [[nodiscard]] heap::segment* front() const noexcept {
    const std::uintptr_t word = words_[next_ % slots].load(std::memory_order_acquire);
    return (word & 1) == lap_of(next_) ? reinterpret_cast<heap::segment*>(word & ~std::uintptr_t{1}) : nullptr;
  }
  // The records of the next few are fetched, all at once, while the first is looked at.
  void expect() const noexcept {
    for (std::uint64_t ahead = 0; ahead < 8; ++ahead) {
      const std::uintptr_t word = words_[(next_ + ahead) % slots].load(std::memory_order_relaxed);
      if ((word & 1) != lap_of(next_ + ahead)) break;
      prefetch_to_write(reinterpret_cast<const void*>(word));
    }
  }
  // It is taken; its place may be used again once that is told.
  void take_front(const heap::segment& block) noexcept {
    next_bytes_ += block.bytes;
    ++next_;
  }
  void tell() noexcept {
    if (taken_.load(std::memory_order_relaxed) == next_) return;
    taken_bytes_.add(next_bytes_);
    next_bytes_ = 0;
    taken_.store(next_, std::memory_order_release);
  }

  // Receiver. Bytes on their way, told or not; what is being put at the moment may be missing.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    const std::uint64_t out = taken_bytes_.get() + next_bytes_;
    const std::uint64_t in = put_bytes_.get();
    return in > out ? in - out : 0;
  }

  static constexpr std::size_t slots = 64;

 private:
  // Of a word: whether it is of an odd or an even round, so that the receiver knows a new one from the one that it took
  // there a round ago. Records are aligned, their lowest bit is free; the first round is odd, since words begin as 0.
  [[nodiscard]] static std::uintptr_t lap_of(std::uint64_t place) noexcept { return (place / slots + 1) & 1; }
  [[nodiscard]] bool full(std::uint64_t more, std::uint64_t limit) const noexcept {
    return put_ - seen_taken_ == slots || put_bytes_.get() - seen_taken_bytes_ + more > limit;
  }

  stream_lane* const sender_;
  stream_lane* const receiver_;
  alignas(128) std::uint64_t put_ = 0;  // the sender's line
  std::uint64_t seen_taken_ = 0, seen_taken_bytes_ = 0;
  own_counter put_bytes_;
  alignas(128) std::uint64_t next_ = 0;  // the receiver's line
  std::uint64_t next_bytes_ = 0;         // taken and not told
  own_counter taken_bytes_;
  std::atomic<std::uint64_t> taken_{0};  // publishes that the words before it may be overwritten
  alignas(128) std::array<std::atomic<std::uintptr_t>, slots> words_{};
};

}  // namespace millpond
