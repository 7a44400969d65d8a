#include "millpond/pool/background_give_back.hpp"

#include <algorithm>
#include <chrono>

#include "base/fork.hpp"
#include "base/threads.hpp"

namespace millpond {

namespace {

// Between two calls at least: with less the thread would keep a core, and the pool's locks, busy.
constexpr std::chrono::nanoseconds shortest_period = std::chrono::milliseconds(1);
// From here on a period means never: a hundred years, which the clock can still count.
constexpr std::chrono::nanoseconds longest_period = std::chrono::hours(24 * 365 * 100);

}  // namespace

background_give_back::background_give_back(const std::shared_ptr<pool>& of, settings how)
    : pool_(of),
      how_(how),
      born_in_fork_(fork_count()),
      thread_(thread_or_none([this] { run(); })) {
  if (!thread_.joinable()) {
    throw memory_error({error_code::not_permitted,
                        "background_give_back: the system has no thread to give (ulimit -u, or the "
                        "control group's pids.max): raise the limit, or call pool::give_back from "
                        "a thread of your own"});
  }
}

background_give_back::~background_give_back() {
  if (born_in_fork_ != fork_count()) {  // the thread did not come along
    thread_.detach();
    static_cast<void>(wake_.release());  // its end would wait for that thread
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_->notify_one();
  thread_.join();
}

std::uint64_t background_give_back::given_back() const {
  const std::lock_guard lock(mutex_);
  return given_;
}

void background_give_back::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const auto over = [this] { return ends_; };
    if (how_.period_ns >= static_cast<std::uint64_t>(longest_period.count())) {
      wake_->wait(lock, over);
    } else {
      const auto period = static_cast<std::chrono::nanoseconds::rep>(how_.period_ns);
      wake_->wait_for(lock, std::max(std::chrono::nanoseconds(period), shortest_period), over);
    }
    if (ends_) break;
    lock.unlock();
    std::uint64_t given = 0;
    bool gone = true;
    if (std::shared_ptr<pool> held = pool_.lock()) {
      gone = false;
      if (driver* const gpu = held->gpu()) static_cast<void>(gpu->bind_thread());
      given = held->give_back(how_.older_than_ns, how_.keep_bytes);
      // Where the program let go of the pool meanwhile, it ends here, with no lock of ours held.
    }
    lock.lock();
    given_ += given;
    if (gone) break;
  }
}

}  // namespace millpond
