// What the page machine's steps cost and how large its parts are, each with the place it is from.
//
// "measured" is one NVIDIA H200, driver 580.159, CUDA 13.0, 2026-11-30; "driver" is the
// unified-memory module of open-gpu-kernel-modules 595.45.04; "fitted" follows from measured rows
// of two sizes, as docs/measured/managed_memory.md shows.
#pragma once
#include <cstdint>

#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::sim::pages {

inline constexpr std::uint64_t base_page_bytes = 4 * KiB;
inline constexpr std::uint64_t big_page_bytes = 64 * KiB;
inline constexpr std::uint64_t block_bytes =
    2 * MiB;  // the driver keeps all state by it, and evicts by it
inline constexpr unsigned pages_a_block = 512;
inline constexpr unsigned pages_a_big_page = 16;

struct page_costs {
  // --- The fault path ---
  unsigned batch_faults = 256;  // driver: faults serviced in one batch
  unsigned density_percent =
      51;  // driver: a subtree is prefetched when more than this is there or faulted
  double first_fault_ns = 47e3;  // measured: a kernel that touches one page of 4 KiB takes 75 to 86
                                 // us, 9 of it the launch
  double more_blocks_ns = 165e3;  // fitted: what all sizes over a block leave at no pages beside
                                  // that: a kernel's faults on several blocks wake the service
                                  // again and again before they come in full batches
  double batch_ns = 5e3;  // assumed: fetching a batch and replaying it; small beside the rest
  double block_service_ns = 9.4e3;  // fitted: one byte a 4 MiB to one a 128 KiB (1 to 16 pieces a
                                    // block): 20 to 165 us a block;
  double region_ns = 6.35e3;        // each stretch of pages is copied and mapped by itself
  double big_page_ns = 1.33e3;      // fitted: one byte a 64 KiB to one a 4 KiB (32 to 512 faults a
                                    // block): 93 us of untouched
  double fault_ns = 1.19e3;         // memory, 130 to 330 us of the CPU's
  double replay_ns = 0.8e3;  // fitted: kernels that go through whole pages, 106 to 167 us a block
                             // of untouched memory (265 on one host) and 200 to 290 of the CPU's
  double remote_map_ns =
      0.05e3;  // fitted: preferred location CPU, 2,048 to 65,536 faults, 1.8 to 3.1 us each
  double populate_block_ns =
      1e3;  // assumed: 2 MiB zeroed at the memory's rate; untouched rows show no more
  double duplicate_block_ns =
      130e3;  // fitted: read-mostly and a prefetch, 17 to 26 ms a 256 MiB where a prefetch is 5.4
  double to_device_bytes_per_s = 0;  // measured, pinned copies
  // --- Collapse of a duplicated page, one fault at a time ---
  double collapse_ns =
      17.5e3;  // fitted: read-mostly, written: 4,096 to 32,768 pages, 17 to 28 us each
  double collapse_to_host_ns = 22.4e3;  // fitted, with the CPU as preferred location: 4,096 to
                                        // 16,384 pages in 111 to 395 ms; in an
  double collapse_block_ns = 1.14e3;  // allocation of more blocks than these a page costs more for
                                      // each block beyond: 65,536
  std::uint64_t collapse_blocks =
      32;  // of 128 blocks in 8.7 s on one host, and in 2.8 s on another; why is not known
  // --- The CPU's side ---
  double host_fault_ns = 16.0e3;  // measured: blocks of 4 KiB and of 64 KiB come back by one fault
                                  // in 16.6 and 25.3 us, of which the
  double host_page_ns = 0.31e3;   // link has 0.26 a page; on a host where 256 MiB take 56 ms
  double host_populate_page_ns = 250;  // assumed: an anonymous page's first touch
  double to_host_bytes_per_s = 0;      // measured: prefetch back, which pays for host pages too
  // --- Prefetch ---
  double prefetch_call_ns = 93e3;       // fitted: 8 to 512 MiB, kernels included
  double prefetch_block_ns = 3.6e3;     // fitted: the same, beyond the link's time
  double prefetch_back_call_ns = 17e3;  // measured: 4 KiB and 64 KiB back in 17 to 21 us
  // --- Thrashing (driver) ---
  unsigned thrash_events = 3;  // so many moves of a page, each
  double thrash_lapse_ns =
      500e3;  // within this of the one before, are thrashing; also how long a throttled fault waits
  unsigned thrash_throttles = 10;
  double thrash_pin_ns = 150e6;
  double thrash_reset_ns = 1e9;
  double thrash_nap = 1.1;  // driver: a CPU thread sleeps 1 to 1.5 times its wait,
                            // usleep_range(nap, 1.5 nap); measured: rounds of 4 KiB with one nap
                            // take 520 to 590 us, of which the wait is some 420
  // --- Access counters (driver) ---
  unsigned counter_threshold =
      256;  // remote accesses of a block; they move it only where the machine has ATS
  // --- The kernel ---
  unsigned multiprocessors = 132;
  unsigned stream_run_pages =
      16;  // 2048 threads of a multiprocessor with two 16-byte accesses: 64 KiB
  unsigned stream_run_faults = 2;  // of those in one batch: 132 have the batch full;
  unsigned stream_run_most_faults =
      5;  // fitted: where fewer are at work, 512 KiB and 2 MiB in 180 and 380 to 480 us
  unsigned lone_run_touches = 1024;        // one touch a thread: a thread block's worth
  double launch_ns = 9.3e3;                // measured: launch and synchronise
  double read_write_pass_bytes_per_s = 0;  // measured: 256 MiB read and written in 0.20 ms
  double read_pass_bytes_per_s = 0;        // measured: a plain loop reads 64 MiB in 40 us
  double remote_bytes_per_s = 0;           // measured: a kernel on pinned memory, 256 MiB in 6.4 ms
  double remote_round_trip_ns =
      1.5e3;  // fitted: a control block in mapped memory 10 to 11 us with the launch
  // --- Translation ---
  unsigned first_tlb_entries = 16;     // a multiprocessor; Jia et al. 2018 on Volta: 32 MiB covered
  unsigned second_tlb_entries = 4096;  // shared; the same: 8 GiB covered
  unsigned last_tlb_entries = 32768;   // measured: random reads slow down past some 64 GiB
  double walk_ns = 0.27;  // measured: 96 GiB, 8.2 G reads a second for 31; walks overlap

  // For a profile: its link and memory rates, and its managed rates where they say more.
  [[nodiscard]] static page_costs from(const gpu_profile& profile) noexcept;
};

// Faults that a kernel which streams over `pages` pages of one block raises before it is served:
// each multiprocessor works on 64 KiB and has two faults in a batch of 256.
[[nodiscard]] std::uint64_t stream_faults(std::uint64_t pages) noexcept;

}  // namespace millpond::sim::pages
