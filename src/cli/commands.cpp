// The list of subcommands. A new one: its file, a declaration here, and a line in the table.
#include <array>

#include "cli/command.hpp"

namespace millpond::cli {

command_body add_compare(CLI::App& app);
command_body add_replay(CLI::App& app);

std::span<const command_entry> all_commands() noexcept {
  static constexpr std::array table{
      command_entry{"compare", "Every strategy on one workload, its cost, and which one to use",
                    "  millpond compare data/traces/resnet_serving.csv.gz\n"
                    "  millpond compare trace.mpt --gpu 0 --json\n"
                    "  millpond compare --workload inference --seed 7\n",
                    add_compare},
      command_entry{"replay", "One workload through one strategy, with its contents checked",
                    "  millpond replay trace.mpt --strategy millpond-pool\n"
                    "  millpond replay --workload churn --strategy driver-pool --rounds 3\n",
                    add_replay},
  };
  return table;
}

}  // namespace millpond::cli
