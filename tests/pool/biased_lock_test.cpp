// The lock of a thread cache in a process that may not ask the kernel for its barrier any more: a
// sandbox entered after the first pool was made.
#include "pool/cache/biased_lock.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace millpond {
namespace {

// The calls are refused to this thread and to those that it starts.
bool refuse(const std::vector<long>& calls) {
  std::vector<sock_filter> filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

enum child_answer { right = 0, both_inside = 1, other_means = 2, no_filter = 3, died = 4 };

// An owner and a stranger take one lock for a while, in a child of which the stranger is refused
// the calls.
child_answer contend(const std::vector<long>& refused, barrier_means expected) {
  const pid_t child = ::fork();
  if (child == 0) {
    biased_lock lock;
    std::atomic<int> inside{0};
    std::atomic<bool> wrong{false}, stop{false}, filtered{true};
    std::thread stranger([&] {
      if (!refused.empty() && !refuse(refused)) filtered = false;
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
      while (filtered && std::chrono::steady_clock::now() < end) {
        lock.foreign_lock();
        inside.store(2, std::memory_order_relaxed);
        for (int i = 0; i < 20; ++i) {
          if (inside.load(std::memory_order_relaxed) != 2) wrong = true;
        }
        inside.store(0, std::memory_order_relaxed);
        lock.foreign_unlock();
      }
      stop = true;
    });
    while (!stop.load(std::memory_order_relaxed)) {
      if (!lock.owner_lock()) continue;
      if (inside.load(std::memory_order_relaxed) != 0) wrong = true;
      inside.store(1, std::memory_order_relaxed);
      if (inside.load(std::memory_order_relaxed) != 1) wrong = true;
      inside.store(0, std::memory_order_relaxed);
      lock.owner_unlock();
    }
    stranger.join();
    const child_answer answer = !filtered                             ? no_filter
                                : wrong                               ? both_inside
                                : process_barrier_means() != expected ? other_means
                                                                      : right;
    ::_exit(answer);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return died;
  return static_cast<child_answer>(WEXITSTATUS(status));
}

// By a page where its processors are interrupted for it.
barrier_means first_means() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0x80000008, &a, &b, &c, &d) == 0 || (b & (1u << 3)) == 0)
    return barrier_means::page_protection;
#endif
  return barrier_means::owners_pay;
}

class biased_lock_refused : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!process_barrier_available()) GTEST_SKIP() << "this kernel has no membarrier";
  }
  static void expect_right(const std::vector<long>& refused, barrier_means means) {
    const child_answer answer = contend(refused, means);
    if (answer == no_filter) GTEST_SKIP() << "this kernel has no seccomp filters";
    EXPECT_EQ(answer, right);
  }
};

TEST_F(biased_lock_refused, with_the_kernels_barrier_an_owner_and_a_stranger_exclude_each_other) {
  expect_right({}, barrier_means::kernel);
}

TEST_F(biased_lock_refused, without_it_they_still_do) {
  expect_right({SYS_membarrier}, first_means());
}

TEST_F(biased_lock_refused, where_no_page_can_be_protected_either_owners_pay) {
  expect_right({SYS_membarrier, SYS_mprotect}, barrier_means::owners_pay);
}

}  // namespace
}  // namespace millpond
