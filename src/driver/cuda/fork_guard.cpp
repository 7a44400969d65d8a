#include "driver/cuda/fork_guard.hpp"

#include <pthread.h>

#include "base/check.hpp"

namespace millpond::cuda {

namespace detail {
std::atomic<std::uint64_t> fork_generation{0};
}  // namespace detail

namespace {
void in_child() { detail::fork_generation.fetch_add(1, std::memory_order_relaxed); }
}  // namespace

std::uint64_t watch_forks() noexcept {
  static const int failed = ::pthread_atfork(nullptr, nullptr, in_child);
  MILLPOND_CHECK(failed == 0, failed);  // only ENOMEM is possible
  return fork_generation_now();
}

}  // namespace millpond::cuda
