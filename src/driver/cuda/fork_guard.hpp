// Knows whether this process is a forked child of the one that something was made in: CUDA does not
// survive fork, and its calls there hang or corrupt the parent's state.
#pragma once
#include <atomic>
#include <cstdint>

namespace millpond::cuda {

namespace detail {
// Raised in each child as it is forked, while it has one thread only.
extern std::atomic<std::uint64_t> fork_generation;
}  // namespace detail

// The generation of this process, to be compared later; installs the handler at the first call. Stops
// the program where there is no memory for a handler.
[[nodiscard]] std::uint64_t watch_forks() noexcept;

// The number that watch_forks() gave, compared with now: one load.
[[nodiscard]] inline std::uint64_t fork_generation_now() noexcept {
  return detail::fork_generation.load(std::memory_order_relaxed);
}

}  // namespace millpond::cuda
