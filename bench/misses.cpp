// Threads that all miss their caches at once: pairs as in bench/pairs, of sizes that no cache
// keeps, so that every call goes to the heap and its one lock. How often the lock was found taken
// is counted.
#include <array>

#include "bench/support/thread_run.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

int main(int count, char** arguments) {
  bench::harness h("misses", count, arguments);
  constexpr std::array<std::uint64_t, 4> sizes{5 * MiB, 9 * MiB, 17 * MiB, 33 * MiB};
  // All four sizes live at once, then all freed: the heap carves and joins.
  const auto work = [&](bench::session& of, std::uint64_t rounds) {
    std::uint64_t failures = 0;
    std::array<void*, sizes.size()> live{};
    for (std::uint64_t i = 0; i < rounds; ++i) {
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        live[k] = of.allocate(sizes[k]);
        failures += live[k] == nullptr;
      }
      for (std::size_t k = 0; k < sizes.size(); ++k) of.deallocate(live[k], sizes[k]);
    }
    return failures;
  };
  const bench::thread_plan plan{
      .rounds = 50'000, .slower = 20, .warm_rounds = 100, .pairs_a_round = sizes.size()};
  bench::over_threads(h, plan, work, [](bench::thread_outcome& outcome) {
    if (outcome.own == nullptr) return;
    outcome.row["lock_waits_a_pair"] =
        static_cast<double>(outcome.lock_waits) / static_cast<double>(outcome.pairs);
    outcome.row["paths"] = bench::paths_of(outcome.own->statistics());
  });
}
