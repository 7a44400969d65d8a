// millpond explain: what is wrong with a recorded program's memory, where, what it costs, and what
// to write instead.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <limits>
#include <memory>
#include <ostream>

#include "advise/explain.hpp"
#include "cli/command.hpp"
#include "report/explanation.hpp"
#include "trace/source.hpp"

namespace millpond::cli {
namespace {

struct explain_settings {
  std::vector<std::string> inputs;
  bool all = false;
};

exit_status explain_one(const explain_settings& settings, const std::string& input, session& here,
                        std::string& said) {
  auto source = trace::open_trace(input);
  if (!source) return here.fail(source.error());
  advise::explain_options options;
  options.progress = [&](std::uint64_t events) {
    if (events % (1u << 20) < 4096) here.progress(fmt::format("{} events read", events));
  };
  auto made = advise::explain(*source, options);
  here.end_progress();
  if (!made) return here.fail(made.error());
  report::explanation_options how;
  if (settings.all) how.most_findings = std::numeric_limits<std::size_t>::max();
  if (made->what.events == 0 && source->info().status == trace::read_status::cut) {
    return here.fail({error_code::bad_input,
                      input + ": expected events, found none: the file is cut in its first part"});
  }
  said = here.json() ? report::explanation_json(*made, source->info())
                     : report::explanation_text(*made, source->info(), how);
  return made->findings.empty() ? exit_status::done : exit_status::findings;
}

// Several traces: the worst status, and each is answered.
exit_status explain_all(const explain_settings& settings, session& here) {
  exit_status worst = exit_status::done;
  const bool several = settings.inputs.size() > 1;
  std::string list;  // of JSON documents: several are one array
  for (const std::string& each : settings.inputs) {
    std::string said;
    worst = std::max(worst, explain_one(settings, each, here, said));
    if (!here.json() || !several) {
      here.out() << said;
      if (several) here.out() << '\n';
    } else if (!said.empty()) {
      list += (list.empty() ? "" : ",\n") + said;
    }
  }
  if (here.json() && several) here.out() << "[\n" << list << "]\n";
  return worst;
}

}  // namespace

command_body add_explain(CLI::App& app) {
  auto settings = std::make_shared<explain_settings>();
  app.add_option("TRACE", settings->inputs,
                 "Recordings: .mpt, PyTorch CSV or snapshot, RMM log; plain or .gz")
      ->type_name("FILE")
      ->required();
  app.add_flag("--all", settings->all, "Every finding in the text, not the worst 20");
  return [settings](session& here) { return explain_all(*settings, here); };
}

}  // namespace millpond::cli
