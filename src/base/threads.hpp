// Threads where the system has some to give. Making one throws where it has none, and that must not
// get out of a call that answers a result, nor end the program with other threads still running:
// whoever wants a thread answers an error without it or does the work itself.
#pragma once
#include <thread>
#include <utility>
#include <vector>

namespace millpond {

// More than any machine of today has processors: so many threads at most, whatever a caller asks
// for.
inline constexpr unsigned most_threads_of_a_call = 256;

// A thread that runs `work`; one that is not joinable() where the system has none to give.
template <class Work>
[[nodiscard]] std::thread thread_or_none(Work&& work) noexcept {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (...) {
    return {};
  }
}

// Threads of one call, joined at its end whatever happens in between.
class joined_threads {
 public:
  joined_threads() = default;
  ~joined_threads() { join(); }
  joined_threads(const joined_threads&) = delete;
  joined_threads& operator=(const joined_threads&) = delete;

  // False, and nothing runs, where the system has no thread to give.
  template <class Work>
  [[nodiscard]] bool start(Work&& work) noexcept {
    try {
      threads_.emplace_back(std::forward<Work>(work));
      return true;
    } catch (...) {
      return false;
    }
  }
  void join() noexcept {
    for (std::thread& each : threads_) each.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace millpond
