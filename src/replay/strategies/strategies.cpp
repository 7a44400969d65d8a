#include <array>

#include "replay/strategies/makers.hpp"

namespace millpond::replay {

std::span<const strategy_facts> all_strategies() noexcept {
  using enum strategy_facts::knowledge;
  static constexpr std::array table{
      strategy_facts{"cuda-malloc", "cudaMalloc and cudaFree for each request", none, make_plain},
      strategy_facts{"managed", "cudaMallocManaged and cudaFree for each request", none,
                     make_managed},
      strategy_facts{"driver-pool", "cudaMallocAsync with the default release threshold (0)", none,
                     make_driver_pool},
      strategy_facts{"driver-pool-kept", "cudaMallocAsync keeping all that it took", none,
                     make_driver_pool_kept},
      strategy_facts{"fixed-arena",
                     "one block of the size this very workload needs, shared out by us",
                     whole_workload, make_fixed_arena},
      strategy_facts{"millpond-pool", "millpond's stream-ordered pool over virtual memory", none,
                     make_millpond_pool},
  };
  return table;
}

const strategy_facts* find_strategy(std::string_view name) noexcept {
  for (const strategy_facts& each : all_strategies()) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

}  // namespace millpond::replay
