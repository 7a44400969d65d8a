// What the command says of itself: help, completion, manual page, suggestions.
#include <gmock/gmock.h>

#include <set>
#include <sstream>
#include <vector>

#include "cli/command.hpp"
#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class surface : public command_run {
 protected:
  // "--json" and the like, of a subcommand's help.
  std::set<std::string> options_of(const std::string& name) const {
    std::set<std::string> made;
    std::istringstream lines(millpond(name + " --help").out);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  -")) continue;
      const std::size_t at = line.find("--");
      if (at != std::string::npos && at < 6)
        made.insert(line.substr(at, line.find_first_of(" ,", at) - at));
    }
    return made;
  }
  std::vector<std::string> bash_completes(const std::string& words) const {
    const std::string script =
        "source " + write("c.bash", millpond("completion bash").out) + "; COMP_WORDS=(" + words +
        "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _millpond; printf '%s\\n' \"${COMPREPLY[@]}\"";
    std::ofstream(folder_ / "ask.bash") << script;
    EXPECT_EQ(
        std::system(("bash " + (folder_ / "ask.bash").string() + " >" + (folder_ / "said").string())
                        .c_str()),
        0);
    std::vector<std::string> made;
    std::istringstream lines(read_all(folder_ / "said"));
    for (std::string line; std::getline(lines, line);) made.push_back(line);
    return made;
  }
};

TEST_F(surface, help_fits_80_columns_and_each_subcommand_has_an_example) {
  std::vector<std::string> all{""};
  for (const command_entry& entry : all_commands()) all.emplace_back(entry.name);
  for (const std::string& name : all) {
    const answer made = millpond(name + " --help");
    EXPECT_EQ(made.status, 0);
    EXPECT_THAT(made.out, HasSubstr("Examples:\n  millpond " + name));
    std::istringstream lines(made.out);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), 80u) << name << ": " << line;
  }
}

TEST_F(surface, a_mistyped_subcommand_or_option_gets_a_suggestion) {
  EXPECT_THAT(millpond("raport x").err, HasSubstr("did you mean `report`?"));
  const answer made = millpond("report x --form html");
  EXPECT_EQ(made.status, 2);
  EXPECT_THAT(made.err, HasSubstr("did you mean `--format`?"));
  EXPECT_THAT(millpond("compare --workloat inference").err,
              HasSubstr("did you mean `--workload`?"));
}

TEST_F(surface, bash_completes_subcommands_options_and_their_words) {
  EXPECT_THAT(bash_completes("millpond exp"), ElementsAre("explain"));
  EXPECT_THAT(bash_completes("millpond report --format p"), ElementsAre("perfetto", "pytorch"));
  EXPECT_THAT(bash_completes("millpond top --inter"), ElementsAre("--interval"));
  EXPECT_THAT(bash_completes("millpond completion z"), ::testing::Contains("zsh"));
}

TEST_F(surface, every_option_is_in_every_shells_script_and_in_the_manual) {
  const std::string bash = millpond("completion bash").out, zsh = millpond("completion zsh").out,
                    fish = millpond("completion fish").out;
  const std::string manual = millpond("completion man").out;
  for (const command_entry& entry : all_commands()) {
    EXPECT_THAT(fish, HasSubstr(std::string("-a ") + entry.name + " "));
    const auto options = options_of(entry.name);
    EXPECT_GE(options.size(), 3u) << entry.name;
    for (const std::string& option : options) {
      EXPECT_THAT(bash, HasSubstr(option));
      EXPECT_THAT(zsh, HasSubstr(option + "["));
      EXPECT_THAT(fish, HasSubstr("-l " + option.substr(2)));
      std::string escaped;
      for (const char each : option) escaped += each == '-' ? "\\-" : std::string(1, each);
      EXPECT_THAT(manual, HasSubstr(escaped)) << entry.name;
    }
  }
}

TEST_F(surface, the_shells_that_are_here_accept_their_scripts) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    if (std::system((std::string("command -v ") + shell + " >/dev/null").c_str()) != 0) continue;
    const std::string script = write(shell, millpond(std::string("completion ") + shell).out);
    EXPECT_EQ(std::system((std::string(shell) + " -n " + script).c_str()), 0) << shell;
  }
  if (std::system("command -v groff >/dev/null") == 0) {
    const std::string page = write("millpond.1", millpond("completion man").out);
    EXPECT_EQ(
        std::system(("test -z \"$(groff -ww -man -Tutf8 " + page + " 2>&1 >/dev/null)\"").c_str()),
        0)
        << "roff complains";
  }
}

}  // namespace
}  // namespace millpond::cli
