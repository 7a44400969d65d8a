// A mailbox: what one lane frees of what another lane of the same stream handed out, on its way back. A word says which block
// and with how many bytes it was freed; the sender reads and writes nothing else of the block, so that its record stays in the
// cache of the thread that hands it out. Words are told of by the cache line, with one store: what passes between the two
// cores is a line in eight blocks and the place up to which there are words. Neither side makes an atomic read-modify-write.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "heap/segment.hpp"

namespace millpond {

struct stream_lane;

// One sender at a time and one receiver at a time: whoever holds the lock of the sending lane, and of the receiving one.
class mailbox {
 public:
  mailbox(stream_lane& sender, stream_lane& receiver) noexcept : sender_(&sender), receiver_(&receiver) {}

  // The lanes; neither is asked once it has left the pool.
  [[nodiscard]] stream_lane& sender() const noexcept { return *sender_; }
  [[nodiscard]] stream_lane& receiver() const noexcept { return *receiver_; }

  static constexpr std::size_t slots = 64;
  // A word has the address in granules above, the bytes below: larger blocks and higher addresses do not travel.
  static constexpr unsigned size_bits = 25;
  static constexpr std::uint64_t most_bytes = (std::uint64_t{1} << size_bits) - 1;
  static constexpr std::uint64_t address_end = heap::granule << (64 - size_bits);

  // Sender. False where the box is full, or would hold blocks of more than `limit` bytes, or the block does not travel. The
  // receiver may see it once send() was called, here or by a later put: at the end of a line of words, or of an eighth of the limit.
  [[nodiscard]] bool put(std::uint64_t address, std::uint64_t bytes, std::uint64_t limit) noexcept {
    if (__builtin_expect(bytes > most_bytes || address >= address_end, 0)) return false;
    if (__builtin_expect(full(bytes, limit), 0)) {
      seen_taken_ = taken_.load(std::memory_order_acquire);
      seen_taken_bytes_ = taken_bytes_.load(std::memory_order_relaxed);
      if (full(bytes, limit)) return false;
    }
    words_[put_ % slots] = address / heap::granule << size_bits | bytes;
    ++put_;
    put_bytes_ += bytes;
    unsent_bytes_ += bytes;
    if (put_ % a_line == 0 || unsent_bytes_ >= limit / 8) send();
    return true;
  }
  // What was put is the receiver's to see.
  void send() noexcept {
    if (unsent_bytes_ == 0) return;
    unsent_bytes_ = 0;
    sent_.store(put_, std::memory_order_release);
  }

  // Receiver. What was sent becomes blocks, at most so many: accept(address, bytes) answers the block, or nullptr where there is
  // none that was freed so.
  template <class Accept>
  void open(std::size_t most, Accept&& accept) noexcept {
    for (; most > 0; --most, ++opened_) {
      if (opened_ == seen_sent_) {
        seen_sent_ = sent_.load(std::memory_order_acquire);
        if (opened_ == seen_sent_) return;
      }
      const std::uint64_t word = words_[opened_ % slots];
      heap::segment* const block = accept((word >> size_bits) * heap::granule, word & most_bytes);
      blocks_[opened_ % slots] = block;
      if (block != nullptr) bytes_ += block->bytes;
    }
  }
  // The oldest block that was opened, or nullptr.
  [[nodiscard]] heap::segment* front() noexcept {
    while (next_ != opened_) {
      if (heap::segment* const block = blocks_[next_ % slots]) return block;
      pass();  // refused
    }
    return nullptr;
  }
  // It is taken; its place may be used again once that is told.
  void take_front() noexcept {
    bytes_ -= blocks_[next_ % slots]->bytes;
    pass();
  }
  void tell() noexcept {
    if (taken_.load(std::memory_order_relaxed) == next_) return;
    taken_bytes_.store(next_bytes_, std::memory_order_relaxed);
    taken_.store(next_, std::memory_order_release);
  }
  // The sender's lines are fetched: open() will be called soon.
  void expect() const noexcept {
    __builtin_prefetch(&sent_);
    __builtin_prefetch(&words_[opened_ % slots]);
  }
  // Bytes of the blocks that were opened and not taken.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::uint64_t a_line = 64 / sizeof(std::uint64_t);
  [[nodiscard]] bool full(std::uint64_t more, std::uint64_t limit) const noexcept {
    return put_ - seen_taken_ == slots || put_bytes_ - seen_taken_bytes_ + more > limit;
  }
  void pass() noexcept {
    next_bytes_ += words_[next_ % slots] & most_bytes;
    ++next_;
  }

  // A line and the one that is fetched beside it for each of: what nobody writes, the sender's own, what it tells, what the
  // receiver tells, its own, and the words.
  stream_lane* const sender_;
  stream_lane* const receiver_;
  alignas(128) std::uint64_t put_ = 0;
  std::uint64_t put_bytes_ = 0, unsent_bytes_ = 0;
  std::uint64_t seen_taken_ = 0, seen_taken_bytes_ = 0;
  alignas(128) std::atomic<std::uint64_t> sent_{0};   // publishes the words before it
  alignas(128) std::atomic<std::uint64_t> taken_{0};  // publishes that the words before it may be overwritten
  std::atomic<std::uint64_t> taken_bytes_{0};         // for the limit: an older or newer one does no harm
  alignas(128) std::uint64_t next_ = 0;
  std::uint64_t opened_ = 0, seen_sent_ = 0;
  std::uint64_t next_bytes_ = 0;  // of all words before next_
  std::uint64_t bytes_ = 0;
  std::array<heap::segment*, slots> blocks_{};
  alignas(128) std::array<std::uint64_t, slots> words_{};
};

}  // namespace millpond
