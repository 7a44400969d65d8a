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

bool costs_more(const finding& before, const finding& after, const difference_limits& limits) {
  const auto memory = [](const finding& of) {
    return static_cast<double>(
        of.peak_bytes > of.peak_after_bytes ? of.peak_bytes - of.peak_after_bytes : of.bytes);
  };
  return grew(before.time_ns, after.time_ns, limits.time_share, limits.least_ns) ||
         grew(memory(before), memory(after), limits.bytes_share,
              static_cast<double>(limits.least_bytes));
}

// The same flaw of the same call, as often and as dear, at a place of another name.
bool renamed(const finding& a, const finding& b, const difference_limits& limits) {
  if (a.which != b.which || a.count != b.count || a.bytes != b.bytes) return false;
  if (a.call_sites.empty() || b.call_sites.empty()) return false;
  const double more = std::max(a.time_ns, b.time_ns), less = std::min(a.time_ns, b.time_ns);
  return a.call_sites.front().what == b.call_sites.front().what &&
         !grew(less, more, limits.time_share, 0);
}

void findings(difference& made, const explained& before, const explained& after,
              const difference_limits& limits) {
  std::multimap<std::string, const finding*> known;
  for (const finding& each : before.what.findings) known.emplace(key_of(each, before.trace), &each);
  std::vector<const finding*> fresh;
  for (const finding& each : after.what.findings) {
    const auto same = known.find(key_of(each, after.trace));
    if (same == known.end()) {
      fresh.push_back(&each);
      continue;
    }
    const finding& was = *same->second;
    const bool worse = each.how_bad != severity::note && costs_more(was, each, limits);
    if (worse || costs_more(each, was, limits)) made.changed.push_back({was, each, worse});
    known.erase(same);
  }
  for (const finding* each : fresh) {
    const auto same = std::ranges::find_if(
        known, [&](const auto& one) { return renamed(*one.second, *each, limits); });
    if (same == known.end())
      made.appeared.push_back(*each);
    else
      known.erase(same);
  }
  for (const finding& each : before.what.findings) {
    const bool left =
        std::ranges::any_of(known, [&](const auto& one) { return one.second == &each; });
    if (left) made.gone.push_back(each);
  }
}

void measures(difference& made, const explained& before, const explained& after,
              const difference_limits& limits) {
  const analysed &a = before.what.what, &b = after.what.what;
  const auto bytes = [&](const std::string& name, std::uint64_t was, std::uint64_t is) {
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
  // Each device's own peak: what one has free serves no other.
  std::map<std::uint16_t, std::pair<std::uint64_t, std::uint64_t>> peaks;
  for (const device_summary& each : a.devices) peaks[each.device].first = each.peak_live_bytes;
  for (const device_summary& each : b.devices) peaks[each.device].second = each.peak_live_bytes;
  if (peaks.size() <= 1) bytes("peak of live device memory", a.peak_live_bytes, b.peak_live_bytes);
  for (const auto& [device, peak] : peaks) {
    if (peaks.size() == 1) break;
    bytes(fmt::format("peak of live memory of device {}", device), peak.first, peak.second);
  }
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

// A place of the same call that is there on one side alone, with the same blocks and bytes as one
// on the other side: it has another name now.
void leave_renamed_out(std::map<std::string, call_site_change>& all) {
  const auto call_of = [](const std::string& key) { return key.substr(0, key.find('\n')); };
  for (auto gone = all.begin(); gone != all.end();) {
    const call_site_change& was = gone->second;
    const auto is_same = [&](const auto& one) {
      const call_site_change& is = one.second;
      return is.blocks_before == 0 && is.blocks_after == was.blocks_before &&
             is.peak_after == was.peak_before && call_of(one.first) == call_of(gone->first);
    };
    const auto come = was.blocks_after == 0 ? std::ranges::find_if(all, is_same) : all.end();
    if (come == all.end()) {
      ++gone;
      continue;
    }
    all.erase(come);
    gone = all.erase(gone);
  }
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
  leave_renamed_out(all);
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
                             [](const finding& each) { return each.how_bad != severity::note; }) ||
         std::ranges::any_of(changed, &finding_change::regressed);
}

difference compare(const explained& before, const explained& after,
                   const difference_limits& limits) {
  difference made;
  measures(made, before, after, limits);
  call_sites(made, before, after, limits);
  findings(made, before, after, limits);
  return made;
}

}  // namespace millpond::advise
