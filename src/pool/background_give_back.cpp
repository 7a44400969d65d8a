#include "millpond/pool/background_give_back.hpp"

#include <chrono>

namespace millpond {

background_give_back::background_give_back(const std::shared_ptr<pool>& of, settings how)
    : pool_(of), how_(how), thread_([this] { run(); }) {}

background_give_back::~background_give_back() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::uint64_t background_give_back::given_back() const {
  const std::lock_guard lock(mutex_);
  return given_;
}

void background_give_back::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    wake_.wait_for(lock, std::chrono::nanoseconds(how_.period_ns), [this] { return ends_; });
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
