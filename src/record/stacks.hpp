// Call stacks by number. Most calls come again and again from the same place with the same stack
// pointer, and then it is enough to look whether the return addresses still lie where they lay.
// Other stacks are walked by rules that a thread keeps for each return address (frame_rules.hpp);
// where those do not reach, the compiler's runtime unwinds, at microseconds a stack.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "record/python_frames.hpp"

namespace millpond::record {

// Thread-safe. Ids count up from 1; 0 is no stack.
class stack_store {
 public:
  static constexpr std::size_t most_frames = 48;
  // A quarter of a KiB each, here and where they are written: some 30 MiB at the worst, beside the
  // ring's 16.
  static constexpr std::uint32_t most_stacks = 1u << 16;

  enum class unwinding : std::uint8_t { by_rules, by_runtime };
  enum class python : std::uint8_t { left_out, seen };
  explicit stack_store(unwinding how = unwinding::by_rules, python interpreters = python::left_out)
      : how_(how), python_(interpreters) {}

  // The calling thread's stack, innermost first, at most `frames` return addresses (up to
  // most_frames), and behind them up to most_python_frames of Python, numbered (is_python,
  // python_at). 0 where there is none, or where the store is full.
  std::uint32_t capture(std::size_t frames) noexcept;
  static constexpr std::size_t most_python_frames = 24;
  [[nodiscard]] static bool is_python(std::uintptr_t frame) noexcept {
    return (frame & python_mark) != 0;
  }
  [[nodiscard]] python_line python_at(std::uintptr_t frame) const;
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
  // Stacks that were looked for, since the thread did not remember them; and those of them that the
  // rules could not walk.
  [[nodiscard]] std::uint64_t unwound() const noexcept { return unwound_; }
  [[nodiscard]] std::uint64_t unwound_by_runtime() const noexcept {
    return by_runtime_.load(std::memory_order_relaxed);
  }
  // So many libraries were unloaded by now (count_unloaded): rules of code that is gone are
  // forgotten.
  void set_unloaded(std::uint64_t libraries) noexcept {
    unloaded_.store(libraries, std::memory_order_relaxed);
  }

 private:
  // No address of a program's has this bit.
  static constexpr std::uintptr_t python_mark = std::uintptr_t{1} << 63;
  std::uint32_t intern(std::span<const std::uintptr_t> stack) noexcept;
  std::size_t python_call_sites(std::span<python_call_site> into) noexcept;
  // Their numbers; how many there are.
  std::size_t number_python(std::span<const python_call_site> call_sites,
                            std::span<std::uintptr_t> into) noexcept;

  unwinding how_;
  python python_;
  std::once_flag looked_;
  std::optional<python_frames> interpreter_;
  std::atomic<std::uint64_t> unloaded_{0}, by_runtime_{0};
  mutable std::mutex mutex_;  // a leaf; held for a look-up, on misses of a thread's cache alone
  std::vector<std::vector<std::uintptr_t>> stacks_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> by_hash_;
  std::vector<python_line> lines_;  // of Python
  std::unordered_map<std::uint64_t, std::uint32_t>
      line_numbers_;  // by python_frames::identity, from 1; 0: not known
  std::size_t taken_ = 0;
  std::uint64_t unwound_ = 0;
};

}  // namespace millpond::record
