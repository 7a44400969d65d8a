// The page machine: a kernel's touches go through translation buffers and page tables, those that
// fault are served in batches, and the time of it all is added up. One managed allocation, one
// kernel at a time.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "driver/sim/pages/pattern.hpp"
#include "driver/sim/pages/space.hpp"

namespace millpond::sim::pages {

enum class start_location : std::uint8_t { untouched, host, device };

struct advice_given {
  managed_advice what = managed_advice::set_read_mostly;
  memory_location location = memory_location::device;
};

struct run_options {
  std::uint64_t bytes = 0;
  pattern_kind pattern = pattern_kind::stream;
  std::uint64_t stride = 0;
  std::uint64_t touches = 0;
  access_kind access = access_kind::read_write;
  start_location start = start_location::host;  // where the data is when the first kernel runs
  std::vector<advice_given> advice;             // given before the data is written
  enum class before : std::uint8_t { nothing, prefetch };
  before each_kernel = before::nothing;
  std::uint64_t rounds = 1;  // kernels; in ping-pong the CPU writes before each and reads after it
  std::uint64_t device_bytes = 0;  // for managed pages; 0: no limit
  space::options::counters access_counters = space::options::counters::only_count;
  // 0: the driver as it is. Else one fault moves exactly this many bytes, and nothing is
  // prefetched.
  std::uint64_t ideal_page_bytes = 0;
  std::uint64_t seed = 1;
};

struct tlb_counts {
  std::uint64_t lookups = 0;
  std::uint64_t first_hits = 0, second_hits = 0, last_hits = 0;
  std::uint64_t misses = 0;  // page-table walks, those that end in a fault too
  [[nodiscard]] std::uint64_t hits() const noexcept { return first_hits + second_hits + last_hits; }
};

struct run_report {
  page_counts counts;  // of all rounds
  tlb_counts tlb;
  double prefetch_ns = 0;        // of all rounds
  double fault_ns = 0;           // that kernels waited for pages
  double access_ns = 0;          // the kernels' own time: memory, link, walks, launches
  double host_ns = 0;            // the CPU's side of ping-pong
  std::vector<double> round_ns;  // each round, prefetch and the CPU's side included
  [[nodiscard]] double total_ns() const noexcept {
    return prefetch_ns + fault_ns + access_ns + host_ns;
  }
  // The round at a share (0 to 1) of the sorted ones.
  [[nodiscard]] double round_at_ns(double share) const;
};

// Deterministic. bytes > 0.
[[nodiscard]] run_report run(const run_options& options, const page_costs& costs);

}  // namespace millpond::sim::pages
