// Copies between pageable and device memory at the rate of pinned memory: several threads fill a
// pinned buffer piece by piece while what is filled goes over the link. The calling thread alone
// talks to the driver: threads that all did would wait for its lock, and waking from that takes
// longer than a piece is on the link.
#pragma once
#include "millpond/detail/language.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "millpond/memory/memory_resource.hpp"

namespace millpond {

// How the pinned buffer is written on the way to the device. The link reads what lies in a core's
// own cache, just written, at 20 to 30 GB/s, and what lies in the shared cache or in memory at 52
// (H200's host, Emerald Rapids, 2026-11-30; bench/results/h200/c9a557579c4f/staging.json).
enum class buffer_writes : std::uint8_t {
  chosen,   // up to 128 MiB, which the cores' caches may hold, demoted where the processor can and
            // else past_caches; plain beyond
  plain,    // memcpy
  demoted,  // memcpy, and the lines are sent on to the shared cache (CLDEMOTE, which other
            // processors ignore)
  past_caches,  // stores that go to memory
};

struct staging_options {
  unsigned threads = 0;  // beside the caller; 0: three quarters of the processors, at least 1, at
                         // most 12. Never more than 256, and as many as the system has to give
  // Pinned memory that everything passes through, 64 KiB to 4 GiB, rounded up to 64 KiB. A quarter
  // of it goes over the link at once at most.
  std::uint64_t buffer_bytes = std::uint64_t{32} << 20;
  // Below this a plain copy is made: from here on staging is the faster even where its threads
  // sleep (bench/results/h200/c9a557579c4f/staging.json).
  std::uint64_t least_bytes = std::uint64_t{1} << 20;
  // How often an idle thread yields and looks for the next transfer before it sleeps, some 0.3 us
  // each where nothing else runs: waking takes 50 to 100 us, as long as 4 MiB are on the link. 0:
  // it sleeps at once.
  unsigned looks_before_sleep = 1000;
  buffer_writes writes = buffer_writes::chosen;
};

struct staging_statistics {
  std::uint64_t transfers = 0;
  std::uint64_t plain_transfers = 0;  // too small to stage
  std::uint64_t bytes = 0;
  std::uint64_t copies = 0;            // put on streams
  std::uint64_t pieces = 0;            // moved by the CPU
  std::uint64_t pieces_of_caller = 0;  // of those, what the calling thread moved itself
};

// A plain copy of pageable memory goes at 8 GB/s to the device and at 14.5 back, through one buffer
// of the driver's, where pinned memory goes at 55 (H200, driver 580.159, 2026-11-30).
//
// Stream order: copies are put on the caller's stream, after the work that is on it. to_device
// returns when the source may be changed: all of it is in the pinned buffer or on the device; the
// copy itself is done when the stream has passed it. to_host returns when the data is there, having
// waited for the stream. One transfer at a time: a second thread waits. The calling thread does
// what no other is awake for, and waits for no thread that has not woken in time. Not into a
// capture, whose replay would find other data in the buffer: not_permitted. Errors: the driver's,
// by name; after one the destination's contents are undefined. In a forked child, which has neither
// the threads nor the GPU, transfers are refused with not_permitted, statistics() is all zeros and
// the end gives nothing back.
class staging {
 public:
  // memory: a pinned resource that outlives this; the buffer is taken from it on the default
  // stream, which is waited for once. not_permitted where a capture keeps that stream from being
  // waited for.
  [[nodiscard]] static result<std::unique_ptr<staging>> create(std::shared_ptr<driver> gpu,
                                                               memory_resource& memory,
                                                               staging_options options = {});
  ~staging();
  staging(const staging&) = delete;
  staging& operator=(const staging&) = delete;

  result<void> to_device(device_address to, const void* from, std::uint64_t bytes,
                         stream_handle stream);
  result<void> to_host(void* to, device_address from, std::uint64_t bytes, stream_handle stream);
  [[nodiscard]] staging_statistics statistics() const;

 private:
  enum class direction : std::uint8_t { to_device, to_host };
  struct transfer {
    direction way = direction::to_device;
    device_address device = 0;
    unsigned char* host = nullptr;
    std::uint64_t bytes = 0;
    stream_handle stream = nullptr;
  };
  // A copy that may not be done. Places count from the first byte ever staged; a place lies in the
  // buffer at its remainder.
  struct flight {
    event_handle done = nullptr;
    std::uint64_t begin = 0, end = 0;  // places
  };
  // Which piece the CPU moved last through a part of the buffer: the place behind it, which no
  // other piece of any transfer has. Release when it is moved.
  struct alignas(64) mark {
    std::atomic<std::uint64_t> moved{0};
  };
  staging(std::shared_ptr<driver> gpu, memory_resource& memory, staging_options options);
  [[nodiscard]] bool forked() const noexcept;
  result<void> prepare();
  result<void> move(const transfer& what);
  result<void> move_plainly(const transfer& what);
  call_result conduct_to_device();
  call_result conduct_to_host();
  call_result put_on_stream(std::uint64_t from, std::uint64_t end);
  call_result look_at_copies(std::uint64_t& passed);
  call_result wait_for_copies();
  void work();
  bool move_piece(std::uint64_t piece);
  bool help();
  [[nodiscard]] std::uint64_t pieces() const noexcept {
    return (now_.bytes + piece_bytes_ - 1) / piece_bytes_;
  }
  [[nodiscard]] std::uint64_t end_of(std::uint64_t piece) const noexcept {
    return std::min((piece + 1) * piece_bytes_, now_.bytes);
  }
  [[nodiscard]] std::uint64_t marked(std::uint64_t piece) const noexcept {
    return base_ + (piece + 1) * piece_bytes_;
  }
  [[nodiscard]] std::atomic<std::uint64_t>& mark_of(std::uint64_t piece) noexcept {
    return marks_[piece % (options_.buffer_bytes / piece_bytes_)].moved;
  }

  std::shared_ptr<driver> gpu_;
  memory_resource& memory_;
  staging_options options_;
  const std::uint32_t born_in_fork_;
  unsigned char* buffer_ = nullptr;
  std::unique_ptr<mark[]> marks_;
  std::vector<std::thread> threads_;
  mutable std::mutex
      turn_;  // one transfer at a time; held over the whole of it; guards what is the caller's
  std::array<flight, 16> flights_{};  // in their order, from first_flight_ on, around
  std::size_t first_flight_ = 0, in_flight_ = 0;
  std::uint64_t next_place_ = 0;  // behind everything staged
  staging_statistics statistics_;
  // Of the transfer that runs, written before crew_ opens and read by who is in the crew.
  transfer now_;
  std::uint64_t base_ = 0;                       // the place of its first byte
  buffer_writes writes_ = buffer_writes::plain;  // never `chosen`
  std::uint64_t piece_bytes_ = 0;                // what one thread moves at a time; a power of two
  std::atomic<std::uint64_t> next_{0};           // the piece that nobody has taken
  // to_device: places before it may be filled; to_host: what lies before it has landed. Release by
  // the caller: copies seen to be done.
  std::atomic<std::uint64_t> limit_{0};
  std::atomic<bool> failed_{false};
  // How many threads are at the transfer; closed: none may join. Acquire when joining, release when
  // leaving.
  static constexpr std::uint32_t closed = 1u << 31;
  std::atomic<std::uint32_t> crew_{closed};
  std::atomic<std::uint32_t> round_{0};  // of transfers: threads sleep on it
  std::atomic<bool> ending_{false};
};

}  // namespace millpond
