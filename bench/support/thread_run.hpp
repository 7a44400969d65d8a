// The frame of a run over threads: each allocator, with 1 to 16 threads that have a stream each and
// do the same rounds at the same time.
#pragma once
#include <cstdint>
#include <functional>

#include "bench/support/harness.hpp"

namespace millpond::bench {

struct thread_plan {
  std::uint64_t rounds = 0;         // of millpond, in all
  std::uint64_t slower = 1;         // a peer does so many times fewer
  std::uint64_t warm_rounds = 0;    // at most
  std::uint64_t pairs_a_round = 1;  // of an allocation and a free
};

struct thread_outcome {
  value row;  // name, threads, ns_a_pair, failures
  double worst_thread_ns = 0;
  std::uint64_t rounds_a_thread = 0;
  std::uint64_t pairs = 0;  // of all threads
  pool* own = nullptr;      // where the subject is millpond's
  std::uint64_t lock_waits = 0;
};

// One thread's rounds, which answer how many allocations failed.
using thread_rounds = std::function<std::uint64_t(session& of, std::uint64_t rounds)>;

// `report` adds what it likes to the row.
void over_threads(harness& h, const thread_plan& plan, const thread_rounds& work,
                  const std::function<void(thread_outcome&)>& report);

}  // namespace millpond::bench
