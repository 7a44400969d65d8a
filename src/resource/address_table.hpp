// A hash table from addresses to values: open addressing, linear probing, deletion by shifting
// back, so that it never fills with tombstones. One cache line is touched for most lookups. Not
// thread-safe: its owner holds the lock.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace millpond {

// Value: default-constructible, nothrow-movable. Address 0 is not a key.
template <class Value>
class address_table {
 public:
  [[nodiscard]] Value* find(std::uint64_t address) noexcept {
    if (count_ == 0) return nullptr;
    const std::size_t at = locate(address);
    return slots_[at].address == address ? &slots_[at].value : nullptr;
  }

  // The value of a new key, default-constructed, or of the key that is there. May throw
  // std::bad_alloc, and then nothing has changed.
  [[nodiscard]] Value& insert(std::uint64_t address) {
    if (4 * (count_ + 1) > 3 * capacity_) grow();
    const std::size_t at = locate(address);
    if (slots_[at].address != address) {
      slots_[at].address = address;
      ++count_;
    }
    return slots_[at].value;
  }

  // False where the key is not there.
  bool erase(std::uint64_t address) noexcept {
    if (count_ == 0) return false;
    std::size_t hole = locate(address);
    if (slots_[hole].address != address) return false;
    const std::size_t mask = capacity_ - 1;
    for (std::size_t next = (hole + 1) & mask; slots_[next].address != 0;
         next = (next + 1) & mask) {
      // A follower may fill the hole unless its home lies between the hole and itself.
      if (((next - home(slots_[next].address)) & mask) >= ((next - hole) & mask)) {
        slots_[hole] = std::move(slots_[next]);
        hole = next;
      }
    }
    slots_[hole].address = 0;
    slots_[hole].value = Value{};
    --count_;
    return true;
  }

  [[nodiscard]] std::size_t size() const noexcept { return count_; }

  // In no order. visit(address, value&).
  template <class Visit>
  void for_each(Visit&& visit) {
    for (std::size_t at = 0; at < capacity_; ++at) {
      if (slots_[at].address != 0) visit(slots_[at].address, slots_[at].value);
    }
  }

 private:
  struct slot {
    std::uint64_t address = 0;
    Value value{};
  };

  [[nodiscard]] std::size_t home(std::uint64_t address) const noexcept {
    // Fibonacci hashing: the high bits of the product mix the low bits that blocks differ in.
    return static_cast<std::size_t>((address * 0x9e3779b97f4a7c15ULL) >> shift_);
  }
  [[nodiscard]] std::size_t locate(std::uint64_t address) const noexcept {
    std::size_t at = home(address);
    while (slots_[at].address != 0 && slots_[at].address != address)
      at = (at + 1) & (capacity_ - 1);
    return at;
  }
  void grow() {
    const std::size_t capacity = capacity_ == 0 ? 16 : 2 * capacity_;
    auto slots = std::make_unique<slot[]>(capacity);
    std::swap(slots, slots_);
    const std::size_t old = std::exchange(capacity_, capacity);
    shift_ = 64;
    for (std::size_t power = 1; power < capacity; power *= 2) --shift_;
    for (std::size_t at = 0; at < old; ++at) {
      if (slots[at].address != 0) slots_[locate(slots[at].address)] = std::move(slots[at]);
    }
  }

  std::unique_ptr<slot[]> slots_;
  std::size_t capacity_ = 0;  // a power of two
  std::size_t count_ = 0;
  unsigned shift_ = 64;  // 64 - log2(capacity_)
};

}  // namespace millpond
