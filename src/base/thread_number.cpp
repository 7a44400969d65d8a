#include "base/thread_number.hpp"

#include <atomic>

namespace millpond {

std::uint32_t thread_number() noexcept {
  // A name for the thread, like its id: it carries no state of any object and is never reset. Read
  // by the recorder at every call, so that it is one instruction away: one more than the number, 0
  // before the first call.
  static constinit std::atomic<std::uint32_t> next{0};
  static constinit thread_local std::uint32_t mine [[gnu::tls_model("initial-exec")]] = 0;
  if (mine == 0) mine = next.fetch_add(1, std::memory_order_relaxed) + 1;
  return mine - 1;
}

}  // namespace millpond
