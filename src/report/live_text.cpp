// What a live view looks like in a terminal, and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/utf8.hpp"
#include "millpond/base/units.hpp"
#include "report/live.hpp"
#include "report/table.hpp"
#include "trace/event_views.hpp"

namespace millpond::report {
namespace {

using nlohmann::ordered_json;

double seconds_of(const live_view& of) {
  return of.elapsed_s > 0 ? of.elapsed_s : static_cast<double>(of.trace_ns) / 1e9;
}

// "1,204", "12.3k", "4.56M" a second.
std::string rate(double count, double seconds) {
  if (seconds <= 0) return "-";
  const double value = count / seconds;
  if (value >= 9.995e6) return fmt::format("{:.1f}M", value / 1e6);
  if (value >= 99'999.5) return fmt::format("{:.0f}k", value / 1e3);
  if (value >= 9.995) return grouped(static_cast<std::uint64_t>(std::llround(value)));
  return value == 0 ? "0" : fmt::format("{:.1f}", value);
}

std::string bytes_a_second(double bytes, double seconds) {
  return seconds <= 0
             ? "-"
             : format_bytes(static_cast<std::uint64_t>(std::min(bytes / seconds, 1e18))) + "/s";
}

// "on_device < main server.cu:14" of "on_device program.h:70 < main server.cu:14" where that is too
// long: who called says more.
std::string shortened_call_site(const std::string& text, std::size_t width) {
  const std::size_t by = text.find(" < "),
                    file = text.rfind(' ', by == std::string::npos ? by : by - 1);
  if (text.size() <= width || by == std::string::npos || file == std::string::npos)
    return shortened(text, width);
  return shortened(text.substr(0, file) + text.substr(by), width);
}

// How the sum of live bytes went, a column a view, scaled to its largest.
std::string curve(const std::vector<std::uint64_t>& past, std::size_t width,
                  live_text_options::letters with) {
  static constexpr const char* bars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr const char* plain[] = {" ", ".", ".", ":", ":", "-", "=", "+", "#"};
  const std::size_t from = past.size() > width ? past.size() - width : 0;
  std::uint64_t most = 0;
  for (std::size_t at = from; at < past.size(); ++at) most = std::max(most, past[at]);
  std::string made;
  for (std::size_t at = from; at < past.size(); ++at) {
    const double part = most == 0 ? 0 : static_cast<double>(past[at]) / static_cast<double>(most);
    const auto level = static_cast<std::size_t>(std::ceil(part * 8));
    made += with == live_text_options::letters::utf8 ? bars[level] : plain[level];
  }
  return made;
}

class terminal_page {
 public:
  explicit terminal_page(const live_text_options& options) : options_(options) {}

  void line(std::string text, const char* colour = "") {
    // The screen obeys what is drawn on it: names come from a file.
    text = shortened(printable(text), options_.width);
    const bool coloured = *colour != '\0' && options_.how == live_text_options::ink::colours;
    lines_.push_back(coloured ? fmt::format("\x1b[{}m{}\x1b[0m", colour, text) : text);
  }
  void rows(const table& of) {
    const std::string text = of.text(options_.width);
    std::size_t at = 0, number = 0;
    while (at < text.size()) {
      const std::size_t end = text.find('\n', at);
      line(text.substr(at, end - at), number == 0 ? "1" : number == 1 ? "2" : "");
      ++number;
      at = end + 1;
    }
  }
  [[nodiscard]] std::size_t left() const {
    return options_.height == 0 ? SIZE_MAX
                                : options_.height - std::min(options_.height, lines_.size());
  }
  [[nodiscard]] std::string text() const {
    std::string made;
    const std::size_t shown =
        options_.height == 0 ? lines_.size() : std::min(lines_.size(), options_.height);
    for (std::size_t at = 0; at < shown; ++at) made += lines_[at] + '\n';
    return made;
  }

 private:
  const live_text_options& options_;
  std::vector<std::string> lines_;
};

void put_fragmentation(terminal_page& into, const live_view& of) {
  const std::uint64_t live = of.reserved_bytes - of.free_bytes;  // in the segments
  const std::string pieces =
      of.free_pieces == 0
          ? "no holes"
          : fmt::format("{} in {} {}, the largest {}", format_bytes(of.free_bytes),
                        grouped(of.free_pieces), of.free_pieces == 1 ? "piece" : "pieces",
                        format_bytes(of.largest_free));
  if (!of.segments_known) {
    into.line(fmt::format("gaps between blocks of GPU memory: {}", pieces));
    return;
  }
  const double ratio =
      live == 0 ? 0 : static_cast<double>(of.reserved_bytes) / static_cast<double>(live);
  into.line(fmt::format("GPU memory: {} reserved{}; free {}", format_bytes(of.reserved_bytes),
                        live == 0 ? "" : fmt::format(", {:.2f} of live", ratio), pieces),
            ratio > 1.5 ? "33" : "");
}

}  // namespace

std::string live_text(const live_view& of, const std::vector<std::uint64_t>& past,
                      const live_text_options& options) {
  terminal_page made(options);
  const double seconds = seconds_of(of);
  made.line(fmt::format("{}{}{}", options.title, options.state.empty() ? "" : ": " + options.state,
                        of.device.empty()
                            ? ""
                            : fmt::format("; {}{}", of.device, of.simulated ? " (simulated)" : "")),
            "1");
  std::string what = fmt::format(
      "{} ({} a second), {}, {} kernels/s, {} copies/s", counted(of.events, "event", "events"),
      rate(static_cast<double>(of.new_events), seconds), counted(of.streams, "stream", "streams"),
      rate(static_cast<double>(of.kernels), seconds),
      rate(static_cast<double>(of.copies), seconds));
  made.line(what);
  if (of.failed > 0)
    made.line(counted(of.failed, "allocation", "allocations") + " got no memory", "31");
  if (of.dropped > 0)
    made.line(
        counted(of.dropped, "event", "events") + " dropped: the recorder's ring was full (--ring)",
        "31");
  if (past.size() > 1) made.line("live  " + curve(past, options.width - 6, options.with), "36");
  made.line("");

  int gpu_kinds = 0;
  table kinds({"memory", "live", "peak", "blocks", "alloc/s", "free/s", "new"});
  for (std::size_t at = 0; at < live_kinds; ++at) {
    const live_kind& each = of.kinds[at];
    if (each.peak_bytes == 0 && each.allocations == 0) continue;
    kinds.add({trace::to_string(static_cast<trace::kind>(at)), format_bytes(each.live_bytes),
               format_bytes(each.peak_bytes), grouped(each.live_blocks),
               rate(static_cast<double>(each.allocations), seconds),
               rate(static_cast<double>(each.frees), seconds),
               bytes_a_second(static_cast<double>(each.allocated_bytes), seconds)});
    if (trace::is_gpu_memory(static_cast<trace::kind>(at))) ++gpu_kinds;
  }
  if (gpu_kinds > 1) {
    kinds.add({"GPU in all", format_bytes(of.gpu_live_bytes), format_bytes(of.gpu_peak_bytes), "",
               "", "", ""});
  }
  made.rows(kinds);
  put_fragmentation(made, of);

  if (!of.calls.empty()) {
    made.line("");
    table calls({"us a call", "calls/s", "p50", "p99", "max", "of the time"});
    const std::size_t most = std::min<std::size_t>(of.calls.size(), 6);
    for (std::size_t at = 0; at < most; ++at) {
      const live_call& each = of.calls[at];
      calls.add({shortened(each.name, 28), rate(static_cast<double>(each.calls), seconds),
                 microseconds(each.p50_ns), microseconds(each.p99_ns), microseconds(each.max_ns),
                 seconds <= 0 ? "-" : fmt::format("{:.1f}%", each.sum_ns / 1e7 / seconds)});
    }
    made.rows(calls);
  }
  if (!of.sites.empty() && made.left() > 3) {
    made.line("");
    // Four columns of numbers beside it.
    const std::size_t room = options.width > 60 ? options.width - 38 : 22;
    table sites(
        {fmt::format("hot call sites ({} of {})", of.sites.size(), grouped(of.sites_in_all)),
         "live", "blocks", "alloc/s", "ms/s"});
    for (const live_site& each : of.sites) {
      sites.add({shortened_call_site(each.label, room), format_bytes(each.live_bytes),
                 grouped(each.live_blocks), rate(static_cast<double>(each.allocations), seconds),
                 seconds <= 0 ? "-" : fmt::format("{:.2f}", each.call_ns / 1e6 / seconds)});
    }
    made.rows(sites);
  }
  return made.text();
}

std::string live_json(const live_view& of, const std::string& state) {
  ordered_json made{{"program", of.program},        {"device", of.device},
                    {"simulated", of.simulated},    {"state", state},
                    {"seconds", seconds_of(of)},    {"since_start", of.elapsed_s <= 0},
                    {"events", of.events},          {"new_events", of.new_events},
                    {"dropped_events", of.dropped}, {"trace_ns", of.trace_ns},
                    {"streams", of.streams},        {"kernels", of.kernels},
                    {"copies", of.copies},          {"failed_allocations", of.failed}};
  ordered_json kinds = ordered_json::object();
  for (std::size_t at = 0; at < live_kinds; ++at) {
    const live_kind& each = of.kinds[at];
    kinds[trace::to_string(static_cast<trace::kind>(at))] = {
        {"live_bytes", each.live_bytes}, {"live_blocks", each.live_blocks},
        {"peak_bytes", each.peak_bytes}, {"allocations", each.allocations},
        {"frees", each.frees},           {"allocated_bytes", each.allocated_bytes}};
  }
  made["kinds"] = kinds;
  made["gpu"] = {{"live_bytes", of.gpu_live_bytes}, {"peak_bytes", of.gpu_peak_bytes}};
  made["fragmentation"] = {{"segments_known", of.segments_known},
                           {"reserved_bytes", of.reserved_bytes},
                           {"free_bytes", of.free_bytes},
                           {"free_pieces", of.free_pieces},
                           {"largest_free_bytes", of.largest_free}};
  ordered_json calls = ordered_json::array();
  for (const live_call& each : of.calls) {
    calls.push_back({{"name", each.name},
                     {"calls", each.calls},
                     {"p50_us", each.p50_ns / 1e3},
                     {"p99_us", each.p99_ns / 1e3},
                     {"max_us", each.max_ns / 1e3},
                     {"total_us", each.sum_ns / 1e3}});
  }
  made["calls"] = calls;
  ordered_json sites = ordered_json::array();
  for (const live_site& each : of.sites) {
    sites.push_back({{"call_site", each.label},
                     {"kind", trace::to_string(each.of)},
                     {"live_bytes", each.live_bytes},
                     {"live_blocks", each.live_blocks},
                     {"allocations", each.allocations},
                     {"time_us", each.call_ns / 1e3}});
  }
  made["call_sites"] = sites;
  made["call_sites_in_all"] = of.sites_in_all;
  return made.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace millpond::report
