#include "advise/difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "millpond/base/units.hpp"

namespace millpond::advise {
namespace {

std::string symbols_of(std::uint32_t stack, const trace::trace_info& trace) {
  std::string made;
  for (const trace::frame& each : trace.stacks.at(stack)) {
    std::string_view symbol = trace.strings.at(each.symbol);
    if (const auto address = symbol.rfind(" (+0x"); address != std::string_view::npos)
      symbol = symbol.substr(0, address);
    made += std::string(symbol) + '\n';
  }
  return made;
}

std::string key_of(const call_site_summary& of, const trace::trace_info& trace) {
  const std::string call(trace.strings.at(of.call));
  if (of.stack != 0 && !trace.stacks.at(of.stack).empty())
    return call + '\n' + symbols_of(of.stack, trace);
  return fmt::format("{} {} {}", call, to_string(of.of),
                     static_cast<int>(8 * std::log2(static_cast<double>(
                                              std::max<std::uint64_t>(of.largest_bytes, 1)))));
}

std::string name_of(const call_site_summary& of, const trace::trace_info& trace) {
  const std::string_view call = trace.strings.at(of.call);
  const auto frames = trace.stacks.at(of.stack);
  std::string made = call.empty() ? fmt::format("{} memory", to_string(of.of)) : std::string(call);
  if (frames.empty()) return made + fmt::format(", {}", format_bytes(of.largest_bytes));
  made += fmt::format(" in {}", trace.strings.at(frames[0].symbol));
  if (frames[0].line != 0)
    made += fmt::format(" ({}:{})", trace.strings.at(frames[0].file), frames[0].line);
  return made;
}

std::string key_of(const finding& of, const trace::trace_info& trace) {
  std::string made = facts_of(of.which).name;
  if (!of.call_sites.empty()) made += '\n' + symbols_of(of.call_sites.front().stack, trace);
  return made;
}

bool grew(double before, double after, double share, double least) {
  return after - before > least && after > before * (1 + share);
}

std::vector<finding> only_in(const explained& these, const explained& those) {
  std::map<std::string, std::uint64_t> known;
  for (const finding& each : those.what.findings) ++known[key_of(each, those.trace)];
  std::vector<finding> made;
  for (const finding& each : these.what.findings) {
    auto& left = known[key_of(each, these.trace)];
    if (left == 0)
      made.push_back(each);
    else
      --left;
  }
  return made;
}

void measures(difference& made, const explained& before, const explained& after,
              const difference_limits& limits) {
  const analysed &a = before.what.what, &b = after.what.what;
  const auto bytes = [&](const char* name, std::uint64_t was, std::uint64_t is) {
    const auto x = static_cast<double>(was), y = static_cast<double>(is);
    made.measures.push_back(
        {measure::unit::bytes, name, x, y,
         grew(x, y, limits.bytes_share, static_cast<double>(limits.least_bytes))});
  };
  const auto time = [&](const char* name, double was, double is) {
    made.measures.push_back({measure::unit::nanoseconds, name, was, is,
                             grew(was, is, limits.time_share, limits.least_ns)});
  };
  const auto count = [&](const char* name, std::uint64_t was, std::uint64_t is) {
    const auto x = static_cast<double>(was), y = static_cast<double>(is);
    made.measures.push_back(
        {measure::unit::count, name, x, y,
         grew(x, y, limits.count_share, static_cast<double>(limits.least_count))});
  };
  bytes("peak of live device memory", a.peak_live_bytes, b.peak_live_bytes);
  bytes("live at the end", a.end_live_bytes, b.end_live_bytes);
  count("allocations", a.allocations, b.allocations);
  count("blocks live at the end", a.end_live_blocks, b.end_live_blocks);
  const auto rounds = [](const explanation& of) {
    std::uint64_t all = 0;
    for (const call_site_summary& each : of.call_sites) all += each.rounds;
    return all;
  };
  count("allocations after a free of the same call site", rounds(before.what), rounds(after.what));
  made.measures.back().regressed =
      false;  // reported, not judged: a leak that was mended frees, and so allocates again
  if (a.allocator_ns > 0 || b.allocator_ns > 0)
    time("time in calls that allocate and free", a.allocator_ns, b.allocator_ns);
}

void call_sites(difference& made, const explained& before, const explained& after,
                const difference_limits& limits) {
  std::map<std::string, call_site_change> all;
  const auto add = [&](const explained& side, bool is_after) {
    for (const call_site_summary& each : side.what.call_sites) {
      call_site_change& one = all[key_of(each, side.trace)];
      if (is_after || one.call_site.empty()) one.call_site = name_of(each, side.trace);
      (is_after ? one.peak_after : one.peak_before) += each.peak_bytes;
      (is_after ? one.blocks_after : one.blocks_before) += each.blocks;
      (is_after ? one.stack_after : one.stack_before) = each.stack;
    }
  };
  add(before, false);
  add(after, true);
  for (auto& [key, each] : all) {
    if (each.peak_before == each.peak_after && each.blocks_before == each.blocks_after) continue;
    each.regressed =
        grew(static_cast<double>(each.peak_before), static_cast<double>(each.peak_after),
             limits.bytes_share, static_cast<double>(limits.least_bytes));
    made.call_sites.push_back(each);
  }
  const auto change = [](const call_site_change& of) {
    return of.peak_after > of.peak_before ? of.peak_after - of.peak_before
                                          : of.peak_before - of.peak_after;
  };
  std::ranges::stable_sort(
      made.call_sites,
      [&](const call_site_change& a, const call_site_change& b) { return change(a) > change(b); });
}

}  // namespace

bool difference::regressed() const noexcept {
  return std::ranges::any_of(measures, &measure::regressed) ||
         std::ranges::any_of(appeared,
                             [](const finding& each) { return each.how_bad != severity::note; });
}

difference compare(const explained& before, const explained& after,
                   const difference_limits& limits) {
  difference made;
  measures(made, before, after, limits);
  call_sites(made, before, after, limits);
  made.appeared = only_in(after, before);
  made.gone = only_in(before, after);
  return made;
}

}  // namespace millpond::advise
