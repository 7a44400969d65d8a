// millpond diff: what changed between two traces of one program, for continuous integration.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "advise/difference.hpp"
#include "advise/explain.hpp"
#include "cli/command.hpp"
#include "millpond/base/units.hpp"
#include "report/explanation.hpp"
#include "report/table.hpp"

namespace millpond::cli {
namespace {

using nlohmann::ordered_json;

struct diff_settings {
  std::string before, after, least_bytes;
  advise::difference_limits limits;
};

std::string value_text(const advise::measure& of, double value) {
  switch (of.in) {
    case advise::measure::unit::bytes: return format_bytes(static_cast<std::uint64_t>(value));
    case advise::measure::unit::nanoseconds: return format_duration(value);
    case advise::measure::unit::count: return report::grouped(static_cast<std::uint64_t>(value));
  }
  return {};
}

void print_text(std::ostream& out, const advise::difference& made, const trace::trace_info& before,
                const trace::trace_info& after) {
  report::table table({"measure", "before", "after", "change", ""});
  for (const advise::measure& each : made.measures) {
    const std::string change = each.before == 0
                                   ? (each.after == 0 ? "0" : "new")
                                   : fmt::format("{:+.1f}%", 100 * (each.after / each.before - 1));
    table.add({each.name, value_text(each, each.before), value_text(each, each.after), change,
               each.regressed ? "WORSE" : ""});
  }
  out << table.text() << '\n';
  std::size_t shown = 0;
  for (const advise::call_site_change& each : made.call_sites) {
    if (each.peak_before == each.peak_after || shown == 10) continue;
    if (shown++ == 0) out << "call sites, by bytes live at the peak:\n";
    out << report::paragraph(fmt::format("  {:>10} -> {:>10}  ", format_bytes(each.peak_before),
                                         format_bytes(each.peak_after)),
                             each.call_site + (each.regressed ? " WORSE" : ""));
  }
  const auto list = [&](const char* head, const std::vector<advise::finding>& findings,
                        const trace::trace_info& trace) {
    if (findings.empty()) return;
    out << head;
    for (const advise::finding& each : findings) {
      const std::string named =
          fmt::format("  [{}] {}: ", to_string(each.how_bad), advise::facts_of(each.which).name);
      out << report::wrapped(named + each.summary, report::text_columns, 6) << '\n';
      if (each.call_sites.empty()) continue;
      const auto lines = report::stack_lines(each.call_sites.front().stack, trace);
      if (!lines.empty())
        out << report::paragraph(
            "      ", fmt::format("{} in {}", each.call_sites.front().what, lines.front()));
    }
  };
  for (const advise::finding_change& each : made.changed) {
    if (&each == &made.changed.front()) out << "findings that cost something else:\n";
    const advise::finding &was = each.before, &is = each.after;
    std::string text = fmt::format("  {}: ", advise::facts_of(is.which).name);
    if (was.time_ns != is.time_ns)
      text += fmt::format("{} -> {} ", format_duration(was.time_ns), format_duration(is.time_ns));
    if (was.bytes != is.bytes)
      text += fmt::format("{} -> {} ", format_bytes(was.bytes), format_bytes(is.bytes));
    out << report::wrapped(text + (each.regressed ? "WORSE: " : ": ") + is.summary,
                           report::text_columns, 6)
        << '\n';
  }
  list("new findings:\n", made.appeared, after);
  list("findings that are gone:\n", made.gone, before);
  out << (made.regressed() ? "worse than before\n" : "no worse than before\n");
}

void print_json(std::ostream& out, const advise::difference& made) {
  ordered_json whole;
  ordered_json measures = ordered_json::array();
  for (const advise::measure& each : made.measures) {
    measures.push_back({{"name", each.name},
                        {"unit", each.in == advise::measure::unit::bytes   ? "bytes"
                                 : each.in == advise::measure::unit::count ? "count"
                                                                           : "ns"},
                        {"before", each.before},
                        {"after", each.after},
                        {"regressed", each.regressed}});
  }
  whole["measures"] = measures;
  ordered_json call_sites = ordered_json::array();
  for (const advise::call_site_change& each : made.call_sites) {
    call_sites.push_back({{"call_site", each.call_site},
                          {"peak_bytes_before", each.peak_before},
                          {"peak_bytes_after", each.peak_after},
                          {"blocks_before", each.blocks_before},
                          {"blocks_after", each.blocks_after},
                          {"regressed", each.regressed}});
  }
  whole["call_sites"] = call_sites;
  const auto list = [](const std::vector<advise::finding>& findings) {
    ordered_json all = ordered_json::array();
    for (const advise::finding& each : findings) {
      all.push_back({{"name", advise::facts_of(each.which).name},
                     {"severity", to_string(each.how_bad)},
                     {"summary", each.summary}});
    }
    return all;
  };
  ordered_json changed = ordered_json::array();
  for (const advise::finding_change& each : made.changed) {
    changed.push_back({{"name", advise::facts_of(each.after.which).name},
                       {"severity", to_string(each.after.how_bad)},
                       {"time_us_before", each.before.time_ns / 1e3},
                       {"time_us_after", each.after.time_ns / 1e3},
                       {"bytes_before", each.before.bytes},
                       {"bytes_after", each.after.bytes},
                       {"regressed", each.regressed}});
  }
  whole["changed"] = changed;
  whole["appeared"] = list(made.appeared);
  whole["gone"] = list(made.gone);
  whole["regressed"] = made.regressed();
  out << document_of(whole);
}

exit_status diff(diff_settings settings, session& here) {
  if (!settings.least_bytes.empty() &&
      !parse_bytes(settings.least_bytes, settings.limits.least_bytes)) {
    return here.fail(
        exit_status::usage,
        fmt::format("--least: expected a size such as 1MiB, found `{}`", settings.least_bytes));
  }
  auto first = trace::open_trace(settings.before);
  if (!first) return here.fail(first.error());
  auto second = trace::open_trace(settings.after);
  if (!second) return here.fail(second.error());
  here.progress("reading " + settings.before);
  const auto before = advise::explain(*first);
  if (!before) return here.fail(before.error());
  here.progress("reading " + settings.after);
  const auto after = advise::explain(*second);
  if (!after) return here.fail(after.error());
  here.end_progress();
  const advise::difference made =
      advise::compare({*before, first->info()}, {*after, second->info()}, settings.limits);
  if (here.json())
    print_json(here.out(), made);
  else
    print_text(here.out(), made, first->info(), second->info());
  return made.regressed() ? exit_status::findings : exit_status::done;
}

}  // namespace

command_body add_diff(CLI::App& app) {
  auto settings = std::make_shared<diff_settings>();
  app.add_option("BEFORE", settings->before, "The trace to measure by")
      ->type_name("FILE")
      ->required();
  app.add_option("AFTER", settings->after, "The trace to judge")->type_name("FILE")->required();
  app.add_option("--bytes", settings->limits.bytes_share,
                 "Growth of memory that is allowed, as a share")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--time", settings->limits.time_share,
                 "Growth of time that is allowed, as a share")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--count", settings->limits.count_share,
                 "Growth of counts that is allowed, as a share")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--least", settings->least_bytes,
                 "Growth of memory that is always allowed (default: 1MiB)")
      ->type_name("SIZE");
  return [settings](session& here) { return diff(*settings, here); };
}

}  // namespace millpond::cli
