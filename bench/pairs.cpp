// Pairs of allocate and free, T threads, a stream each, sizes going round 4 KiB, 64 KiB, 1 MiB and
// 3 MiB: what an inference server with a thread a request does all day.
#include <array>

#include "bench/support/thread_run.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

int main(int count, char** arguments) {
  bench::harness h("pairs", count, arguments);
  constexpr std::array<std::uint64_t, 4> sizes{4 * KiB, 64 * KiB, 1 * MiB, 3 * MiB};
  const auto work = [&](bench::session& of, std::uint64_t rounds) {
    std::uint64_t failures = 0;
    for (std::uint64_t i = 0; i < rounds; ++i) {
      const std::uint64_t bytes = sizes[i & 3];
      void* const p = of.allocate(bytes);
      failures += p == nullptr;
      of.deallocate(p, bytes);
    }
    return failures;
  };
  bench::over_threads(h, {.rounds = 2'000'000, .slower = 50, .warm_rounds = 2000}, work,
                      [](bench::thread_outcome& outcome) {
                        outcome.row["worst_thread_ns"] = outcome.worst_thread_ns;
                        outcome.row["pairs_a_thread"] = outcome.rounds_a_thread;
                      });
}
