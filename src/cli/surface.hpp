// The command's options as plain data, read from what parses them: help, shell completion and the
// man page say the same.
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace millpond::cli {

struct option_facts {
  std::vector<std::string> longs, shorts;  // without dashes; both empty: a positional
  std::string name;                        // of a positional
  std::string value;                       // "FILE"; empty for a flag
  std::vector<std::string> choices;        // where only these are taken
  std::string description, standard;       // standard: its value without being given, or empty
  bool required = false;
};

struct command_facts {
  std::string name, summary, footer;
  std::vector<option_facts> options;
};

struct surface {
  std::string summary, footer;
  std::vector<command_facts> commands;
};
[[nodiscard]] surface read_surface(const CLI::App& app);

// A script for "bash", "zsh" or "fish"; empty for another word.
[[nodiscard]] std::string completion_script(const surface& of, const std::string& shell);
// millpond(1), as roff.
[[nodiscard]] std::string man_page(const surface& of, const std::string& version);

// Has --help broken into lines of 80 columns.
void set_help_format(CLI::App& app);

}  // namespace millpond::cli
