// A remote_free_queue: what one cache frees of what another cache of the same stream handed out, on
// its route back. A word says which block and with how many bytes it was freed; the sender reads
// and writes nothing else of the block, so that its record stays in the cache of the thread that
// hands it out. Words travel by the cache line, up to seven with a word that says so: the sender
// collects them where only it looks, and a line is written once and read once, so that it is the
// only thing that passes between the two cores. Neither side makes an atomic read-modify-write. On
// an H200's host a line takes 100 to 150 ns from one core to the other (2026-11-30).
#pragma once
#include <array>
#include <cstdint>

#include "base/atomic.hpp"
#include "heap/extent.hpp"

namespace millpond {

struct thread_cache;

// One sender at a time and one receiver at a time: whoever holds the lock of the sending cache, and
// of the receiving one.
class remote_free_queue {
 public:
  remote_free_queue(thread_cache& sender, thread_cache& receiver) noexcept
      : sender_(&sender), receiver_(&receiver) {}

  // The caches; neither is asked once it has left the pool.
  [[nodiscard]] thread_cache& sender() const noexcept { return *sender_; }
  [[nodiscard]] thread_cache& receiver() const noexcept { return *receiver_; }

  // A word has the address in granules above, the bytes below: larger blocks and higher addresses
  // do not travel.
  static constexpr unsigned size_bits = 25;
  static constexpr std::uint64_t most_bytes = (std::uint64_t{1} << size_bits) - 1;
  static constexpr std::uint64_t address_end = heap::granule << (64 - size_bits);
  static constexpr std::size_t words_a_line = 7;
  static constexpr std::size_t lines = 8;
  // Opened, under way and not sent yet.
  static constexpr std::size_t most_blocks = 64 + lines * words_a_line + words_a_line;

  // Sender. False where the box is full, or would hold blocks of more than `limit` bytes, or the
  // block does not travel. The receiver may see it once send() was called, here or by a later put:
  // with a full line, or an eighth of the limit.
  [[nodiscard]] bool put(std::uint64_t address, std::uint64_t bytes, std::uint64_t limit) noexcept {
    if (__builtin_expect(bytes > most_bytes || address >= address_end, 0)) return false;
    if (__builtin_expect(full(bytes, limit), 0)) {
      seen_opened_ = reported_lines_.load(std::memory_order_acquire);
      seen_taken_bytes_ = reported_bytes_.load(std::memory_order_relaxed);
      if (full(bytes, limit)) return false;
    }
    unsent_[unsent_count_++] = address / heap::granule << size_bits | bytes;
    put_bytes_ += bytes;
    unsent_bytes_ += bytes;
    if (unsent_count_ == words_a_line || unsent_bytes_ >= limit / 8) send();
    return true;
  }
  // What was put is the receiver's to see.
  void send() noexcept {
    if (unsent_count_ == 0) return;
    line& out = lines_[sent_lines_ % lines];
    for (std::uint64_t i = 0; i < unsent_count_; ++i) out.words[i] = unsent_[i];
    out.head.store(++sent_lines_ << count_bits | unsent_count_, std::memory_order_release);
    unsent_count_ = 0;
    unsent_bytes_ = 0;
  }

  // Receiver. The next line that was sent becomes blocks: accept(address, bytes) answers the block,
  // or nullptr where there is none that was freed so. False where there is no line, or too much is
  // open as it is.
  template <class Accept>
  bool open(Accept&& accept) noexcept {
    return opened_ - next_ <= most_open - words_a_line && open_line(accept);
  }
  // The same for all lines that were sent.
  template <class Accept>
  void open_all(Accept&& accept) noexcept {
    while (open_line(accept)) {
    }
  }
  // The oldest block that was opened, or nullptr.
  [[nodiscard]] heap::extent* front() noexcept {
    while (next_ != opened_) {
      if (heap::extent* const block = places_[next_ % places].block) return block;
      pass();  // refused
    }
    return nullptr;
  }
  void take_front() noexcept {
    bytes_ -= places_[next_ % places].block->bytes;
    pass();
  }
  // What was taken makes room, once the sender sees that. Lines are shown as opened only while few
  // blocks are open: so that open_all() always finds places for what is under way, however often
  // it is called by somebody who takes nothing.
  void tell() noexcept {
    if (reported_bytes_.load(std::memory_order_relaxed) != taken_bytes_)
      reported_bytes_.store(taken_bytes_, std::memory_order_relaxed);
    if (opened_ - next_ > most_open) return;
    if (reported_lines_.load(std::memory_order_relaxed) != opened_lines_)
      reported_lines_.store(opened_lines_, std::memory_order_release);
  }
  // Bytes of the blocks that were opened and not taken.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr unsigned count_bits = 3;
  static_assert(words_a_line < 1u << count_bits);
  static constexpr std::size_t places = 128;
  static constexpr std::size_t most_open = 64;
  static_assert(most_open + lines * words_a_line <= places);

  // No two in what the hardware fetches together.
  struct alignas(128) line {
    atomic<std::uint64_t> head{
        0};  // its number, from 1, above; how many words below. Publishes them
    std::array<plain<std::uint64_t>, words_a_line> words{};
  };
  struct place {
    heap::extent* block = nullptr;
    std::uint64_t bytes = 0;  // that it was freed with
  };

  [[nodiscard]] bool full(std::uint64_t more, std::uint64_t limit) const noexcept {
    return sent_lines_ - seen_opened_ == lines || put_bytes_ - seen_taken_bytes_ + more > limit;
  }
  template <class Accept>
  bool open_line(Accept&& accept) noexcept {
    const line& in = lines_[opened_lines_ % lines];
    const std::uint64_t head = in.head.load(std::memory_order_acquire);
    if (head >> count_bits != opened_lines_ + 1) return false;
    // The next one may be under way already, and is wanted when this one is used up.
    __builtin_prefetch(&lines_[(opened_lines_ + 1) % lines]);
    for (std::uint64_t i = 0; i < (head & ((1u << count_bits) - 1)); ++i) {
      const std::uint64_t bytes = in.words[i] & most_bytes;
      place& out = places_[opened_++ % places];
      out = {accept((in.words[i] >> size_bits) * heap::granule, bytes), bytes};
      if (out.block != nullptr) bytes_ += out.block->bytes;
    }
    ++opened_lines_;
    return true;
  }
  void pass() noexcept {
    taken_bytes_ += places_[next_ % places].bytes;
    ++next_;
  }

  // What nobody writes, the sender's own, what the receiver tells, its own, and what travels, lines
  // of their own each.
  thread_cache* const sender_;
  thread_cache* const receiver_;
  alignas(128) std::uint64_t unsent_count_ = 0;
  std::array<std::uint64_t, words_a_line> unsent_{};
  std::uint64_t unsent_bytes_ = 0, put_bytes_ = 0;
  std::uint64_t sent_lines_ = 0;
  std::uint64_t seen_opened_ = 0, seen_taken_bytes_ = 0;
  alignas(128) atomic<std::uint64_t> reported_lines_{
      0};  // publishes that the lines before it may be written again
  atomic<std::uint64_t> reported_bytes_{0};  // for the limit: an older or newer one does no harm
  alignas(128) std::uint64_t next_ = 0;
  std::uint64_t opened_ = 0, opened_lines_ = 0;
  std::uint64_t taken_bytes_ = 0;
  std::uint64_t bytes_ = 0;
  std::array<place, places> places_{};
  std::array<line, lines> lines_{};
};

}  // namespace millpond
