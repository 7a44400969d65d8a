// One workload through many strategies.
#pragma once
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "replay/run.hpp"

namespace millpond::replay {

struct compare_options {
  run_options each;                               // copies is set by the comparison
  std::vector<const strategy_facts*> strategies;  // empty: all
  // Strategies at a time, each on a GPU of its own. More than 1 only on simulated GPUs: on a card
  // they would disturb each other.
  unsigned workers = 1;
  // From any worker's thread: how many runs are over, of how many, and the one that begins or
  // ended.
  std::function<void(std::size_t done, std::size_t all, std::string_view label)> progress;
  // From any worker's thread, now and then: how much of this run is done, 0 to 1.
  std::function<void(std::string_view label, double share)> running;
};

// A GPU for one run; called once a run, from any worker.
using gpu_source = std::function<result<std::shared_ptr<driver>>()>;

// Outcomes in the order of the strategies; a workload that copies goes through each twice, with
// pinned and with pageable staging. Errors: the first that a run or the source gave.
[[nodiscard]] result<std::vector<outcome>> compare(const workload& work, const gpu_source& gpus,
                                                   const compare_options& options);

}  // namespace millpond::replay
