// The list of subcommands. A new one: its file, a declaration here, and a line in the table.
#include <array>

#include "cli/command.hpp"

namespace millpond::cli {

command_body add_doctor(CLI::App& app);

std::span<const command_entry> all_commands() noexcept {
  static constexpr std::array table{
      command_entry{"doctor", "What this machine has for GPU memory, and what is misconfigured",
                    "  millpond doctor\n"
                    "  millpond doctor --json --pinned-budget 16GiB\n"
                    "  millpond doctor --gpu sim\n",
                    add_doctor},
  };
  return table;
}

}  // namespace millpond::cli
