#include "managed/memory_traps.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>

namespace millpond::memory_traps {
namespace {

struct trap {
  std::atomic<std::uint64_t> begin{0};  // 0: free; release: `end` is there
  std::atomic<std::uint64_t> end{0};
  std::atomic<bool> armed{false};
};
std::array<trap, 256> table;               // fixed, so that a signal handler may read it
std::mutex taking;                         // a leaf: over taking a place
struct sigaction before;                   // the handler that was there
std::atomic<bool> before_is_spent{false};  // it was for one signal, which it has had

// Only calls that a signal handler may make.
void say(std::uint64_t address) noexcept {
  char text[] =
      "millpond: the CPU touched managed memory at 0x0000000000000000 while the GPU may use it: "
      "take a host_view first\n";
  char* const digits = std::strstr(text, "0x") + 2;
  for (int i = 15; i >= 0; --i, address >>= 4) digits[i] = "0123456789abcdef"[address & 15];
  static_cast<void>(!::write(STDERR_FILENO, text, sizeof text - 1));
}

// A signal that somebody sent names no address, and no access is made again when its handler ends.
bool was_sent(const siginfo_t& info) noexcept {
  return info.si_code <= 0;
}

void say_where(const siginfo_t& info) noexcept {
  const auto address = reinterpret_cast<std::uint64_t>(info.si_addr);
  for (const trap& each : table) {
    const std::uint64_t begin = each.begin.load(std::memory_order_acquire);
    if (begin != 0 && address >= begin && address < each.end.load() && each.armed.load())
      return say(address);
  }
}

// What the system would have done had we not been there.
void as_before(int number, siginfo_t* info, void* context) noexcept {
  const bool spent =
      (before.sa_flags & static_cast<int>(SA_RESETHAND)) != 0 && before_is_spent.exchange(true);
  // Both forms of a handler share one place.
  const bool has_handler = before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN;
  if (has_handler && !spent) {
    // With the signals that it wants blocked; ours are the system's to put back.
    sigset_t blocked = before.sa_mask;
    if ((before.sa_flags & SA_NODEFER) == 0) sigaddset(&blocked, number);
    pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    if ((before.sa_flags & SA_SIGINFO) != 0)
      before.sa_sigaction(number, info, context);
    else
      before.sa_handler(number);
    return;
  }
  if (!has_handler && before.sa_handler == SIG_IGN && was_sent(*info)) return;
  // Back to what the system does. A fault is made again when this returns, and ends the program; a
  // signal that was sent is sent again, to this thread, which does not block it.
  ::signal(number, SIG_DFL);
  if (was_sent(*info)) ::raise(number);
}

void on_fault(int number, siginfo_t* info, void* context) {
  const int error_before = errno;
  if (!was_sent(*info)) say_where(*info);
  as_before(number, info, context);
  errno = error_before;
}

// Whether a driver's file is mapped here in one piece larger than the range: such a mapping must
// not be split.
bool part_of_drivers_mapping(std::uint64_t at, std::uint64_t bytes) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    std::uint64_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end) != 2 || at < begin ||
        at >= end)
      continue;
    return line.find("/dev/nvidia") != std::string::npos && (begin != at || end != at + bytes);
  }
  return false;
}

}  // namespace

result<int> take(void* at, std::uint64_t bytes) {
  const auto begin = reinterpret_cast<std::uint64_t>(at);
  if (part_of_drivers_mapping(begin, bytes)) {
    return error{
        error_code::not_supported,
        fmt::format(
            "traps: {:#x} is part of a larger mapping of the driver's, which must not be split",
            begin)};
  }
  const std::lock_guard lock(taking);
  static const bool installed = [] {
    struct sigaction ours = {};
    ours.sa_sigaction = on_fault;
    // On a stack of its own where the thread has one: the fault may be that its stack is full.
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    // Known before ours can run.
    return ::sigaction(SIGSEGV, nullptr, &before) == 0 && ::sigaction(SIGSEGV, &ours, nullptr) == 0;
  }();
  if (!installed)
    return error{error_code::not_supported, "traps: no handler for SIGSEGV can be installed"};
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].begin.load(std::memory_order_relaxed) != 0) continue;
    table[i].armed.store(false);
    table[i].end.store(begin + bytes);
    table[i].begin.store(begin, std::memory_order_release);
    return static_cast<int>(i);
  }
  return error{error_code::not_supported,
               fmt::format("traps: {} buffers are guarded, and no more can be", table.size())};
}

void arm(int place, bool on) noexcept {
  table[static_cast<std::size_t>(place)].armed.store(on);
}

void release(int place) noexcept {
  table[static_cast<std::size_t>(place)].armed.store(false);
  table[static_cast<std::size_t>(place)].begin.store(0, std::memory_order_release);
}

}  // namespace millpond::memory_traps
