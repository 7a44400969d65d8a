#include "base/thread_number.hpp"

#include <atomic>

namespace millpond {

std::uint32_t thread_number() noexcept {
  // A name for the thread, like its id: it carries no state of any object and is never reset.
  static constinit std::atomic<std::uint32_t> next{0};
  thread_local const std::uint32_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace millpond
