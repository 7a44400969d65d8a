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

}  // namespace millpond
