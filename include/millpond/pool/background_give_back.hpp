// A thread that gives a pool's unused memory back now and then, away from whoever serves.
#pragma once
#include "millpond/detail/language.hpp"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "millpond/pool/pool.hpp"

namespace millpond {

// Calls pool::give_back(older_than_ns, keep_bytes) every period until it is destroyed, which waits
// for a call in progress (a few milliseconds at most). Holds the pool only while it calls: the pool
// may end first. Without a clock in the pool's options an age is one period. A forked child has no
// such thread: there it gives nothing back, and ends at once.
class background_give_back {
 public:
  struct settings {
    // At least 1 ms is kept between two calls; a hundred years and more mean never.
    std::uint64_t period_ns = 1'000'000'000;
    std::uint64_t older_than_ns = 10'000'000'000;
    std::uint64_t keep_bytes = 0;
  };
  // Throws memory_error (not_permitted) where the system has no thread to give.
  background_give_back(const std::shared_ptr<pool>& of, settings how);
  ~background_give_back();
  background_give_back(const background_give_back&) = delete;
  background_give_back& operator=(const background_give_back&) = delete;

  // Bytes given back so far. Thread-safe.
  [[nodiscard]] std::uint64_t given_back() const;

 private:
  void run();
  const std::weak_ptr<pool> pool_;
  const settings how_;
  const std::uint32_t born_in_fork_;
  mutable std::mutex mutex_;  // a leaf: the three below; not held over a call of the pool
  std::unique_ptr<std::condition_variable> wake_ = std::make_unique<std::condition_variable>();
  bool ends_ = false;
  std::uint64_t given_ = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace millpond
