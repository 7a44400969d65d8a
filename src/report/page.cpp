#include "report/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "millpond/base/units.hpp"
#include "report/columns.hpp"
#include "report/explanation.hpp"
#include "report/table.hpp"

namespace millpond::report {
namespace {

using nlohmann::ordered_json;
using form = column::form;

// Named columns, all as long as each other.
class column_table {
 public:
  column& add(const char* name, form how) {
    return columns_.emplace_back(name, column(how)).second;
  }
  ordered_json json() {
    ordered_json made{{"count", columns_.empty() ? 0 : columns_.front().second.count()}};
    for (auto& [name, each] : columns_)
      made["columns"][name] = {{"form", each.name()}, {"data", each.text()}};
    return made;
  }
  void reserve(std::size_t columns) {
    columns_.reserve(columns);
  }  // references stay valid up to so many

 private:
  std::vector<std::pair<const char*, column>> columns_;
};

class position_finder {
 public:
  explicit position_finder(const std::vector<picture_region>& regions) : regions_(regions) {}
  std::uint64_t operator()(std::uint64_t address) const {
    const auto next = std::ranges::upper_bound(regions_, address, {}, &picture_region::address);
    if (next == regions_.begin()) return 0;
    const picture_region& in = *std::prev(next);
    return in.position + (address - in.address);
  }

