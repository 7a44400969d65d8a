// millpond compare: every strategy on one workload, what it costs, and which one to use.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <ostream>
#include <utility>

#include "advise/choose.hpp"
#include "cli/replay_all.hpp"
#include "cli/workload_input.hpp"

namespace millpond::cli {
namespace {

struct compare_arguments {
  workload_input input;
  std::vector<std::string> strategies;
};

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const replay::strategy_facts& each : replay::all_strategies()) names.emplace_back(each.name);
  return names;
}

result<std::vector<const replay::strategy_facts*>> find_all(const std::vector<std::string>& names) {
  std::vector<const replay::strategy_facts*> found;
  for (const std::string& name : names) {
    const replay::strategy_facts* one = replay::find_strategy(name);
    if (one == nullptr) {
      return error{error_code::invalid_argument,
                   fmt::format("--strategy: expected {}, found `{}`",
                               fmt::join(strategy_names(), ", "), name)};
    }
    found.push_back(one);
  }
  return found;
}

exit_status compare(session& here, const compare_arguments& arguments) {
  auto strategies = find_all(arguments.strategies);
  if (!strategies) return here.fail(strategies.error());
  here.set_seed(arguments.input.seed);
  here.progress("reading the workload");
  auto work = arguments.input.load();
  if (!work) return here.fail(work.error());
  auto first = here.open_gpu();
  if (!first) return here.fail(first.error());

  replay::compare_options options;
  options.each = arguments.input.run_options(**first);
  options.strategies = *strategies;
  auto outcomes = replay_all(*work, **first, std::move(options), here);
  if (!outcomes) return here.fail(outcomes.error());

  report::comparison made = arguments.input.describe(here, **first, *work);
  made.outcomes = std::move(*outcomes);
  made.choice =
      advise::choose(made.outcomes, {.program_ns = static_cast<double>(work->duration_ns)});
  here.end_progress();
  here.out() << (here.json() ? report::comparison_json(made) : report::comparison_text(made));
  for (const replay::outcome& each : made.outcomes) {
    if (each.violation_count > 0) return exit_status::findings;
  }
  return exit_status::done;
}

}  // namespace

command_body add_compare(CLI::App& app) {
  auto arguments = std::make_shared<compare_arguments>();
  arguments->input.add_to(app);
  app.add_option("--strategy", arguments->strategies,
                 fmt::format("Only these: {}", fmt::join(strategy_names(), ", ")))
      ->type_name("NAME");
  return [arguments](session& here) { return compare(here, *arguments); };
}

}  // namespace millpond::cli
