// What every benchmark shares: its options, the allocators that it compares, the clock and its
// cost, the result file.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millpond/driver/driver.hpp"
#include "millpond/pool/pool.hpp"

namespace millpond::bench {

struct options {
  std::vector<std::string> peer_files;  // plug-ins
  std::string only;                     // of the subjects, those whose names hold this
  std::string out;                      // result file; empty: none
  std::string gpu = "0";                // ordinal, sim, or null
  std::uint64_t seed = 1;
  double scale = 1;                 // of the operations; small in the tests
  std::vector<std::string> inputs;  // files, where the benchmark takes some
  double seconds = 0;
  bool paced = false;  // recordings keep their pauses, and their streams run kernels
};

// One thread's use of an allocator on one stream.
class session {
 public:
  virtual ~session() = default;
  virtual void* allocate(std::uint64_t bytes) = 0;
  virtual void deallocate(void* ptr, std::uint64_t bytes) = 0;
};
class subject {
 public:
  virtual ~subject() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  // Fresh memory for a new measurement; false with a reason where it cannot be had.
  virtual bool start(std::string& why) = 0;
  virtual void stop() = 0;
  virtual std::unique_ptr<session> open(stream_handle stream) = 0;
  [[nodiscard]] virtual std::uint64_t reserved() = 0;
  [[nodiscard]] virtual pool* millpond_pool() { return nullptr; }
};

class harness {
 public:
  // Reads the command line; opens the device; loads the peers. Ends the program where that fails.
  harness(const char* name, int count, char** arguments);
  ~harness();

  [[nodiscard]] const options& settings() const noexcept { return options_; }
  [[nodiscard]] driver& gpu() noexcept { return *gpu_; }
  [[nodiscard]] std::vector<std::unique_ptr<subject>>& subjects() noexcept { return subjects_; }
  [[nodiscard]] std::uint64_t operations(std::uint64_t full) const;
  // Nanoseconds that one reading of the clock costs, measured at the start.
  [[nodiscard]] double clock_ns() const noexcept { return clock_ns_; }
  // One row of the result; printed at once.
  void add(nlohmann::json row);
  nlohmann::json& result() noexcept { return result_; }

 private:
  void save() const;
  options options_;
  std::shared_ptr<driver> gpu_;
  std::vector<std::unique_ptr<subject>> subjects_;
  std::vector<void*> plugins_;
  double clock_ns_ = 0;
  nlohmann::json result_;
};

[[nodiscard]] inline std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}
// The value at a share (0..1) of the sorted numbers.
[[nodiscard]] double percentile(std::vector<float>& values, double share);

// Runs `work(thread)` on so many threads, bound to the device, started together; answers when all
// have ended.
void on_threads(driver& gpu, unsigned threads, const std::function<void(unsigned)>& work);
// Inside work: waits until all threads are here.
class start_line {
 public:
  explicit start_line(unsigned threads) : waiting_(threads) {}
  void wait() noexcept {
    waiting_.fetch_sub(1);
    while (waiting_.load(std::memory_order_acquire) > 0) {
    }
  }

 private:
  std::atomic<unsigned> waiting_;
};

}  // namespace millpond::bench
