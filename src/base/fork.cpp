#include "base/fork.hpp"

#include <pthread.h>

namespace millpond {
namespace detail {
constinit std::atomic<std::uint32_t> forks_so_far{0};
}  // namespace detail

namespace {
// A handler, since asking getpid() costs a system call each time. vfork and a bare clone run no
// handlers; neither leaves a child that may go on using the parent's objects.
[[maybe_unused]] const int registered = pthread_atfork(
    nullptr, nullptr, [] { detail::forks_so_far.fetch_add(1, std::memory_order_relaxed); });
}  // namespace

error refused_in_child(std::string_view call) {
  std::string message(call);
  if (!call.empty()) message += ": ";
  return {error_code::not_permitted,
          message +
              "this process is a forked child, and the memory belongs to its parent; make a "
              "new driver and new resources after fork()"};
}

}  // namespace millpond
