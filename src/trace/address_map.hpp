// Address -> number, open addressing with linear probing, nothing ever removed: the last block of
// each address ever seen. 16 bytes a slot, at most 5/8 of them used.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace millpond::trace {

class address_map {
 public:
  static constexpr std::uint64_t none = UINT64_MAX;

  address_map() : slots_(1024) {}

  // `none` where the address was never set.
  [[nodiscard]] std::uint64_t find(std::uint64_t address) const noexcept {
    return slots_[place(address)].value;
  }
  void set(std::uint64_t address, std::uint64_t value) {
    std::size_t at = place(address);
    if (slots_[at].value == none) {
      if ((used_ + 1) * 8 > slots_.size() * 5) {
        grow();
        at = place(address);
      }
      ++used_;
    }
    slots_[at] = {address, value};
  }

 private:
  struct slot {
    std::uint64_t address = 0;
    std::uint64_t value = none;  // none: the slot is empty
  };

  // Addresses share their low bits; a multiplication spreads what differs into the high ones.
  [[nodiscard]] std::size_t place(std::uint64_t address) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    std::uint64_t mixed = address * 0x9e3779b97f4a7c15ULL;
    mixed ^= mixed >> 32;
    std::size_t at = static_cast<std::size_t>(mixed) & mask;
    while (slots_[at].value != none && slots_[at].address != address) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    std::vector<slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const slot& each : old) {
      if (each.value != none) slots_[place(each.address)] = each;
    }
  }

  std::vector<slot> slots_;  // a power of two
  std::size_t used_ = 0;
};

}  // namespace millpond::trace
