// Which cache a block belongs to, by its address, for a free on another thread: the block's own
// record says it too, but lies in the other core's cache. What comes through a remote free queue is
// noted here, once; so the table is read at every free and hardly ever written.
#pragma once
#include <cstdint>
#include <memory>
#include <new>

#include "base/atomic.hpp"
#include "heap/extent.hpp"

namespace millpond {

// Any thread, but for open(). A hint: an entry may be overwritten by another block's, or name a
// cache that has the block no more. Where the free of a block must look at its own record (other
// streams' uses, a capture, a tag), the block is forgotten here first; a thread that frees it later
// has learnt of the block after that.
class block_owners {
 public:
  // Before the first note; false without host memory. One thread at a time.
  bool open() noexcept {
    if (slots_.load(std::memory_order_relaxed) != nullptr) return true;
    mine_.reset(new (std::nothrow) atomic<std::uint64_t>[count]());
    slots_.store(mine_.get(), std::memory_order_release);
    return mine_ != nullptr;
  }
  void note(std::uint64_t address, std::uint32_t cache) noexcept {
    atomic<std::uint64_t>* const slots = slots_.load(std::memory_order_acquire);
    if (slots == nullptr || cache > most_owner || address >= address_end) return;
    atomic<std::uint64_t>& slot = slots[slot_of(address)];
    const std::uint64_t word = word_of(address) | cache;
    if (slot.load(std::memory_order_relaxed) != word) slot.store(word, std::memory_order_relaxed);
  }
  void forget(std::uint64_t address) noexcept {
    atomic<std::uint64_t>* const slots = slots_.load(std::memory_order_acquire);
    if (slots == nullptr) return;
    atomic<std::uint64_t>& slot = slots[slot_of(address)];
    if ((slot.load(std::memory_order_relaxed) & ~most_owner) == word_of(address))
      slot.store(0, std::memory_order_relaxed);
  }
  // The number of the cache; 0: not known.
  [[nodiscard]] std::uint32_t owner_of(std::uint64_t address) const noexcept {
    const atomic<std::uint64_t>* const slots = slots_.load(std::memory_order_acquire);
    if (slots == nullptr || address % heap::granule != 0 || address >= address_end) return 0;
    const std::uint64_t word = slots[slot_of(address)].load(std::memory_order_relaxed);
    return (word & ~most_owner) == word_of(address) ? static_cast<std::uint32_t>(word & most_owner)
                                                    : 0;
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return slots_.load(std::memory_order_relaxed) != nullptr ? count * sizeof(std::uint64_t) : 0;
  }

 private:
  // Of a word: the address in granules above, the cache's number below.
  static constexpr unsigned owner_bits = 25;
  static constexpr std::uint64_t most_owner = (std::uint64_t{1} << owner_bits) - 1;
  static constexpr std::uint64_t address_end = heap::granule << (64 - owner_bits);
  static constexpr unsigned power = interleaved ? 2 : 16;
  static constexpr std::size_t count = std::size_t{1} << power;
  [[nodiscard]] static std::uint64_t word_of(std::uint64_t address) noexcept {
    return address / heap::granule << owner_bits;
  }
  [[nodiscard]] static std::size_t slot_of(std::uint64_t address) noexcept {
    return static_cast<std::size_t>((address * 0x9e3779b97f4a7c15ULL) >> (64 - power));
  }

  std::unique_ptr<atomic<std::uint64_t>[]> mine_;
  atomic<atomic<std::uint64_t>*> slots_{nullptr};
};

}  // namespace millpond
