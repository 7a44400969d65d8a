// Whether managed memory is used as it was stated: the driver's own counts of faults and moved
// pages, held against the use.
#pragma once
#include "millpond/detail/language.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "millpond/base/result.hpp"
#include "millpond/driver/driver.hpp"
#include "millpond/managed/managed_use.hpp"

namespace millpond {

// What has happened to pages of a stretch of managed memory.
struct managed_page_counts {
  std::uint64_t device_faults = 0;  // of kernels
  std::uint64_t device_write_faults =
      0;  // of those, stores and atomics; on the simulated GPU: duplicated pages that were written
  std::uint64_t host_faults = 0;                         // of the CPU
  std::uint64_t bytes_to_device = 0, bytes_to_host = 0;  // prefetches included
  std::uint64_t throttles =
      0;  // faults delayed, or pages found thrashing, because they moved to and fro
  bool operator==(const managed_page_counts&) const = default;
};

// Counts while it lives. Start it before the memory that it is to watch is allocated: CUPTI counts
// nothing of what was there before. Opt-in: on a card it needs CUPTI, the toolkit's profiling
// library, which serves one user a process, so that no profiler can watch beside it, and which adds
// some microseconds to each fault.
class managed_watch {
 public:
  // cupti: the library's file; where empty it is looked for by name and in the toolkit's usual
  // folders. The calling thread has the device's context. Errors: not_supported where this build
  // has no CUPTI headers, where the library is not found, or where it refuses, with its own words
  // (another profiler is there; no permission), or where a trial shows that it counts nothing;
  // not_permitted for a second watch in a process.
  [[nodiscard]] static result<std::shared_ptr<managed_watch>> start(std::shared_ptr<driver> gpu,
                                                                    const std::string& cupti = {});
  virtual ~managed_watch() = default;
  // Since the watch began, of the 2 MiB blocks that [at, at + bytes) touches; on the simulated GPU
  // of all managed memory, since its counts are not kept by address. Work that is to be counted
  // must have been waited for. On a card it waits until the counts are there, 14 to 21 ms (H200,
  // driver 580.159, CUDA 13.0); driver_failure where they are not within two seconds. Any thread.
  [[nodiscard]] virtual result<managed_page_counts> counts(device_address at,
                                                           std::uint64_t bytes) = 0;
  // Whether memory is counted that was allocated before the watch began.
  [[nodiscard]] virtual bool counts_earlier_memory() const noexcept { return false; }

  // Grows with each call in the process: what began first, a watch or a buffer.
  [[nodiscard]] static std::uint64_t next_beginning() noexcept;
  [[nodiscard]] std::uint64_t began() const noexcept { return began_; }

 protected:
  managed_watch() noexcept : began_(next_beginning()) {}

 private:
  std::uint64_t began_;
};

// What the counts say against the stated use of a block of so many bytes; empty where they agree. A
// handful of faults is no contradiction.
[[nodiscard]] std::vector<std::string> contradictions(const managed_use& use,
                                                      const managed_page_counts& counts,
                                                      std::uint64_t bytes);

}  // namespace millpond
