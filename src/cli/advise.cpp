// millpond advise: replays every strategy on a trace and says, place by place, which memory to use,
// what that gains and what to write.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "advise/by_call_site.hpp"
#include "advise/explain.hpp"
#include "cli/command.hpp"
#include "cli/replay_all.hpp"
#include "millpond/base/units.hpp"
#include "report/explanation.hpp"
#include "report/table.hpp"
#include "trace/lifetimes.hpp"

namespace millpond::cli {
namespace {

using nlohmann::ordered_json;

struct advise_settings {
  std::string input;
  std::uint64_t seed = 1;
  std::size_t most = 10;
};

// The trace's device memory through every strategy; empty, with the reason, where it cannot be
// replayed.
std::vector<replay::outcome> replays(const trace::trace_data& loaded, session& here,
                                     std::string& gpu, std::string& reason) {
  auto work = replay::lower(loaded);
  if (!work) {
    reason = work.error().message;
    return {};
  }
  auto first = here.open_gpu();
  if (!first) {
    reason = first.error().message;
    return {};
  }
  gpu = here.gpu_label(**first);
  replay::compare_options options;
  options.each.contents = replay::contents_mode::no_touch;
  options.each.clock = session::now_ns;
  auto outcomes = replay_all(*work, **first, std::move(options), here);
  if (!outcomes) {
    reason = outcomes.error().message;
    return {};
  }
  return std::move(*outcomes);
}

void print_text(std::ostream& out, const advise::whole_advice& made, const trace::trace_info& trace,
                const std::string& gpu, const std::string& reason, std::size_t most) {
  if (!gpu.empty()) out << report::paragraph("replayed on ", gpu);
  if (!reason.empty()) out << report::paragraph("not replayed: ", reason);
  if (!made.strategy.empty())
    out << "device memory: " << made.strategy << '\n' << report::paragraph("  ", made.why);
  if (!made.planned.empty()) out << report::paragraph("plan: ", made.planned);
  out << '\n';
  std::size_t shown = 0;
  for (const advise::call_site_advice& each : made.call_sites) {
    if (each.use == "leave" || shown == most) continue;
    out << report::paragraph(fmt::format("{}. ", ++shown),
                             fmt::format("{} -> {} ({}, {} at the peak)", each.now, each.use,
                                         report::counted(each.where.blocks, "block", "blocks"),
                                         format_bytes(each.where.peak_bytes)));
    const auto lines = report::stack_lines(each.where.stack, trace);
    for (std::size_t n = 0; n < lines.size() && n < 3; ++n)
      out << report::wrapped("       " + lines[n], report::text_columns, 9) << '\n';
    if (lines.empty())
      out << fmt::format("       blocks of up to {}; no call stack recorded\n",
                         format_bytes(each.where.largest_bytes));
    out << report::paragraph("   why:  ", each.why);
    if (each.time_now_ns > 0) {
      out << fmt::format("   gain: {}{} -> {}\n", each.time_estimated ? "about " : "",
                         format_duration(each.time_now_ns), format_duration(each.time_then_ns));
    }
    for (const std::string& line : each.code) out << "   " << line << '\n';
  }
  const auto left = static_cast<std::uint64_t>(
      std::ranges::count(made.call_sites, std::string("leave"), &advise::call_site_advice::use));
  out << (shown > 0 ? "\n" : "")
      << fmt::format("{} of {} {} best left as {}\n", left,
                     report::counted(made.call_sites.size(), "call site", "call sites"),
                     left == 1 ? "is" : "are", left == 1 ? "it is" : "they are");
}

void print_json(std::ostream& out, const advise::whole_advice& made, const trace::trace_info& trace,
                const std::string& gpu, const std::string& reason) {
  ordered_json whole{{"gpu", gpu},
                     {"not_replayed", reason},
                     {"strategy", made.strategy},
                     {"why", made.why},
                     {"planned", made.planned}};
  ordered_json call_sites = ordered_json::array();
  for (const advise::call_site_advice& each : made.call_sites) {
    call_sites.push_back({{"now", each.now},
                          {"use", each.use},
                          {"why", each.why},
                          {"blocks", each.where.blocks},
                          {"bytes", each.where.bytes},
                          {"peak_bytes", each.where.peak_bytes},
                          {"rounds", each.where.rounds},
                          {"time_now_us", each.time_now_ns / 1e3},
                          {"time_then_us", each.time_then_ns / 1e3},
                          {"time_estimated", each.time_estimated},
                          {"frames", report::stack_lines(each.where.stack, trace)},
                          {"code", each.code}});
  }
  whole["call_sites"] = call_sites;
  out << document_of(whole);
}

exit_status advise_trace(const advise_settings& settings, session& here) {
  here.set_seed(settings.seed);
  here.progress("reading the trace");
  const auto kept = trace::kept_input::take(settings.input);
  if (!kept) return here.fail(kept.error());
  auto source = trace::open_trace(*kept);
  if (!source) return here.fail(source.error());
  const auto explained = advise::explain(*source);
  if (!explained) return here.fail(explained.error());
  auto loaded = trace::load_trace(*kept);
  if (!loaded) return here.fail(loaded.error());
  std::string gpu, reason;
  const auto outcomes = replays(*loaded, here, gpu, reason);
  const auto lives = trace::find_lifetimes(*loaded, {.on_fault = trace::strictness::tolerant});
  std::optional<plan::iterations> repeats;
  if (lives) repeats = plan::find_iterations(*lives);
  here.end_progress();
  const advise::whole_advice made = advise::advise_call_sites(*explained, source->info(), outcomes,
                                                              repeats ? &*repeats : nullptr);
  if (here.json())
    print_json(here.out(), made, source->info(), gpu, reason);
  else
    print_text(here.out(), made, source->info(), gpu, reason, settings.most);
  return exit_status::done;
}

}  // namespace

command_body add_advise(CLI::App& app) {
  auto settings = std::make_shared<advise_settings>();
  app.add_option("TRACE", settings->input,
                 "A recording: .mpt, PyTorch CSV or snapshot, RMM log; plain or .gz")
      ->type_name("FILE")
      ->required();
  app.add_option("--seed", settings->seed, "Of the simulated GPU")->capture_default_str();
  app.add_option("--most", settings->most, "Places to print")->capture_default_str();
  return [settings](session& here) { return advise_trace(*settings, here); };
}

}  // namespace millpond::cli
