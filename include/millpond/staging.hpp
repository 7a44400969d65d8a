// Copies between pageable and device memory at the rate of pinned memory: several threads fill pinned chunks while
// others are on the link.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "millpond/memory_resource.hpp"

namespace millpond {

struct staging_options {
  unsigned threads = 0;                          // 0: half the processors, at least 1, at most 8
  std::uint64_t chunk_bytes = std::uint64_t{2} << 20;  // each thread has two
  // Below this a plain copy is made: waking the threads costs more than they save (1 MiB: 12.8 GB/s plain and 7 staged;
  // 16 MiB: 14 and 22; bench/results/bench_staging_h200.json).
  std::uint64_t least_bytes = std::uint64_t{4} << 20;
};

struct staging_statistics {
  std::uint64_t transfers = 0;
  std::uint64_t plain_transfers = 0;             // too small to stage
  std::uint64_t bytes = 0;
  std::uint64_t chunks = 0;
};

// A plain copy of pageable memory goes at 8 GB/s to the device and at 14.5 back, through one buffer of the driver's, where
// pinned memory goes at 55 (H200, driver 580.159, 2026-11-30).
//
// Stream order: chunks are put on the caller's stream, after the work that is on it. to_device returns when the source
// may be changed: all of it is in pinned chunks or on the device; the copy itself is done when the stream has passed it.
// to_host returns when the data is there, having waited for the stream. One transfer at a time: a second thread waits.
// Not into a capture, whose replay would find other data in the chunks: not_permitted. Errors: the driver's, by name;
// after one the destination's contents are undefined.
class staging {
 public:
  // memory: a pinned resource that outlives this; two chunks a thread are taken from it.
  [[nodiscard]] static result<std::unique_ptr<staging>> create(std::shared_ptr<driver> gpu, memory_resource& memory,
                                                               staging_options options = {});
  ~staging();
  staging(const staging&) = delete;
  staging& operator=(const staging&) = delete;

  result<void> to_device(device_address to, const void* from, std::uint64_t bytes, stream_handle stream);
  result<void> to_host(void* to, device_address from, std::uint64_t bytes, stream_handle stream);
  [[nodiscard]] staging_statistics statistics() const;

 private:
  enum class direction : std::uint8_t { to_device, to_host };
  struct slot {
    unsigned char* memory = nullptr;
    event_handle done = nullptr;
    bool pending = false;                        // a copy out of it may be on its way
  };
  struct transfer {
    direction way = direction::to_device;
    device_address device = 0;
    unsigned char* host = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t chunks = 0;
    stream_handle stream = nullptr;
  };
  staging(std::shared_ptr<driver> gpu, memory_resource& memory, staging_options options);
  result<void> prepare();
  result<void> move(const transfer& what);
  void work(unsigned number);
  call_result send(const transfer& t, unsigned number);
  call_result receive(const transfer& t, unsigned number);
  bool next_chunk(const transfer& t, std::uint64_t& chunk, std::uint64_t& bytes);

  std::shared_ptr<driver> gpu_;
  memory_resource& memory_;
  staging_options options_;
  std::vector<slot> slots_;                      // two a thread
  std::vector<std::thread> threads_;
  std::mutex turn_;                              // one transfer at a time; held over the whole of it
  mutable std::mutex mutex_;                     // the fields below; a leaf
  std::condition_variable begin_, end_;
  transfer now_;
  std::uint64_t round_ = 0;                      // of transfers: a thread joins each once
  unsigned working_ = 0;
  std::uint64_t next_ = 0;                       // the next chunk
  call_result failure_;
  bool ending_ = false;
  staging_statistics statistics_;
};

}  // namespace millpond
