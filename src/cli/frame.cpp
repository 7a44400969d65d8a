// Parsing, help, and the way from an error to an exit status.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <ostream>
#include <typeinfo>
#include <vector>

#include "base/utf8.hpp"
#include "cli/command.hpp"
#include "cli/memory_limit.hpp"
#include "cli/option_values.hpp"
#include "cli/surface.hpp"

namespace millpond::cli {
namespace {

// Levenshtein distance: how many letters to change, add or drop.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const command_entry& entry : all_commands()) names.emplace_back(entry.name);
  return names;
}

std::string version_text() {
  const build_facts& facts = build_info();
  return fmt::format("millpond {} ({}, {}, {})", facts.version, facts.commit, facts.compiler,
                     facts.flavour);
}

int usage_error(std::ostream& err, std::string_view message, std::string_view help) {
  err << "millpond: " << printable(message, line_ends::kept) << "\nmillpond: see `" << help
      << "`\n";
  return static_cast<int>(exit_status::usage);
}

// "; did you mean `--json`?" where a word that begins with dashes is no option of the subcommand
// and one is near.
std::string nearest_option(const CLI::App& app, int count, const char* const* arguments) {
  if (count < 3) return {};
  std::vector<std::string> known;
  for (const CLI::App* sub : app.get_subcommands(
           [&](const CLI::App* each) { return each->get_name() == arguments[1]; })) {
    for (const CLI::Option* option : sub->get_options()) {
      for (const std::string& each : option->get_lnames()) known.push_back("--" + each);
    }
  }
  for (int at = 2; at < count; ++at) {
    std::string word = arguments[at];
    if (word == "--") break;
    if (!word.starts_with("--")) continue;
    word = word.substr(0, word.find('='));
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    const std::string near = nearest_name(word, known);
    return near.empty() ? "" : fmt::format("; did you mean `{}`?", near);
  }
  return {};
}

constexpr const char* overview_footer =
    "Every subcommand takes --json and --gpu N|sim[:PROFILE]; without --gpu the card\n"
    "is used where one is found, and otherwise the simulated GPU, which every output\n"
    "says.\n"
    "Exit status: 0 done, 1 findings, 2 usage, 3 bad input, 4 device.\n\n"
    "Examples:\n"
    "  millpond compare data/traces/resnet_serving.csv.gz\n"
    "  millpond compare --workload inference --json\n";

}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string> names) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t far = distance(word, name);
    if (far < best_distance) {
      best = name;
      best_distance = far;
    }
  }
  return best;
}

namespace {
// What was asked for is done only when it has been written: a full disk behind stdout is an error
// like any other. A reader who has gone (`| head`) ends the process by its signal before this.
int written(int status, std::ostream& out, std::ostream& err) {
  out.flush();
  if (out) return status;
  err << "millpond: standard output could not be written\n";
  return static_cast<int>(exit_status::usage);
}
}  // namespace

namespace {
error out_of_memory(const std::string& running) {
  return {error_code::out_of_memory,
          running +
              ": not enough memory for this input: nothing was written. A part of it "
              "(`millpond report --from --to`), fewer events, or a machine with more memory"};
}

// "std::invalid_argument".
std::string kind_of(const std::exception& failure) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(typeid(failure).name(), nullptr, nullptr, &status), std::free);
  return name == nullptr ? "unknown" : name.get();
}

// What the command line asks for.
struct asked_command {
  session::settings chosen;
  std::string gpu;  // the text of --gpu
  command_body body;
  bool bounds_memory = false;
  std::string running = "millpond";
};

void add_command(CLI::App& app, const command_entry& entry, asked_command& asked) {
  CLI::App* const sub = app.add_subcommand(entry.name, entry.summary);
  command_body made = entry.add(*sub);
  for (CLI::Option* option : sub->get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("UINT")) option->check(whole_number());
    if (type.starts_with("FLOAT")) option->check(finite_number());
  }
  sub->add_flag("--json", asked.chosen.json, "One JSON document on stdout instead of text");
  sub->add_option("--gpu", asked.gpu, "The card's number, or sim, or sim:PROFILE (name or file)")
      ->type_name("N|sim[:PROFILE]");
  for (CLI::Option* option : sub->get_options()) {
    // A program's arguments, which are positional, may be empty.
    const bool takes_value = option->get_items_expected_max() > 0;
    if (takes_value && (option->nonpositional() || option->get_type_name().starts_with("FILE")))
      option->check(not_empty());
  }
  sub->footer(std::string("Examples:\n") + entry.examples);
  sub->final_callback([&asked, made, name = std::string(entry.name), bounds = entry.bounds_memory] {
    asked.body = made;
    asked.bounds_memory = bounds;
    asked.running = "millpond " + name;
  });
}

exit_status run_asked(const asked_command& asked, std::ostream& out, std::ostream& err) {
  // A driver reserves address space as it likes.
  const bool on_card = asked.chosen.gpu.what != gpu_choice::kind::simulated &&
                       std::filesystem::exists("/dev/nvidiactl");
  if (asked.bounds_memory && !on_card) bound_memory_of_process();
  session here(asked.chosen, out, err);
  exit_status status = exit_status::done;
  try {
    status = asked.body(here);
  } catch (const std::bad_alloc&) {
    status = here.fail(out_of_memory(asked.running));
  } catch (const std::exception& failure) {
    // Libraries' words for their own mistakes say nothing to who runs a command.
    status = here.fail(exit_status::device,
                       fmt::format("{} failed in a way that it has no words for ({}): please "
                                   "report it, with the command line and the file",
                                   asked.running, kind_of(failure)));
  }
  here.end_progress();
  here.out().flush();
  here.err().flush();
  return status;
}

}  // namespace

int run_command(int count, const char* const* arguments, std::ostream& out, std::ostream& err) {
  CLI::App app(
      "GPU memory, calm as a millpond: what a workload's memory costs, and what to do about it",
      "millpond");
  app.set_version_flag("--version", version_text());
  app.footer(overview_footer);
  app.require_subcommand(1);
  set_help_format(app);  // before there are subcommands: they take it over

  const std::vector<std::string> names = command_names();
  if (count > 1 && arguments[1][0] != '-' &&
      std::find(names.begin(), names.end(), arguments[1]) == names.end()) {
    const std::string near = nearest_name(arguments[1], names);
    return usage_error(err,
                       fmt::format("no subcommand `{}`{}", arguments[1],
                                   near.empty() ? "" : fmt::format("; did you mean `{}`?", near)),
                       "millpond --help");
  }

  asked_command asked;
  for (const command_entry& entry : all_commands()) add_command(app, entry, asked);

  if (count < 2) {
    err << app.help();
    return static_cast<int>(exit_status::usage);
  }
  try {
    app.parse(count, arguments);
  } catch (const CLI::Success& said) {  // --help, --version
    return written(app.exit(said, out, err), out, err);
  } catch (const CLI::ParseError& failure) {
    const std::string help = count > 1 && arguments[1][0] != '-'
                                 ? fmt::format("millpond {} --help", arguments[1])
                                 : "millpond --help";
    return usage_error(err, failure.what() + nearest_option(app, count, arguments), help);
  }
  if (!asked.gpu.empty()) {
    const auto parsed = parse_gpu_choice(asked.gpu);
    if (!parsed) {
      return usage_error(
          err, fmt::format("--gpu: expected a number, sim or sim:PROFILE, found `{}`", asked.gpu),
          asked.running + " --help");
    }
    asked.chosen.gpu = *parsed;
  }

  return written(static_cast<int>(run_asked(asked, out, err)), out, err);
}

}  // namespace millpond::cli