 private:
  const std::vector<picture_region>& regions_;
};

bool shown(const picture& of, std::uint64_t begin, std::uint64_t end) {
  for (const picture_window& each : of.windows) {
    if (begin < each.end && end >= each.first) return true;
  }
  return false;
}

ordered_json blocks_json(const picture& of) {
  column_table table;
  table.reserve(9);
  column& begin = table.add("begin_event", form::difference);
  column& life = table.add("events", form::plain);  // 0: never freed
  column& time = table.add("begin_ns", form::difference);
  column& time_life = table.add("ns", form::plain);
  column& held = table.add("held_events", form::plain);
  column& position = table.add("position", form::difference);
  column& bytes = table.add("bytes", form::plain);
  column& owner = table.add("kind_and_stream", form::plain);
  column& site = table.add("site", form::plain);
  const position_finder where(of.regions);
  for (const picture_block& each : of.blocks) {
    if (!shown(of, each.begin_event, each.end_event)) continue;
    const bool ends = each.end_event != lives_on;
    begin.add(each.begin_event);
    life.add(ends ? std::max<std::uint64_t>(1, each.end_event - each.begin_event) : 0);
    time.add(each.begin_ns);
    time_life.add(ends ? each.end_ns - each.begin_ns : 0);
    held.add(each.held_event == 0 ? 0 : each.held_event - each.end_event);
    position.add(where(each.address));
    bytes.add(each.bytes);
    owner.add(static_cast<std::uint64_t>(each.of) + 8 * std::uint64_t{each.stream});
    site.add(each.site);
  }
  return table.json();
}

ordered_json marks_json(const picture& of, const trace::trace_info& info) {
  column_table table;
  table.reserve(6);
  column& event = table.add("event", form::difference);
  column& time = table.add("ns", form::difference);
  column& what = table.add("what", form::plain);
  column& stream = table.add("stream", form::plain);
  column& bytes = table.add("bytes", form::plain);
  column& text = table.add("text", form::plain);
  std::unordered_map<std::uint32_t, std::uint64_t> numbers;
  ordered_json texts = ordered_json::array({""});
  for (const picture_mark& each : of.marks) {
    if (!shown(of, each.event, each.event)) continue;
    std::uint64_t number = 0;
    if (each.text != 0) {
      const auto [at, added] = numbers.try_emplace(each.text, texts.size());
      if (added) texts.push_back(std::string(info.strings.at(each.text)));
      number = at->second;
    }
    event.add(each.event);
    time.add(each.time_ns);
    what.add(static_cast<std::uint64_t>(each.what));
    stream.add(each.stream);
    bytes.add(each.bytes);
    text.add(number);
  }
  ordered_json made = table.json();
  made["texts"] = texts;
  made["actions"] = ordered_json::array();
  for (int n = 0; n < trace::action_count; ++n)
    made["actions"].push_back(trace::to_string(static_cast<trace::action>(n)));
  return made;
}

ordered_json bins_json(const picture& of) {
  ordered_json made = ordered_json::array();
  for (const picture_bin& each : of.bins) {
    made.push_back({{"first", each.first_event},
                    {"event", each.event},
                    {"ns", each.time_ns},
                    {"live", each.live_bytes},
                    {"blocks", each.live_blocks},
                    {"reserved", each.reserved_bytes},
                    {"allocations", each.allocations},
                    {"frees", each.frees},
                    {"kind", each.by_kind},
                    {"stream", each.by_stream},
                    {"site", each.by_site}});
  }
  return made;
}

ordered_json sites_json(const picture& of, const trace::trace_info& info) {
  ordered_json made = ordered_json::array();
  for (const picture_site& each : of.sites) {
    made.push_back({{"label", each.label},
                    {"call", std::string(info.strings.at(each.call))},
                    {"stack", each.stack},
                    {"frames", stack_lines(each.stack, info)},
                    {"blocks", each.blocks},
                    {"bytes", each.bytes},
                    {"peak_bytes", each.peak_bytes},
                    {"ns", each.call_ns}});
  }
  return made;
}

ordered_json findings_json(const page_trace& of) {
  ordered_json made = ordered_json::array();
  for (const advise::finding& each : of.explained.findings) {
    ordered_json call_sites = ordered_json::array();
    for (const advise::finding_call_site& call_site : each.call_sites) {
      call_sites.push_back({{"what", call_site.what},
                            {"stack", call_site.stack},
                            {"frames", stack_lines(call_site.stack, *of.info)}});
    }
    const advise::flaw_facts& facts = advise::facts_of(each.which);
    made.push_back({{"flaw", facts.name},
                    {"title", facts.title},
                    {"severity", advise::to_string(each.how_bad)},
                    {"summary", each.summary},
                    {"count", each.count},
                    {"bytes", each.bytes},
                    {"ns", each.time_ns},
                    {"call_sites", call_sites},
                    {"events", each.events},
                    {"seen", each.seen},
                    {"remedy", each.remedy}});
  }
  return made;
}

ordered_json histogram_json(const replay::latency_histogram& of) {
  ordered_json buckets = ordered_json::array();
  of.for_each_bucket([&](double ns, std::uint64_t count) { buckets.push_back({ns, count}); });
  return {{"count", of.count()}, {"p50", of.percentile_ns(0.5)}, {"p99", of.percentile_ns(0.99)},
          {"max", of.max_ns()},  {"sum", of.sum_ns()},           {"buckets", buckets}};
}

// What is said of events that are not on the page one by one.
std::string left_out(const picture& of) {
  if (of.events_shown >= of.events) return "";
  return fmt::format(
      "{} of {} events are shown one by one; elsewhere charts show the most that was live in each "
      "of {} stretches. "
      "--from and --to show another part.",
      grouped(of.events_shown), grouped(of.events), grouped(of.bins.size()));
}

// A list of `values`, each as `row` makes it.
template <class Values, class Row>
ordered_json list_of(const Values& values, Row row) {
  ordered_json made = ordered_json::array();
  for (const auto& each : values) made.push_back(row(each));
  return made;
}

ordered_json segments_json(const picture& of) {
  const position_finder where(of.regions);
  column_table segments;
  segments.reserve(6);
  column &begin = segments.add("begin_event", form::difference),
         &life = segments.add("events", form::plain),
         &time = segments.add("begin_ns", form::difference),
         &time_life = segments.add("ns", form::plain),
         &position = segments.add("position", form::difference),
         &bytes = segments.add("bytes", form::plain);
  for (const picture_segment& one : of.segments) {
    const bool ends = one.end_event != lives_on;
    begin.add(one.begin_event);
    life.add(ends ? one.end_event - one.begin_event : 0);
    time.add(one.begin_ns);
    time_life.add(ends ? one.end_ns - one.begin_ns : 0);
    position.add(where(one.address));
    bytes.add(one.bytes);
  }
  return segments.json();
}

ordered_json totals_json(const page_trace& each) {
  const picture& of = each.shown;
  const trace::trace_info& info = *each.info;
  return {{"name", of.name},
          {"format", of.format},
          {"program", info.meta.program},
          {"device", info.meta.device_name},
          {"simulated", info.meta.simulated},
          {"warnings", each.explained.what.remarks},
          {"left_out", left_out(of)},
          {"events", of.events},
          {"events_shown", of.events_shown},
          {"allocations", of.allocations},
          {"frees", of.frees},
          {"failed", of.failed},
          {"unmatched_frees", of.unmatched_frees},
          {"allocated_bytes", of.allocated_bytes},
          {"freed_bytes", of.freed_bytes},
          {"peak_bytes", of.peak_bytes},
          {"peak_event", of.peak_event},
          {"peak_reserved_bytes", of.peak_reserved_bytes},
          {"end_bytes", of.end_bytes},
          {"end_blocks", of.end_blocks},
          {"duration_ns", of.duration_ns},
          {"times_known", of.times_known}};
}

ordered_json strategies_json(const page_trace& of) {
  return list_of(of.outcomes, [](const replay::outcome& one) -> ordered_json {
    return {{"name", one.label()},
            {"allocate", histogram_json(one.allocate)},
            {"free", histogram_json(one.free)},
            {"reserved", one.peak_reserved_bytes},
            {"waits", one.device_waits},
            {"failures", one.failures},
            {"total_ns", one.allocator_ns}};
  });
}

ordered_json trace_json(const page_trace& each) {
  const picture& of = each.shown;
  const trace::trace_info& info = *each.info;
  ordered_json made = totals_json(each);
  made["kinds"] = {"device", "driver pool", "pinned", "managed", "pageable"};
  made["streams"] = list_of(of.streams, [](std::uint64_t stream) {
    return stream == 0 ? "default stream" : fmt::format("stream {}", stream);
  });
  made["sites"] = sites_json(of, info);
  made["windows"] = list_of(of.windows, [](const picture_window& one) -> ordered_json {
    return {{"first", one.first}, {"end", one.end}, {"why", one.why}};
  });
  made["blocks"] = blocks_json(of);
  made["marks"] = marks_json(of, info);
  made["bins"] = bins_json(of);
  made["segments"] = segments_json(of);
  // Addresses as text: a browser's numbers are exact up to 2^53 only.
  made["regions"] = list_of(of.regions, [](const picture_region& one) {
    return ordered_json::array({fmt::format("{:#x}", one.address), one.bytes, one.position});
  });
  made["fragmentation"] = list_of(of.fragmentation, [](const picture_fragmentation& one) {
    return ordered_json::array(
        {one.event, one.time_ns, one.live_bytes, one.free_bytes, one.largest_hole, one.holes});
  });
  made["lifetimes"] = list_of(of.lifetimes, [](const picture_cell& one) {
    return ordered_json::array({one.size, one.life, one.blocks, one.bytes});
  });
  made["findings"] = findings_json(each);
  made["calls"] = list_of(of.calls, [](const picture_call& one) -> ordered_json {
    return {{"name", one.name}, {"allocate", histogram_json(one.times)}};
  });
  made["strategies"] = strategies_json(each);
  made["replayed_on"] = each.replayed_on;
  made["not_replayed"] = each.not_replayed;
  return made;
}

ordered_json change_json(const advise::difference& of) {
  ordered_json measures = ordered_json::array(), call_sites = ordered_json::array();
  using unit = advise::measure::unit;
  for (const advise::measure& each : of.measures) {
    measures.push_back({{"name", each.name},
                        {"unit", each.in == unit::bytes         ? "bytes"
                                 : each.in == unit::nanoseconds ? "ns"
                                                                : "count"},
                        {"before", each.before},
                        {"after", each.after},
                        {"worse", each.regressed}});
  }
  for (const advise::call_site_change& each : of.call_sites) {
    call_sites.push_back({{"call_site", each.call_site},
                          {"peak_before", each.peak_before},
                          {"peak_after", each.peak_after},
                          {"blocks_before", each.blocks_before},
                          {"blocks_after", each.blocks_after},
                          {"worse", each.regressed}});
  }
  const auto titles = [](const std::vector<advise::finding>& from) {
    ordered_json made = ordered_json::array();
    for (const advise::finding& each : from)
      made.push_back({{"title", advise::facts_of(each.which).title}, {"summary", each.summary}});
    return made;
  };
  return {{"measures", measures},
          {"call_sites", call_sites},
          {"appeared", titles(of.appeared)},
          {"gone", titles(of.gone)}};
}

void put_in(std::string& page, std::string_view mark, std::string_view text) {
  const std::size_t at = page.find(mark);
  if (at != std::string::npos) page.replace(at, mark.size(), text);
}

}  // namespace

std::string page_json(const page& of) {
  ordered_json whole{
      {"made_by", of.made_by}, {"traces", ordered_json::array()}, {"change", nullptr}};
  for (const page_trace& each : of.traces) whole["traces"].push_back(trace_json(each));
  if (of.change != nullptr) whole["change"] = change_json(*of.change);
  return whole.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

bool is_page(std::string_view beginning) {
  return beginning.starts_with("<!DOCTYPE html>") &&
         beginning.find("<title>millpond report</title>") != std::string_view::npos;
}

result<std::string> page_html(const page& of) {
  const page_files& files = embedded_page_files();
  if (files.d3.empty()) {
    return error{error_code::not_supported,
                 "this build has no D3, so it makes no HTML (Debian: apt-get install node-d3, then "
                 "build again); --format "
                 "perfetto, csv and pytorch work"};
  }
  const std::string json = page_json(of);
  std::string data;
  data.reserve(json.size() + json.size() / 64);
  // A name in a trace must not end the script element.
  for (const char each : json) {
    if (each == '<')
      data += "\\u003c";
    else
      data += each;
  }
  std::string made(files.html);
  put_in(made, "/*millpond:css*/", files.css);
  put_in(made, "/*millpond:d3*/", files.d3);
  put_in(made, "/*millpond:script*/", files.script);
  put_in(made, "/*millpond:data*/", data);
  return made;
}

}  // namespace millpond::report
