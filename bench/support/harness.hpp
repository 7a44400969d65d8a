// What every benchmark of allocators shares: its options, the allocators that it compares, the
// clock's own cost, the result file. A benchmark is its loop and its row.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/support/measure.hpp"
#include "bench/support/result_file.hpp"
#include "millpond/driver/driver.hpp"
#include "millpond/pool/pool.hpp"

namespace millpond {
class simulated_gpu;
}

namespace millpond::bench {

struct options {
  std::vector<std::string> peer_files;  // plug-ins
  std::string only;                     // of the subjects, those whose names hold this
  result_options result;
  std::string gpu = "0";  // ordinal, sim, or null
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

// Streams that are made together; they end when their work is done.
class stream_set {
 public:
  stream_set(driver& gpu, std::size_t count);
  ~stream_set();
  stream_set(const stream_set&) = delete;
  stream_set& operator=(const stream_set&) = delete;
  [[nodiscard]] stream_handle operator[](std::size_t at) const noexcept { return all_[at]; }
  [[nodiscard]] std::vector<std::unique_ptr<session>> open(subject& of) const;
  void synchronize();

 private:
  driver& gpu_;
  std::vector<stream_handle> all_;
};

class harness {
 public:
  // Reads the command line; opens the device; loads the peers. Ends the program where that fails.
  harness(const char* name, int count, char** arguments);
  ~harness();

  [[nodiscard]] const options& settings() const noexcept { return options_; }
  [[nodiscard]] driver& gpu() noexcept { return *gpu_; }
  [[nodiscard]] const std::shared_ptr<driver>& shared_gpu() const noexcept { return gpu_; }
  [[nodiscard]] std::vector<std::unique_ptr<subject>>& subjects() noexcept { return subjects_; }
  [[nodiscard]] std::uint64_t operations(std::uint64_t full) const;
  // Nanoseconds that one reading of the clock costs, measured at the start.
  [[nodiscard]] double clock_ns() const noexcept { return clock_ns_; }
  // The host's time, or virtual time where the GPU is simulated.
  [[nodiscard]] std::uint64_t gpu_time_ns() const;

  // Starts a subject, and writes a row with the reason, after these fields, where that fails.
  bool start(subject& of, value with = {});
  // Each subject but those named, started and stopped around `measure`.
  void each_subject(std::initializer_list<std::string_view> left_out,
                    const std::function<void(subject&)>& measure, const value& with = {});
  // One row of the result; printed at once.
  void add(value row);

 private:
  options options_;
  std::shared_ptr<driver> gpu_;
  const simulated_gpu* simulated_ = nullptr;
  std::vector<std::unique_ptr<subject>> subjects_;
  double clock_ns_ = 0;
  value result_;
};

// How often a peer that takes 500 us a pair is asked where millpond, which takes 20 ns, is asked
// once for each of `slower`.
[[nodiscard]] std::uint64_t share_of(const subject& of, std::uint64_t full, std::uint64_t slower);

// How the pool served what it was asked between two looks.
[[nodiscard]] value paths_of(const pool_statistics& now, const pool_statistics& before = {});

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
