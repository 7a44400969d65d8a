// Completion for three shells, and the subcommand that prints it.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <ostream>

#include "cli/command.hpp"
#include "cli/surface.hpp"

namespace millpond::cli {
namespace {

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

std::vector<std::string> dashed(const option_facts& of) {
  std::vector<std::string> made;
  made.reserve(of.longs.size() + of.shorts.size());
  for (const std::string& each : of.longs) made.push_back("--" + each);
  for (const std::string& each : of.shorts) made.push_back("-" + each);
  return made;
}

// Other values are numbers and names: a list of files would be wrong for each of them.
bool is_file(const option_facts& of) {
  return of.value.find("FILE") != std::string::npos;
}

std::string bash_script(const surface& of) {
  std::vector<std::string> names;
  std::string options, values, places;
  for (const command_facts& command : of.commands) {
    names.push_back(command.name);
    std::vector<std::string> all;
    for (const option_facts& option : command.options) {
      if (dashed(option).empty() && !option.choices.empty()) {
        places += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;\n",
                              command.name, joined(option.choices));
      }
      for (const std::string& each : dashed(option)) {
        all.push_back(each);
        if (option.value.empty()) continue;
        values += fmt::format(
            "    '{} {}') {} ;;\n", command.name, each,
            is_file(option) ? std::string("COMPREPLY=($(compgen -f -- \"$current\")); return")
            : option.choices.empty()
                ? std::string("return")
                : fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$current\")); return",
                              joined(option.choices)));
      }
    }
    options += fmt::format("      {}) words='{}' ;;\n", command.name, joined(all));
  }
  return fmt::format(R"(# bash completion for millpond, printed by `millpond completion bash`
_millpond() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= words= at
  COMPREPLY=()
  for ((at = 1; at < COMP_CWORD; ++at)); do
    # Behind `--` stands another program.
    if [ "${{COMP_WORDS[at]}}" = -- ]; then COMPREPLY=($(compgen -c -f -- "$current")); return; fi
    case ${{COMP_WORDS[at]}} in
      -*) ;;
      *) if [ -z "$command" ]; then command=${{COMP_WORDS[at]}}; fi ;;
    esac
  done
  if [ -z "$command" ]; then
    COMPREPLY=($(compgen -W '{} --help --version' -- "$current"))
    return
  fi
  case "$command $before" in
{}  esac
  if [ "${{current:0:1}}" = - ]; then
    case $command in
{}    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  else
    case $command in
{}    *) ;;
    esac
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _millpond millpond
)",
                     joined(names), values, options, places);
}

// Inside '...' of a shell.
std::string quoted_for_shell(const std::string& text, bool colons) {
  std::string made;
  for (const char each : text) {
    if (each == '\'') {
      made += "'\\''";
    } else if (colons && (each == ':' || each == '[' || each == ']')) {
      made += '\\';
      made += each;
    } else {
      made += each;
    }
  }
  return made;
}

std::string zsh_script(const surface& of) {
  std::string names, cases;
  for (const command_facts& command : of.commands) {
    names += fmt::format("    '{}:{}'\n", command.name, quoted_for_shell(command.summary, false));
    cases += fmt::format("    {})\n      _arguments -S \\\n", command.name);
    for (const option_facts& option : command.options) {
      for (const std::string& each : dashed(option)) {
        std::string value;
        if (!option.value.empty()) {
          value =
              fmt::format(":{}:{}", quoted_for_shell(option.value, true),
                          is_file(option)          ? std::string("_files")
                          : option.choices.empty() ? std::string(" ")
                                                   : fmt::format("({})", joined(option.choices)));
        }
        cases += fmt::format("        '{}[{}]{}' \\\n", each,
                             quoted_for_shell(option.description, true), value);
      }
    }
    std::string places = "*:file:_files";
    for (const option_facts& option : command.options) {
      if (dashed(option).empty() && !option.choices.empty())
        places = fmt::format("1:{}:({})", option.name, joined(option.choices));
    }
    cases += fmt::format("        '{}' ;;\n", places);
  }
  return fmt::format(R"(#compdef millpond
# zsh completion for millpond, printed by `millpond completion zsh`
_millpond() {{
  local -a commands
  commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe 'subcommand' commands
    return
  fi
  # Behind `--` stands another program.
  local at=${{words[(i)--]}}
  if (( at < CURRENT )); then
    words=("${{(@)words[at+1,-1]}}")
    (( CURRENT -= at ))
    _normal
    return
  fi
  local command=${{words[2]}}
  shift words
  (( CURRENT-- ))
  case $command in
{}  esac
}}
if [ "$funcstack[1]" = _millpond ]; then _millpond "$@"; else compdef _millpond millpond; fi
)",
                     names, cases);
}

std::string fish_script(const surface& of) {
  std::string made = "# fish completion for millpond, printed by `millpond completion fish`\n";
  for (const command_facts& command : of.commands) {
    made += fmt::format("complete -c millpond -n __fish_use_subcommand -f -a {} -d '{}'\n",
                        command.name, quoted_for_shell(command.summary, false));
    for (const option_facts& option : command.options) {
      if (dashed(option).empty()) {
        if (!option.choices.empty()) {
          made +=
              fmt::format("complete -c millpond -n '__fish_seen_subcommand_from {}' -f -a '{}'\n",
                          command.name, joined(option.choices));
        }
        continue;
      }
      made += fmt::format("complete -c millpond -n '__fish_seen_subcommand_from {}'", command.name);
      for (const std::string& each : option.longs) made += " -l " + each;
      for (const std::string& each : option.shorts) made += " -s " + each;
      if (!option.choices.empty()) {
        made += fmt::format(" -x -a '{}'", joined(option.choices));
      } else if (!option.value.empty()) {
        made += is_file(option) ? " -r" : " -x";
      }
      made += fmt::format(" -d '{}'\n", quoted_for_shell(option.description, false));
    }
  }
  return made;
}

}  // namespace

std::string completion_script(const surface& of, const std::string& shell) {
  if (shell == "bash") return bash_script(of);
  if (shell == "zsh") return zsh_script(of);
  if (shell == "fish") return fish_script(of);
  return {};
}

command_body add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("SHELL", *shell, "Whose completion: bash, zsh or fish; or man: the manual page")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish", "man"}));
  const CLI::App* const all = app.get_parent();
  return [shell, all](session& here) {
    const surface facts = read_surface(*all);
    here.out() << (*shell == "man" ? man_page(facts, build_info().version)
                                   : completion_script(facts, *shell));
    return exit_status::done;
  };
}

}  // namespace millpond::cli
