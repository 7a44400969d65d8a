// millpond report: traces as one page of charts, or for other tools.
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <filesystem>

#include <algorithm>
#include <fstream>
#include <list>
#include <memory>
#include <ostream>
#include <utility>

#include "advise/explain.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/replay_all.hpp"
#include "millpond/base/units.hpp"
#include "report/page.hpp"
#include "report/perfetto.hpp"
#include "report/table.hpp"
#include "report/torch_snapshot.hpp"
#include "trace/exporters.hpp"

namespace millpond::cli {
namespace {

struct report_settings {
  std::vector<std::string> inputs;
  std::string output, format = "html", from, to;
  std::uint64_t most_events = 2'000'000;
  std::uint64_t seed = 1;
  bool replay = false;
};

// Findings whose events get a window of their own where a trace is too long to show whole.
std::vector<std::uint64_t> call_sites_of(const advise::explanation& of) {
  std::vector<std::uint64_t> call_sites;
  for (const advise::finding& each : of.findings) {
    if (!each.events.empty()) call_sites.push_back(each.events.front());
  }
  return call_sites;
}

// The trace's device memory through every strategy, contents not touched: what is asked for is the
// time of the calls.
void replay_into(report::page_trace& into, const trace::kept_input& input, session& here) {
  const auto fail = [&](const error& why) { into.not_replayed = why.message; };
  auto loaded = trace::load_trace(input);
  if (!loaded) return fail(loaded.error());
  auto work = replay::lower(*loaded);
  if (!work) return fail(work.error());
  auto first = here.open_gpu();
  if (!first) return fail(first.error());
  into.replayed_on = here.gpu_label(**first);
  replay::compare_options options;
  options.each.contents = replay::contents_mode::no_touch;
  options.each.clock = session::now_ns;
  auto outcomes = replay_all(*work, **first, std::move(options), here);
  if (!outcomes) return fail(outcomes.error());
  into.outcomes = std::move(*outcomes);
}

// Both readings of one file: what is wrong with it, and what it looks like. The source outlives the
// page that shows it.
result<report::page_trace> read_one(const report_settings& settings, const std::string& input,
                                    const report::picture_options& options,
                                    std::list<trace::trace_source>& sources, session& here) {
  const auto kept = trace::kept_input::take(input);
  if (!kept) return kept.error();
  report::page_trace made;
  const auto said = [&](std::uint64_t events, const char* doing) {
    if (events % (1u << 20) < 4096)
      here.progress(fmt::format("{}: {} events {}", input, report::grouped(events), doing));
  };
  auto first = trace::open_trace(*kept);
  if (!first) return first.error();
  advise::explain_options explaining;
  explaining.progress = [&](std::uint64_t events) { said(events, "analysed"); };
  auto explained = advise::explain(*first, explaining);
  if (!explained) return explained.error();
  made.explained = std::move(*explained);
  auto second = trace::open_trace(*kept);
  if (!second) return second.error();
  sources.push_back(std::move(*second));
  report::picture_options reading = options;
  reading.progress = [&](std::uint64_t events) { said(events, "read"); };
  auto shown = report::read_picture(sources.back(), reading);
  if (!shown) return shown.error();
  made.shown = std::move(*shown);
  if (made.shown.events == 0)
    return error{error_code::bad_input, fmt::format("{}: expected events, found none", input)};
  if (auto done = report::choose_windows(made.shown, call_sites_of(made.explained), options); !done)
    return done.error();
  made.info = &sources.back().info();
  if (settings.replay) replay_into(made, *kept, here);
  return made;
}

exit_status write_page(const report_settings& settings, session& here) {
  if (report::embedded_page_files().d3.empty()) return here.fail(report::page_html({}).error());
  report::picture_options options;
  options.most_events = settings.most_events / settings.inputs.size();  // all of a page together
  if (!settings.from.empty()) options.from = report::parse_call_site(settings.from);
  if (!settings.to.empty()) options.to = report::parse_call_site(settings.to);
  for (const auto& [name, text, read] :
       {std::tuple{"--from", &settings.from, &options.from}, {"--to", &settings.to, &options.to}}) {
    if (!text->empty() && !*read) {
      return here.fail(
          exit_status::usage,
          fmt::format("{}: expected an event (1200) or a time (1.5s, 20ms, 300us), found `{}`",
                      name, *text));
    }
  }
  std::list<trace::trace_source> sources;
  report::page page;
  const build_facts& build = build_info();
  page.made_by = fmt::format("millpond {} ({})", build.version, build.commit);
  for (const std::string& input : settings.inputs) {
    auto one = read_one(settings, input, options, sources, here);
    if (!one) return here.fail(one.error());
    page.traces.push_back(std::move(*one));
  }
  advise::difference change;
  if (page.traces.size() > 1) {
    change = advise::compare({page.traces[0].explained, *page.traces[0].info},
                             {page.traces[1].explained, *page.traces[1].info});
    page.change = &change;
  }
  here.progress("writing the page");
  if (here.json()) {
    here.end_progress();
    here.out() << report::page_json(page) << '\n';
    if (settings.output.empty()) return exit_status::done;
  }
  auto html = report::page_html(page);
  if (!html) return here.fail(html.error());
  auto file = output::open(here, settings.output);
  if (!file) return here.fail(file.error());
  if (auto done = file->write(*html); !done) return here.fail(done.error());
  if (auto done = file->finish(); !done) return here.fail(done.error());
  here.end_progress();
  if (here.json()) return exit_status::done;
  std::string said = settings.output == "-" ? "the page" : settings.output;
  said += fmt::format(": {}\n", format_bytes(html->size()));
  for (const report::page_trace& each : page.traces) {
    said += report::paragraph(
        "  ", fmt::format("{}: {}, {} of them one by one; {}", each.shown.name,
                          report::counted(each.shown.events, "event", "events"),
                          report::grouped(each.shown.events_shown),
                          report::counted(each.explained.findings.size(), "finding", "findings")));
    if (!each.not_replayed.empty())
      said += report::paragraph("  ", "not replayed: " + each.not_replayed);
  }
  file->beside() << said;
  return exit_status::done;
}

exit_status convert(const report_settings& settings, session& here) {
  if (settings.inputs.size() != 1)
    return here.fail(exit_status::usage,
                     fmt::format("--format {} takes one trace", settings.format));
  auto source = trace::open_trace(settings.inputs.front());
  if (!source) return here.fail(source.error());
  auto file = output::open(here, settings.output);
  if (!file) return here.fail(file.error());
  here.progress("converting");
  const auto counts = settings.format == "perfetto" ? report::export_perfetto(*source, file->sink())
                      : settings.format == "csv"
                          ? trace::export_csv(*source, file->sink())
                          : report::export_torch_snapshot(*source, file->sink());
  if (!counts) return here.fail(counts.error());
  if (auto done = file->finish(); !done) return here.fail(done.error());
  here.end_progress();
  if (here.json()) {
    here.out() << fmt::format("{{\"written\": {}, \"left_out\": {}}}\n", counts->written,
                              counts->left_out);
  } else {
    file->beside() << report::paragraph(
        "", fmt::format("{}: {}, {} left out that the format has no word for",
                        settings.output == "-" ? settings.format : settings.output,
                        report::counted(counts->written, "event", "events"),
                        report::grouped(counts->left_out)));
  }
  return exit_status::done;
}

// A name that was not asked for is written only where it is free or has an earlier page.
result<void> free_for_page(const std::string& name) {
  auto target = find_write_target(name);
  if (!target) return target.error();
  if (target->what == write_target::sort::nothing) return {};
  std::string head(4096, '\0');
  if (target->what == write_target::sort::file) {
    std::ifstream file(target->path, std::ios::binary);
    file.read(head.data(), static_cast<std::streamsize>(head.size()));
    head.resize(static_cast<std::size_t>(file.gcount()));
    if (head.empty() || report::is_page(head)) return {};
  }
  return error{
      error_code::output_failure,
      name + ": is there already and is no page of millpond: say where to write (-o FILE)"};
}

// "server.html" here for data/server.mpt: a page overwrites nothing but an earlier page, which is
// why other formats need a name.
std::string page_name(const std::string& input) {
  std::string name = std::filesystem::path(input).filename().string();
  for (const std::string_view ending : {".gz", ".csv", ".mpt", ".pickle", ".pkl"}) {
    if (name.size() > ending.size() && name.ends_with(ending))
      name.resize(name.size() - ending.size());
  }
  return name + ".html";
}

exit_status report_all(report_settings settings, session& here) {
  here.set_seed(settings.seed);
  const bool page = settings.format == "html";
  if (settings.output.empty() && !page)
    return here.fail(exit_status::usage,
                     "--format " + settings.format + " needs -o FILE: where to write");
  if (settings.output.empty() && !here.json()) {
    settings.output = page_name(settings.inputs.front());
    if (auto free = free_for_page(settings.output); !free) return here.fail(free.error());
  }
  if (!page && (settings.replay || !settings.from.empty() || !settings.to.empty())) {
    return here.fail(exit_status::usage, "--replay, --from and --to are for --format html");
  }
  for (const std::string& input : settings.inputs) {
    std::error_code neither;  // a file that is not there yet is no input
    if (!settings.output.empty() && std::filesystem::equivalent(input, settings.output, neither)) {
      return here.fail(exit_status::usage,
                       "-o " + settings.output + " would overwrite the recording it is made from");
    }
  }
  return page ? write_page(settings, here) : convert(settings, here);
}

}  // namespace

command_body add_report(CLI::App& app) {
  auto settings = std::make_shared<report_settings>();
  app.add_option("TRACE", settings->inputs,
                 "Recordings: .mpt, PyTorch CSV or snapshot, RMM log; plain or .gz. Up to four are "
                 "drawn; the first two are compared")
      ->type_name("FILE")
      ->required()
      ->expected(1, 4);
  app.add_option(
         "-o,--output", settings->output,
         "The file to write; - for standard output (default: a page of the trace's name, here)")
      ->type_name("FILE");
  app.add_option("--format", settings->format,
                 "html: the page. perfetto, csv, pytorch: the trace for other tools")
      ->check(CLI::IsMember({"html", "perfetto", "csv", "pytorch"}))
      ->capture_default_str();
  app.add_option("--from", settings->from,
                 "The first event shown one by one: its number, or a time (1.5s, 20ms)")
      ->type_name("PLACE");
  app.add_option("--to", settings->to, "The event behind the last")->type_name("PLACE");
  app.add_option("--events", settings->most_events,
                 "How many events are shown one by one; the rest is summed up")
      ->check(CLI::Range(1000, 20'000'000))
      ->capture_default_str();
  app.add_flag("--replay", settings->replay,
               "Also replay each trace through every strategy, for their latencies");
  app.add_option("--seed", settings->seed, "Of the simulated GPU")->capture_default_str();
  return [settings](session& here) { return report_all(*settings, here); };
}

}  // namespace millpond::cli
