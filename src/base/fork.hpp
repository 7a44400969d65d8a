// Forks: a child inherits our objects but not the GPU, nor the threads that may have held our
// locks. Every object that talks to a driver remembers how many forks had happened when it was made
// and refuses, before it takes any lock, where the count differs.
#pragma once
#include <atomic>
#include <cstdint>
#include <string_view>

#include "millpond/base/result.hpp"

namespace millpond {
namespace detail {
// Written by the child alone, inside fork(), while it has one thread; it publishes nothing.
extern std::atomic<std::uint32_t> forks_so_far;
}  // namespace detail

// Forks that lie between the program's first process and this one.
[[nodiscard]] inline std::uint32_t fork_count() noexcept {
  return detail::forks_so_far.load(std::memory_order_relaxed);
}

// The refusal of a call in a forked child; begins with `call` where that is given.
[[nodiscard]] error refused_in_child(std::string_view call = {});

}  // namespace millpond
