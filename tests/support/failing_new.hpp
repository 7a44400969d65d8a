// An operator new that fails when a test says so, and an operator delete that lets a test come
// between, for executables that failing_new.cpp is linked into. Off by default; a thread's are its
// own.
#pragma once
#include <cstdint>

namespace millpond {

// While it lives, an allocation of this thread's fails with std::bad_alloc: the one with this
// number (0 is the next), or that one and all after it. One at a time on a thread. Expectations
// come after it: what they print is allocated too.
class failing_new {
 public:
  enum class which : std::uint8_t { one, all_from_there };
  explicit failing_new(std::uint64_t number, which those = which::one) noexcept;
  ~failing_new();
  failing_new(const failing_new&) = delete;
  failing_new& operator=(const failing_new&) = delete;
  // Whether one has failed.
  [[nodiscard]] bool failed() const noexcept;

  // While it lives, this thread's allocations are neither counted nor failed: those of a driver
  // that is simulated, for example.
  class pause {
   public:
    pause() noexcept;
    ~pause();
    pause(const pause&) = delete;
    pause& operator=(const pause&) = delete;

   private:
    bool was_;
  };
};

// While it lives, `step` is called before this thread gives memory back, wherever that happens: a
// place inside another's code to come between its steps. Not within itself. One at a time on a
// thread.
class before_each_delete {
 public:
  explicit before_each_delete(void (*step)(void*), void* with) noexcept;
  ~before_each_delete();
  before_each_delete(const before_each_delete&) = delete;
  before_each_delete& operator=(const before_each_delete&) = delete;
};

// Calls `attempt` with the first allocation in it failing, then the second, and so on until it
// answers true: then none has failed that mattered. `refused` is called after each attempt that
// answered false, with nothing failing. Answers how many those were. With those == all_from_there
// no second try within a call is served.
template <class Attempt, class Refused>
std::uint64_t fail_each_in_turn(Attempt&& attempt, Refused&& refused,
                                failing_new::which those = failing_new::which::one) {
  for (std::uint64_t number = 0;; ++number) {
    bool done = false;
    bool failed = false;
    {
      const failing_new failing(number, those);
      done = attempt();
      failed = failing.failed();
    }
    if (done || !failed) return number;
    refused();
  }
}

}  // namespace millpond
