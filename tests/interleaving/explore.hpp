// All interleavings of a small program, within a bound: the lock-free parts of the library under
// test, run by two or three threads of which one at a time makes a step.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace interleaving {

// Made anew for each execution. The threads share what they capture; at_end runs when all have
// ended and sees all that they did.
struct program {
  std::vector<std::function<void()>> threads;
  std::function<void()> at_end;
};

struct options {
  // How often a thread that could go on may be put aside for another. Where a thread waits, yields
  // or ends, another goes on at no cost.
  unsigned preemptions = 2;
  // How many loads of an execution may answer another store than the newest.
  unsigned stale_reads = ~0u;
  // How many compare_exchange_weak of an execution may fail for no reason.
  unsigned spurious_failures = 1;
  // A load that may answer a store which is made later is a failure: so that nothing is left out.
  bool later_stores_fail = true;
  // Except where this says why not, as "stream_cache::take_large load": loads whose answer is
  // looked at again or decides nothing that could be wrong, and operations that only count.
  std::vector<std::string> hints{};
  std::vector<std::string> counts{};
  std::uint64_t most_executions = 200'000;
  // The choices of one execution, as a failure prints them: only that one is run.
  std::string replay{};
  // Sites whose order is another, weaker one, by their names (outcome::sites).
  std::map<std::string, std::memory_order> weakened{};
};

struct outcome {
  bool failed = false;
  bool complete = false;  // all within the bounds were run
  std::uint64_t executions = 0;
  std::string message;          // of the first failure
  std::string choices;          // that lead to it
  std::string steps;            // of that execution, a line each
  std::set<std::string> sites;  // of all operations with an order stronger than relaxed
};

// One exploration at a time in a process. MILLPOND_REPLAY in the environment has a failing
// execution's choices, for one test.
[[nodiscard]] outcome explore(const options& how, const std::function<program()>& make);

// In a thread of a program or at its end.
void require(bool holds, std::string_view what);

// What happens when each order is weaker, in several programs: every site whose name begins with
// one of `prefixes`, as each weaker order. Sorted; "biased_lock::owner_unlock store release as
// relaxed".
struct order_report {
  std::vector<std::string> needed;      // some execution of some program fails
  std::vector<std::string> not_needed;  // none does, here
  std::uint64_t executions = 0;
};
[[nodiscard]] order_report weaken_each(const options& how, const std::vector<std::string>& prefixes,
                                       const std::vector<std::function<program()>>& makes);

// What process_barrier() does in this process.
enum class barrier : std::uint8_t {
  of_all,          // as membarrier does
  of_this_thread,  // membarrier was never there: owners pay
  refused_later,   // it was there and is refused: the first call passes time, owners pay from then
                   // on
};
void set_barrier(barrier what) noexcept;

}  // namespace interleaving
