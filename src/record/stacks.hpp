// Call stacks by number. Unwinding costs a microsecond and more; most calls come again and again from the same
// place with the same stack pointer, and then it is enough to look whether the return addresses still lie where they lay.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace millpond::record {

// Thread-safe. Ids count up from 1; 0 is no stack.
class stack_store {
 public:
  static constexpr std::size_t most_frames = 48;
  static constexpr std::uint32_t most_stacks = 1u << 18;

  // The calling thread's stack, innermost first, at most `frames` return addresses (up to most_frames).
  // 0 where there is none, or where the store is full.
  std::uint32_t capture(std::size_t frames) noexcept;
  // The id of a stack that was found by other means.
  std::uint32_t add(std::span<const std::uintptr_t> stack) noexcept { return intern(stack); }
  // The stacks added since the last call of this, for one reader: visit(id, return addresses).
  template <class Visit>
  void take_new(Visit&& visit) {
    for (;;) {
      std::vector<std::uintptr_t> next;
      {
        const std::lock_guard lock(mutex_);
        if (taken_ == stacks_.size()) return;
        next = stacks_[taken_++];
      }
      visit(static_cast<std::uint32_t>(taken_), std::span<const std::uintptr_t>(next));
    }
  }
  [[nodiscard]] std::uint64_t unwound() const noexcept { return unwound_; }

 private:
  std::uint32_t intern(std::span<const std::uintptr_t> stack) noexcept;

  std::mutex mutex_;  // a leaf; held for a look-up, on misses of a thread's cache alone
  std::vector<std::vector<std::uintptr_t>> stacks_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> by_hash_;
  std::size_t taken_ = 0;
  std::uint64_t unwound_ = 0;
};

}  // namespace millpond::record
