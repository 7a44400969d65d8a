// What the page machine's steps cost and how large its parts are, each with the place it is from.
//
// "measured" is one NVIDIA H200, driver 580.159, CUDA 13.0, 2026-11-30; "driver" is the unified-memory module of
// open-gpu-kernel-modules 595.45.04; "fitted" follows from measured rows of two sizes, as docs/managed_memory.md shows.
#pragma once
#include <cstdint>

#include "millpond/simulated_gpu.hpp"
#include "millpond/units.hpp"

namespace millpond::sim::pages {

inline constexpr std::uint64_t base_page_bytes = 4 * KiB;
inline constexpr std::uint64_t big_page_bytes = 64 * KiB;
inline constexpr std::uint64_t block_bytes = 2 * MiB;   // the driver keeps all state by it, and evicts by it
inline constexpr unsigned pages_a_block = 512;
inline constexpr unsigned pages_a_big_page = 16;

struct page_costs {
  // --- The fault path ---
  unsigned batch_faults = 256;            // driver: faults serviced in one batch
  unsigned density_percent = 51;          // driver: a subtree is prefetched when more than this is there or faulted
  double first_fault_ns = 200e3;          // fitted: what 16 MiB and 256 MiB leave at no pages: waking the service
  double batch_ns = 5e3;                  // assumed: fetching a batch and replaying it; small beside the rest
  double block_service_ns = 10e3;         // fitted: one byte a 2 MiB, 512 KiB and 128 KiB (1, 4 and 16 pieces a block): 22, 50 and
  double region_ns = 5.5e3;               // 164 us a block; each stretch of pages is copied and mapped by itself
  double big_page_ns = 1.6e3;             // fitted: one byte a 64 KiB and a 16 KiB (32 and 128 faults a block): 93 us of untouched
  double fault_ns = 0.7e3;                // memory and 215 us of the CPU's
  double replay_ns = 1.5e3;               // fitted: a kernel that reads whole pages, 250 us a block, beside one that writes them, 110
                                          // to 167: loads fault again until their page is there
  double remote_map_ns = 0.7e3;           // fitted: preferred location CPU, 65,536 and 4,096 faults in 200 and 11.5 ms
  double populate_block_ns = 15e3;        // fitted: untouched memory, 34 ms a 256 MiB, with no copy to make
  double duplicate_block_ns = 115e3;      // fitted: read-mostly and a prefetch, 17 to 26 ms a 256 MiB where a prefetch is 5.4
  double to_device_bytes_per_s = 0;       // measured, pinned copies
  // --- Collapse of a duplicated page, one fault at a time ---
  double collapse_ns = 16e3;              // fitted: read-mostly, written: 264 to 307 ms for 16,384 pages
  double collapse_to_host_ns = 19.6e3;    // fitted, with the CPU as preferred location: 111 ms for 4,096 pages of 8 blocks, 8.7 s for
  double collapse_block_ns = 877;         // 65,536 of 128: each costs this for every block of the allocation as well
  // --- The CPU's side ---
  double host_fault_ns = 38e3;            // fitted: faulted back 38 ms a 256 MiB on one host and 14 a 64 MiB on another, six a block
  double host_populate_page_ns = 250;     // assumed: an anonymous page's first touch
  double to_host_bytes_per_s = 0;         // measured: prefetch back, which pays for host pages too
  // --- Prefetch ---
  double prefetch_call_ns = 170e3;        // fitted: 16 MiB in 0.51 ms and 256 MiB in 5.6, kernels included
  double prefetch_block_ns = 2.9e3;       // fitted: the same, beyond the link's time
  // --- Thrashing (driver) ---
  unsigned thrash_events = 3;
  double thrash_lapse_ns = 500e3;         // so many events within it are thrashing; also how long a throttled fault waits
  unsigned thrash_throttles = 10;
  double thrash_pin_ns = 150e6;
  double thrash_reset_ns = 1e9;
  // --- Access counters (driver) ---
  unsigned counter_threshold = 256;       // remote accesses of a block; they move it only where the machine has ATS
  // --- The kernel ---
  unsigned multiprocessors = 132;
  unsigned stream_run_pages = 16;         // 2048 threads of a multiprocessor with two 16-byte accesses: 64 KiB
  unsigned stream_run_faults = 2;         // of those in one batch: 132 have the batch full
  unsigned lone_run_touches = 1024;       // one touch a thread: a thread block's worth
  double launch_ns = 9.3e3;               // measured: launch and synchronise
  double read_write_pass_bytes_per_s = 0; // measured: 256 MiB read and written in 0.20 ms
  double read_pass_bytes_per_s = 0;       // measured: a plain loop reads 64 MiB in 40 us
  double remote_bytes_per_s = 0;          // measured: a kernel on pinned memory, 256 MiB in 6.4 ms
  double remote_round_trip_ns = 1.5e3;    // fitted: a control block in mapped memory 10 to 11 us with the launch
  // --- Translation ---
  unsigned first_tlb_entries = 16;        // a multiprocessor; Jia et al. 2018 on Volta: 32 MiB covered
  unsigned second_tlb_entries = 4096;     // shared; the same: 8 GiB covered
  unsigned last_tlb_entries = 32768;      // measured: random reads slow down past some 64 GiB
  double walk_ns = 0.27;                  // measured: 96 GiB, 8.2 G reads a second for 31; walks overlap

  // For a profile: its link and memory rates, and its managed rates where they say more.
  [[nodiscard]] static page_costs from(const gpu_profile& profile) noexcept;
};

// Faults that a kernel which streams over `pages` pages of one block raises before it is served: each
// multiprocessor works on 64 KiB and has two faults in a batch of 256.
[[nodiscard]] std::uint64_t stream_faults(std::uint64_t pages) noexcept;

}  // namespace millpond::sim::pages
