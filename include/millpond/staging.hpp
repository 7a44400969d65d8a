// Copies between pageable and device memory at the rate of pinned memory: several threads fill pinned chunks while
// others are on the link. The calling thread alone talks to the driver: threads that all did would wait for its lock, and waking from that
// takes longer than a chunk is on the link.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "millpond/memory_resource.hpp"

namespace millpond {

struct staging_options {
  unsigned threads = 0;                          // beside the caller; 0: half the processors, at least 1, at most 8
  // The largest chunk; there are two a thread. A transfer starts and ends with smaller ones, so that the link has something
  // to do early and the CPU little to do when it is done.
  std::uint64_t chunk_bytes = std::uint64_t{2} << 20;
  // Below this a plain copy is made: one buffer of the driver's is as fast as several of ours are awake
  // (bench/results/bench_staging_h200.json).
  std::uint64_t least_bytes = std::uint64_t{4} << 20;
  // How often an idle thread yields and looks for the next transfer before it sleeps, some 0.3 us each where nothing else
  // runs: waking takes 50 to 100 us, as long as 4 MiB are on the link. 0: it sleeps at once.
  unsigned looks_before_sleep = 1000;
};

struct staging_statistics {
  std::uint64_t transfers = 0;
  std::uint64_t plain_transfers = 0;             // too small to stage
  std::uint64_t bytes = 0;
  std::uint64_t chunks = 0;
  std::uint64_t chunks_of_caller = 0;            // of those, what the calling thread moved itself
};

// A plain copy of pageable memory goes at 8 GB/s to the device and at 14.5 back, through one buffer of the driver's, where
// pinned memory goes at 55 (H200, driver 580.159, 2026-11-30).
//
// Stream order: chunks are put on the caller's stream, after the work that is on it. to_device returns when the source
// may be changed: all of it is in pinned chunks or on the device; the copy itself is done when the stream has passed it.
// to_host returns when the data is there, having waited for the stream. One transfer at a time: a second thread waits. The
// calling thread does what no other is awake for, and waits for no thread that has not woken in time.
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
  // A pinned chunk. Within a transfer chunk n of it goes through slot n modulo their number. Turns count from 1 with each chunk that goes
  // through the slot; the caller writes `ready`, the thread that moves the chunk `moved`; both release what was done before.
  struct alignas(64) slot {
    unsigned char* memory = nullptr;
    event_handle done = nullptr;                 // of its last copy; the caller's alone
    std::atomic<std::uint64_t> ready{0};         // to_device: turns that may be filled; to_host: turns that have landed
    std::atomic<std::uint64_t> moved{0};         // turns that the CPU has filled, or emptied
  };
  struct transfer {
    direction way = direction::to_device;
    device_address device = 0;
    unsigned char* host = nullptr;
    std::uint64_t bytes = 0;
    stream_handle stream = nullptr;
  };
  staging(std::shared_ptr<driver> gpu, memory_resource& memory, staging_options options);
  result<void> prepare();
  result<void> move(const transfer& what);
  result<void> move_plainly(const transfer& what);
  void cut(std::uint64_t bytes);
  call_result conduct_to_device();
  call_result conduct_to_host();
  call_result put_on_stream(std::uint64_t chunk);
  call_result look_at_copies(bool& happened);
  void work();
  bool move_chunk(std::uint64_t chunk);
  bool help();
  [[nodiscard]] std::uint64_t begin_of(std::uint64_t chunk) const noexcept { return chunk == 0 ? 0 : ends_[chunk - 1]; }

  std::shared_ptr<driver> gpu_;
  memory_resource& memory_;
  staging_options options_;
  std::vector<std::unique_ptr<slot>> slots_;
  std::vector<std::thread> threads_;
  mutable std::mutex turn_;                      // one transfer at a time; held over the whole of it; guards what is the caller's
  std::vector<std::pair<slot*, std::uint64_t>> on_link_;  // copies that may not be done, in their order, and the turn that follows each
  std::vector<std::uint64_t> filled_next_;       // by slot: the chunk that it is to be filled with next
  staging_statistics statistics_;
  // Of the transfer that runs, written before crew_ opens and read by who is in the crew.
  transfer now_;
  std::vector<std::uint64_t> ends_;              // chunk n is the bytes from ends_[n - 1] to ends_[n]
  std::atomic<std::uint64_t> next_{0};           // the chunk that nobody has taken
  std::atomic<bool> failed_{false};
  // How many threads are at the transfer; closed: none may join. Acquire when joining, release when leaving.
  static constexpr std::uint32_t closed = 1u << 31;
  std::atomic<std::uint32_t> crew_{closed};
  std::atomic<std::uint32_t> round_{0};          // of transfers: threads sleep on it
  std::atomic<bool> ending_{false};
};

}  // namespace millpond
