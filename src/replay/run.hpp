// One workload through one strategy on one GPU.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "millpond/driver/driver.hpp"
#include "replay/outcome.hpp"
#include "replay/workload.hpp"

namespace millpond::replay {

enum class contents_mode : std::uint8_t {
  no_touch,  // the allocator alone: no kernel runs
  touch,     // each block is written by a kernel on its stream and checked before its free
};
enum class pacing : std::uint8_t {
  flat_out,  // one operation after another
  recorded,  // with the recorded pauses: the host waits on a card, virtual time passes on the
             // simulated GPU
};

struct run_options {
  contents_mode contents = contents_mode::touch;
  pacing pace = pacing::flat_out;
  staging copies = staging::pinned;  // for a workload that copies; ignored otherwise
  std::uint64_t rounds =
      1;  // the workload again and again through one allocator: the first is cold
  // Host nanoseconds. Not used on a simulated GPU, whose own virtual clock counts.
  std::function<std::uint64_t()> clock;
  // Called now and then on the running thread with the share done, 0 to 1.
  std::function<void(double)> progress;
  // Makes the strategy; find_strategy(name)->make where empty. For tests with strategies of their
  // own.
  std::function<std::unique_ptr<strategy>()> make;
  std::size_t most_violations = 20;  // kept in words; all are counted
};

// Runs on the calling thread. Driver time on a simulated GPU is virtual; the strategy's own host
// time there is path counts times the costs in the GPU's profile, never this machine's time. A
// request that fails is counted and the replay goes on without its block. Errors: driver_failure
// when the GPU itself fails (a lost device).
[[nodiscard]] result<outcome> run(const workload& work, const strategy_facts& which,
                                  std::shared_ptr<driver> gpu, const run_options& options);

}  // namespace millpond::replay
