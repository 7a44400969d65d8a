// millpond replay: one workload through one strategy, with its contents checked.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <ostream>

#include "cli/workload_input.hpp"

namespace millpond::cli {
namespace {

struct replay_arguments {
  workload_input input;
  std::string strategy = "millpond-pool";
  std::string staging = "pinned";
  bool check_contents = false;
};

exit_status replay_one(session& here, const replay_arguments& arguments) {
  const replay::strategy_facts* which = replay::find_strategy(arguments.strategy);
  if (which == nullptr) {
    std::vector<std::string> names;
    for (const replay::strategy_facts& each : replay::all_strategies())
      names.emplace_back(each.name);
    return here.fail(exit_status::usage, fmt::format("--strategy: expected {}, found `{}`",
                                                     fmt::join(names, ", "), arguments.strategy));
  }
  if (arguments.check_contents && arguments.input.no_touch) {
    return here.fail(exit_status::usage, "--check-contents and --no-touch exclude each other");
  }
  here.set_seed(arguments.input.seed);
  here.progress("reading the workload");
  auto work = arguments.input.load();
  if (!work) return here.fail(work.error());
  auto gpu = here.open_gpu();
  if (!gpu) return here.fail(gpu.error());

  replay::run_options options = arguments.input.run_options(**gpu);
  options.copies =
      arguments.staging == "pageable" ? replay::staging::pageable : replay::staging::pinned;
  options.progress = [&](double share) {
    here.progress(fmt::format("{}: {:.0f}%", which->name, 100 * share));
  };
  auto outcome = replay::run(*work, *which, *gpu, options);
  if (!outcome) return here.fail(outcome.error());

  report::comparison made = arguments.input.describe(here, **gpu, *work);
  made.outcomes.push_back(std::move(*outcome));
  here.end_progress();
  here.out() << (here.json() ? report::comparison_json(made) : report::comparison_text(made));
  const replay::outcome& done = made.outcomes.front();
  if (!here.json() && done.touched && done.violation_count == 0) {
    here.out() << fmt::format("Contents: {} blocks written and checked, all right.\n",
                              done.checked_blocks);
  }
  return done.violation_count > 0 ? exit_status::findings : exit_status::done;
}

}  // namespace

command_body add_replay(CLI::App& app) {
  auto arguments = std::make_shared<replay_arguments>();
  arguments->input.add_to(app);
  app.add_option("--strategy", arguments->strategy, "How the workload is served")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--staging", arguments->staging, "Host memory of the workload's copies")
      ->check(CLI::IsMember({"pinned", "pageable"}))
      ->capture_default_str();
  app.add_flag("--check-contents", arguments->check_contents,
               "Write an identity into each block and check it before its free (the default)");
  return [arguments](session& here) { return replay_one(here, *arguments); };
}

}  // namespace millpond::cli
