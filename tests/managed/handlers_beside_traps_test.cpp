// Traps beside the program's own handlers: whoever handled SIGSEGV before, or nobody, has the
// signals that are not ours, and the trap is on whenever it should be.
#include <gtest/gtest.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>

#include "millpond/base/units.hpp"
#include "millpond/managed/managed_buffer.hpp"
#include "millpond/sim/simulated_gpu.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;  // the sanitizer has a handler and stacks of its own
#else
constexpr bool sanitized = false;
#endif

namespace millpond {
namespace {

struct sigaction disposition() {
  struct sigaction now{};
  ::sigaction(SIGSEGV, nullptr, &now);
  return now;
}
const auto at_the_start = disposition();

// The traps' handler stays where it is once it is there: the children are to begin without.
class memory_traps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (disposition().sa_sigaction != at_the_start.sa_sigaction)
      GTEST_SKIP() << "a test before has installed traps: run this one alone";
  }
};

// The program of each case, in a child: how it ends.
int status_of(const std::function<void()>& program) {
  std::fflush(stdout);
  std::fflush(stderr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    program();
    ::_exit(77);  // it went on
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

std::string text(int status) {
  return WIFEXITED(status) ? "exit " + std::to_string(WEXITSTATUS(status))
                           : "signal " + std::to_string(WTERMSIG(status));
}

// Memory with a trap, and a pointer that a view left behind.
struct trapped {
  std::shared_ptr<simulated_gpu> gpu = *simulated_gpu::create();
  stream_handle stream = nullptr;
  managed_resource from{
      gpu, nullptr, managed_use{managed_intent::streaming, memory_side::host, memory_side::device}};
  std::optional<managed_buffer<int>> buffer;
  volatile int* stray = nullptr;
  explicit trapped(managed_use use = {managed_intent::streaming, memory_side::host,
                                      memory_side::device})
      : from(gpu, nullptr, use) {
    EXPECT_TRUE(gpu->stream_create(&stream).ok());
    auto made = managed_buffer<int>::create(MiB, from, stream, managed_debug::trap);
    EXPECT_TRUE(made) << made.error().message;
    buffer.emplace(std::move(made).value());
    auto view = buffer->host_view().value();
    stray = view.data();
  }
};

// What a program does, without traps and with them.
void expect_the_same(const char* what, const std::function<void()>& program,
                     std::optional<int> right) {
  const int plain = status_of(program);
  if (right && !sanitized) {
    EXPECT_EQ(plain, *right) << what << ": " << text(plain);
  }
  const int guarded = status_of([&] {
    const trapped there;
    program();
  });
  EXPECT_EQ(text(guarded), text(plain)) << what;
}

struct sigaction handler_that(void (*handles)(int, siginfo_t*, void*), int flags) {
  struct sigaction made{};
  made.sa_sigaction = handles;
  made.sa_flags = SA_SIGINFO | flags;
  return made;
}

TEST_F(memory_traps, a_signal_that_was_sent_ends_the_program_as_before) {
  const auto ended_by_it = [](int status) {
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
  };
  const auto sent = [] { ::kill(::getpid(), SIGSEGV); };
  expect_the_same("kill", sent, SIGSEGV);
  expect_the_same("raise", [] { ::raise(SIGSEGV); }, SIGSEGV);
  if (!sanitized) {
    EXPECT_TRUE(ended_by_it(status_of([&] {
      const trapped there;
      sent();
    })));
  }
}

// The handler is put in place before the traps are, in each child, since the traps' own stays.
int status_with_handler(const struct sigaction& theirs, const std::function<void(trapped*)>& then) {
  return status_of([&] {
    EXPECT_EQ(::sigaction(SIGSEGV, &theirs, nullptr), 0);
    trapped there;
    then(&there);
  });
}

TEST_F(memory_traps, a_handler_that_was_there_has_what_was_sent_and_the_program_goes_on) {
  static volatile sig_atomic_t seen = 0;
  const auto theirs = handler_that(
      [](int number, siginfo_t* info, void*) {
        sigset_t now;
        pthread_sigmask(SIG_BLOCK, nullptr, &now);
        const bool right = info->si_pid == ::getpid() && sigismember(&now, number) == 1 &&
                           sigismember(&now, SIGUSR1) == 1;
        seen = seen + (right ? 1 : 100);
        errno = E2BIG;
      },
      0);
  struct sigaction with_mask = theirs;
  sigaddset(&with_mask.sa_mask, SIGUSR1);
  const int status = status_with_handler(with_mask, [](trapped*) {
    errno = 0;
    ::raise(SIGSEGV);
    ::raise(SIGSEGV);
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, nullptr, &now);
    const bool mask_is_back = sigismember(&now, SIGSEGV) == 0 && sigismember(&now, SIGUSR1) == 0;
    ::_exit(seen == 2 && mask_is_back && errno == 0 ? 0 : 1);
  });
  EXPECT_EQ(text(status), "exit 0");
}

TEST_F(memory_traps, an_ignored_signal_stays_ignored_and_a_fault_does_not) {
  struct sigaction ignored{};
  ignored.sa_handler = SIG_IGN;
  EXPECT_EQ(text(status_with_handler(ignored, [](trapped*) { ::raise(SIGSEGV); })), "exit 77");
  if (sanitized) return;
  EXPECT_EQ(text(status_with_handler(ignored,
                                     [](trapped*) { *static_cast<volatile int*>(nullptr) = 1; })),
            "signal 11");
}

TEST_F(memory_traps, a_handler_for_one_signal_has_one) {
  static volatile sig_atomic_t seen = 0;
  const auto once =
      handler_that([](int, siginfo_t*, void*) { seen = seen + 1; }, static_cast<int>(SA_RESETHAND));
  const int status = status_with_handler(once, [](trapped*) {
    ::raise(SIGSEGV);
    if (seen != 1) ::_exit(1);
    ::raise(SIGSEGV);
    ::_exit(2);
  });
  EXPECT_EQ(text(status), "signal 11");
}

// As a stack grows without end. Not inlined and not a loop.
[[gnu::noinline]] int deeper(volatile int* from) {
  volatile char room[4096];
  room[0] = 1;
  volatile int here = *from + 1;
  if (here < 0) return 0;
  return deeper(&here) + room[0] + *from;  // NOLINT(misc-no-recursion)
}

TEST_F(memory_traps, a_handler_for_a_full_stack_runs_on_its_own_stack) {
  if (sanitized) GTEST_SKIP() << "the sanitizer handles full stacks";
  static std::array<char, 65536> spare;
  const auto theirs = handler_that(
      [](int, siginfo_t* info, void*) { ::_exit(info->si_code > 0 ? 5 : 6); }, SA_ONSTACK);
  const auto overflow = [] {
    stack_t other{};
    other.ss_sp = spare.data();
    other.ss_size = spare.size();
    EXPECT_EQ(::sigaltstack(&other, nullptr), 0);
    volatile int zero = 0;
    ::_exit(deeper(&zero) == 0 ? 1 : 2);
  };
  EXPECT_EQ(text(status_with_handler(theirs, [&](trapped*) { overflow(); })), "exit 5");
  // Without a handler the program ends by it, and without a second stack too.
  expect_the_same("a full stack and no handler", overflow, SIGSEGV);
  expect_the_same(
      "a full stack and no other",
      [] {
        volatile int zero = 0;
        ::_exit(deeper(&zero) == 0 ? 1 : 2);
      },
      SIGSEGV);
}

TEST_F(memory_traps, a_handler_may_leave_by_a_jump_again_and_again) {
  static sigjmp_buf back;
  const auto jumps = handler_that([](int, siginfo_t*, void*) { siglongjmp(back, 1); }, 0);
  const int status = status_with_handler(jumps, [](trapped* there) {
    auto device = there->buffer->device_view_to_read(there->stream).value();
    volatile int caught = 0;
    while (caught < 3) {
      if (sigsetjmp(back, 1) == 0)
        *there->stray = 1;
      else
        caught = caught + 1;
    }
    ::_exit(caught);
  });
  EXPECT_EQ(text(status), "exit 3");
}

TEST_F(memory_traps, the_trap_is_on_again_after_a_look_beside_a_device_view) {
  for (const bool looks : {false, true}) {
    const int status = status_of([looks] {
      trapped there;
      auto device = there.buffer->device_view_to_read(there.stream).value();
      if (looks) {
        auto host = there.buffer->host_view_to_read().value();
        auto second = there.buffer->host_view_to_read().value();
        if (host.span()[0] != second.span()[0]) ::_exit(3);
      }
      *there.stray = 1;  // under a device view that lives
    });
    EXPECT_NE(text(status), "exit 77") << (looks ? "after a look" : "at once");
  }
}

TEST_F(memory_traps, a_host_view_that_is_refused_leaves_the_trap_on) {
  for (const bool by_the_driver : {false, true}) {
    const int status = status_of([by_the_driver] {
      trapped there({managed_intent::streaming, memory_side::device, memory_side::host});
      auto device = there.buffer->device_view_to_read(there.stream).value();
      fault_plan plan;
      plan.faults.push_back({.call = "cuMemPrefetchAsync", .status = driver_status::unknown});
      there.gpu->set_faults(plan);
      // One that writes is refused at once, one that reads when its pages are to come.
      if (by_the_driver ? there.buffer->host_view_to_read().has_value()
                        : there.buffer->host_view().has_value())
        ::_exit(3);
      *there.stray = 1;
    });
    EXPECT_NE(text(status), "exit 77") << by_the_driver;
    EXPECT_NE(text(status), "exit 3") << by_the_driver;
  }
}

}  // namespace
}  // namespace millpond
