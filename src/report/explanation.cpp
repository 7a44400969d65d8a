#include "report/explanation.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "millpond/base/units.hpp"
#include "report/table.hpp"

namespace millpond::report {
namespace {

using advise::finding;
using nlohmann::ordered_json;

std::string cost_text(const finding& of) {
  std::vector<std::string> parts;
  if (of.peak_bytes > 0) {
    parts.push_back(fmt::format("peak {} -> {}", format_bytes(of.peak_bytes),
                                format_bytes(of.peak_after_bytes)));
  }
  if (of.bytes > 0) parts.push_back(format_bytes(of.bytes));
  if (of.time_ns > 0) {
    std::string text = (of.time_estimated ? "about " : "") + format_duration(of.time_ns);
    if (of.time_after_ns > 0) text += " -> " + format_duration(of.time_after_ns);
    parts.push_back(text);
  }
  return parts.empty() ? std::string() : fmt::format("{}", fmt::join(parts, ", "));
}

void put(std::string& into, const std::string& head, const std::string& text) {
  into += paragraph(head, text);
}

}  // namespace

std::vector<std::string> stack_lines(std::uint32_t stack, const trace::trace_info& trace) {
  std::vector<std::string> lines;
  for (const trace::frame& each : trace.stacks.at(stack)) {
    const std::string_view symbol = trace.strings.at(each.symbol),
                           file = trace.strings.at(each.file);
    std::string line(symbol.empty() ? std::string_view("?") : symbol);
    if (!file.empty()) line += fmt::format(" at {}", file);
    if (each.line != 0) line += fmt::format(":{}", each.line);
    lines.push_back(std::move(line));
  }
  return lines;
}

namespace {

void put_head(std::string& made, const advise::analysed& what, const trace::trace_info& trace) {
  put(made, "trace     ",
      fmt::format("{}: {}, {}, {}, {}, {}, {}", trace.name, counted(what.events, "event", "events"),
                  counted(what.allocations, "allocation", "allocations"),
                  counted(what.frees, "free", "frees"), counted(what.kernels, "kernel", "kernels"),
                  counted(what.copies, "copy", "copies"),
                  counted(what.streams, "stream", "streams")));
  if (!trace.meta.program.empty()) put(made, "program   ", trace.meta.program);
  if (what.devices.size() <= 1) {
    put(made, "peak      ",
        fmt::format("{} live of GPU memory (event {}); {} in {} at the end",
                    format_bytes(what.peak_live_bytes), what.peak_event,
                    format_bytes(what.end_live_bytes),
                    counted(what.end_live_blocks, "block", "blocks")));
  } else {
    for (const advise::device_summary& each : what.devices) {
      put(made, "peak      ",
          fmt::format("{} live of the memory of device {} (event {}); {} in {} at the end",
                      format_bytes(each.peak_live_bytes), each.device, each.peak_event,
                      format_bytes(each.end_live_bytes),
                      counted(each.end_live_blocks, "block", "blocks")));
    }
  }
  if (what.allocator_ns > 0 && what.duration_ns > 0) {
    put(made, "time      ",
        fmt::format("{} recorded, {} ({:.2f}%) in calls that allocate and free{}",
                    format_duration(static_cast<double>(what.duration_ns)),
                    format_duration(what.allocator_ns),
                    100 * what.allocator_ns / static_cast<double>(what.duration_ns) /
                        static_cast<double>(std::max<std::uint64_t>(what.allocating_threads, 1)),
                    what.allocating_threads > 1
                        ? fmt::format(", of {} together: the share is each one's",
                                      counted(what.allocating_threads, "thread", "threads"))
                        : std::string()));
  }
  if (trace.meta.simulated) made += "gpu       SIMULATED: recorded on the simulated GPU\n";
  for (const std::string& each : what.remarks) put(made, "note      ", each);
}

void put_call_site(std::string& made, const advise::finding_call_site& at,
                   const trace::trace_info& trace, std::size_t most_frames) {
  const auto lines = stack_lines(at.stack, trace);
  made += fmt::format("   {}{}\n", at.what, lines.empty() ? " (no call stack recorded)" : ":");
  for (std::size_t n = 0; n < lines.size() && n < most_frames; ++n)
    made +=
        wrapped("       " + lines[n], text_columns, 9) + '\n';  // what goes on stands further in
  if (lines.size() > most_frames)
    made +=
        fmt::format("       and {} more\n", counted(lines.size() - most_frames, "frame", "frames"));
}

void put_finding(std::string& made, std::size_t number, const finding& each,
                 const trace::trace_info& trace, const explanation_options& options) {
  const advise::flaw_facts& facts = advise::facts_of(each.which);
  put(made, fmt::format("{}. ", number),
      fmt::format(
          "[{}] {}: {}{}", to_string(each.how_bad), facts.name, facts.title,
          each.count > 1 ? fmt::format(" ({} times)", grouped(each.count)) : std::string()));
  put(made, "   ", each.summary);
  const std::string cost = cost_text(each);
  if (!cost.empty()) put(made, "   cost: ", cost);
  for (const advise::finding_call_site& at : each.call_sites)
    put_call_site(made, at, trace, options.most_frames);
  if (!each.events.empty()) {
    put(made, "   evidence: ",
        fmt::format("event{} {}", each.events.size() == 1 ? "" : "s",
                    fmt::join(each.events, ", ")));
  }
  if (!each.seen.empty()) put(made, "   ", each.seen);
  if (!each.remedy.empty()) made += "   remedy:\n";
  for (const std::string& line : each.remedy) {
    if (line.starts_with(' ')) {
      made += "   " + line + '\n';
    } else {
      put(made, "     ", line);
    }
  }
  made += '\n';
}

}  // namespace

std::string explanation_text(const advise::explanation& of, const trace::trace_info& trace,
                             const explanation_options& options) {
  std::string made;
  put_head(made, of.what, trace);
  made += '\n';
  const std::size_t shown = std::min(of.findings.size(), options.most_findings);
  for (std::size_t n = 0; n < shown; ++n) put_finding(made, n + 1, of.findings[n], trace, options);
  if (of.findings.size() > shown) {
    made += fmt::format("and {} more; --all or --json has them\n",
                        counted(of.findings.size() - shown, "finding", "findings"));
  }
  made += of.findings.empty() ? "nothing found\n"
                              : counted(of.findings.size(), "finding", "findings") + " found\n";
  return made;
}

std::string explanation_json(const advise::explanation& of, const trace::trace_info& trace) {
  const advise::analysed& what = of.what;
  ordered_json made;
  made["trace"] = {{"name", trace.name},
                   {"format", to_string(trace.from)},
                   {"program", trace.meta.program},
                   {"device", trace.meta.device_name},
                   {"recorded_by", trace.meta.recorded_by},
                   {"simulated", trace.meta.simulated},
                   {"status", to_string(trace.status)},
                   {"dropped_events", trace.meta.dropped_events},
                   {"events", what.events},
                   {"allocations", what.allocations},
                   {"frees", what.frees},
                   {"kernels", what.kernels},
                   {"copies", what.copies},
                   {"streams", what.streams},
                   {"peak_live_bytes", what.peak_live_bytes},
                   {"peak_event", what.peak_event},
                   {"end_live_bytes", what.end_live_bytes},
                   {"end_live_blocks", what.end_live_blocks},
                   {"duration_us", static_cast<double>(what.duration_ns) / 1e3},
                   {"allocator_us", what.allocator_ns / 1e3},
                   {"remarks", what.remarks}};
  ordered_json devices = ordered_json::array();
  for (const advise::device_summary& each : what.devices) {
    devices.push_back({{"device", each.device},
                       {"peak_live_bytes", each.peak_live_bytes},
                       {"peak_event", each.peak_event},
                       {"end_live_bytes", each.end_live_bytes},
                       {"end_live_blocks", each.end_live_blocks}});
  }
  made["trace"]["devices"] = devices;
  ordered_json notes = ordered_json::object();
  for (const auto& [name, value] : trace.meta.notes) notes[name] = value;
  made["trace"]["notes"] = notes;
  ordered_json list = ordered_json::array();
  for (const finding& each : of.findings) {
    const advise::flaw_facts& facts = advise::facts_of(each.which);
    ordered_json one{{"name", facts.name},
                     {"title", facts.title},
                     {"severity", to_string(each.how_bad)},
                     {"drgpum_pattern", facts.pattern},
                     {"summary", each.summary},
                     {"count", each.count},
                     {"bytes", each.bytes},
                     {"time_us", each.time_ns / 1e3},
                     {"time_after_us", each.time_after_ns / 1e3},
                     {"time_estimated", each.time_estimated},
                     {"peak_bytes", each.peak_bytes},
                     {"peak_after_bytes", each.peak_after_bytes}};
    ordered_json call_sites = ordered_json::array();
    for (const advise::finding_call_site& at : each.call_sites) {
      ordered_json frames = ordered_json::array();
      for (const trace::frame& frame : trace.stacks.at(at.stack)) {
        frames.push_back({{"symbol", trace.strings.at(frame.symbol)},
                          {"file", trace.strings.at(frame.file)},
                          {"line", frame.line}});
      }
      call_sites.push_back({{"what", at.what}, {"frames", frames}});
    }
    one["call_sites"] = call_sites;
    one["events"] = each.events;
    one["seen"] = each.seen;
    one["remedy"] = each.remedy;
    list.push_back(std::move(one));
  }
  made["findings"] = std::move(list);
  return made.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace millpond::report
