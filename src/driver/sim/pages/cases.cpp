#include "driver/sim/pages/cases.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "millpond/base/units.hpp"

namespace millpond::sim::pages {
namespace {

template <class Value, std::size_t Count>
using names = std::array<std::pair<const char*, Value>, Count>;

constexpr names<measured, 6> parts{{{"kernel", measured::kernel},
                                    {"second_kernel", measured::second_kernel},
                                    {"fault_back", measured::fault_back},
                                    {"prefetch_back", measured::prefetch_back},
                                    {"round_p50", measured::round_p50},
                                    {"round_p99", measured::round_p99}}};
constexpr names<access_kind, 3> accesses{{{"read", access_kind::read},
                                          {"write", access_kind::write},
                                          {"read-write", access_kind::read_write}}};
constexpr names<start_location, 3> starts{{{"untouched", start_location::untouched},
                                           {"host", start_location::host},
                                           {"device", start_location::device}}};
constexpr names<run_options::before, 2> prefetches{
    {{"no", run_options::before::nothing}, {"yes", run_options::before::prefetch}}};
constexpr names<advice_given, 5> advices{
    {{"read-mostly", {managed_advice::set_read_mostly, memory_location::device}},
     {"preferred-host", {managed_advice::set_preferred_location, memory_location::host}},
     {"preferred-device", {managed_advice::set_preferred_location, memory_location::device}},
     {"accessed-by-host", {managed_advice::set_accessed_by, memory_location::host}},
     {"accessed-by-device", {managed_advice::set_accessed_by, memory_location::device}}}};

template <class Value, std::size_t Count>
const Value* by_name(const names<Value, Count>& list, std::string_view wanted) {
  for (const auto& [name, value] : list) {
    if (wanted == name) return &value;
  }
  return nullptr;
}
template <class Value, std::size_t Count>
const char* name_of(const names<Value, Count>& list, Value wanted) {
  for (const auto& [name, value] : list) {
    if (value == wanted) return name;
  }
  return "";
}

std::vector<std::string> split(const std::string& line, char at) {
  std::vector<std::string> cells;
  std::string cell;
  std::istringstream in(line);
  while (std::getline(in, cell, at)) cells.push_back(cell);
  if (line.ends_with(at)) cells.emplace_back();
  return cells;
}

// An empty string where the cells make a case, else what was expected.
std::string fill(page_case& one, const std::vector<std::string>& cells) {
  run_options& o = one.what;
  one.name = cells[0];
  if (!parse_bytes(cells[1], o.bytes) || o.bytes == 0)
    return fmt::format("bytes, found `{}`", cells[1]);
  const auto kind = parse_pattern(cells[2]);
  if (!kind) return fmt::format("a pattern, found `{}`", cells[2]);
  o.pattern = *kind;
  if (!cells[3].empty() && !parse_bytes(cells[3], o.stride))
    return fmt::format("a stride, found `{}`", cells[3]);
  const auto* access = by_name(accesses, cells[4]);
  const auto* start = by_name(starts, cells[5]);
  if (access == nullptr) return fmt::format("read, write or read-write, found `{}`", cells[4]);
  if (start == nullptr) return fmt::format("untouched, host or device, found `{}`", cells[5]);
  o.access = *access;
  o.start = *start;
  for (const std::string& name : split(cells[6], '+')) {
    const auto* advice = by_name(advices, name);
    if (advice == nullptr) return fmt::format("advice joined by +, found `{}`", name);
    o.advice.push_back(*advice);
  }
  const auto* prefetch = by_name(prefetches, cells[7]);
  if (prefetch == nullptr) return fmt::format("yes or no, found `{}`", cells[7]);
  o.each_kernel = *prefetch;
  const auto* part = by_name(parts, cells[9]);
  if (part == nullptr) return fmt::format("what is measured, found `{}`", cells[9]);
  one.part = *part;
  try {
    o.rounds = std::stoull(cells[8]);
    if (!cells[10].empty()) one.low_ms = std::stod(cells[10]);
    if (!cells[11].empty()) one.high_ms = std::stod(cells[11]);
  } catch (const std::exception&) {
    return fmt::format("rounds and milliseconds as numbers, found `{},{},{}`", cells[8], cells[10],
                       cells[11]);
  }
  if (o.rounds == 0 || o.rounds > 1'000'000) return "from 1 to 1000000 rounds";
  return {};
}

}  // namespace

result<std::vector<page_case>> read_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) return error{error_code::bad_input, path + ": cannot be read"};
  std::vector<page_case> cases;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line.front() == '#' || line == case_columns) continue;
    const auto cells = split(line, ',');
    const auto wrong = [&](const std::string& expected) {
      return error{error_code::bad_input,
                   fmt::format("{}:{}: expected {}", path, number, expected)};
    };
    if (cells.size() != 12)
      return wrong(fmt::format("12 cells ({}), found {}", case_columns, cells.size()));
    page_case one;
    if (const std::string expected = fill(one, cells); !expected.empty()) return wrong(expected);
    cases.push_back(std::move(one));
  }
  return cases;
}

bool read_rates(const std::string& path, gpu_profile& into) {
  std::ifstream file(path);
  const std::array<std::pair<std::string_view, double*>, 4> wanted{
      {{"fault_in=", &into.managed_fault_in_bytes_per_s},
       {"fault_back=", &into.managed_fault_back_bytes_per_s},
       {"prefetch=", &into.managed_prefetch_bytes_per_s},
       {"prefetch_back=", &into.managed_prefetch_back_bytes_per_s}}};
  for (std::string line; std::getline(file, line) && line.starts_with('#');) {
    if (!line.starts_with("# rates of this machine")) continue;
    for (const std::string& word : split(line, ' ')) {
      for (const auto& [name, rate] : wanted) {
        if (word.starts_with(name)) *rate = std::strtod(word.c_str() + name.size(), nullptr) * 1e9;
      }
    }
    return true;
  }
  return false;
}

std::string case_line(const page_case& one) {
  const run_options& o = one.what;
  std::string advice;
  for (const advice_given& each : o.advice) {
    for (const auto& [name, value] : advices) {
      if (value.what != each.what || value.location != each.location) continue;
      if (!advice.empty()) advice += '+';
      advice += name;
    }
  }
  const auto number = [](double ms) { return ms > 0 ? fmt::format("{:.5g}", ms) : std::string(); };
  return fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}", one.name, o.bytes, to_string(o.pattern),
                     o.stride != 0 ? fmt::format("{}", o.stride) : "", name_of(accesses, o.access),
                     name_of(starts, o.start), advice, name_of(prefetches, o.each_kernel), o.rounds,
                     name_of(parts, one.part), number(one.low_ms), number(one.high_ms));
}

std::string table_line(const page_case& one, const page_costs& costs) {
  const double predicted = predict_ms(one, costs);
  const auto three = [](double ms) {
    return ms >= 1000 ? fmt::format("{:.0f}", ms) : fmt::format("{:.3g}", ms);
  };
  std::string measured = three(one.low_ms);
  if (three(one.high_ms) != measured) measured += " to " + three(one.high_ms);
  return fmt::format("| {} | {} | {} | {} | {:+.0f}% |", one.name, format_bytes(one.what.bytes),
                     measured, three(predicted), 100 * (predicted / one.middle_ms() - 1));
}

double predict_ms(const page_case& one, const page_costs& costs) {
  if (one.part == measured::fault_back || one.part == measured::prefetch_back) {
    space s(costs);
    s.add(block_bytes, one.what.bytes);
    for (const advice_given& each : one.what.advice)
      s.advise(block_bytes, one.what.bytes, each.what, each.location);
    double now = s.touch_by_host(block_bytes, one.what.bytes, access_kind::write, 0);
    now += s.prefetch(block_bytes, one.what.bytes, memory_location::device, now) +
           2 * costs.thrash_reset_ns;
    if (one.part == measured::prefetch_back)
      return s.prefetch(block_bytes, one.what.bytes, memory_location::host, now) / 1e6;
    return s.touch_by_host(block_bytes, one.what.bytes, access_kind::write, now) / 1e6;
  }
  run_options what = one.what;
  if (one.part == measured::second_kernel) what.rounds = 2;
  const run_report report = run(what, costs);
  switch (one.part) {
    case measured::round_p50: return report.round_at_ns(0.5) / 1e6;
    case measured::round_p99: return report.round_at_ns(0.99) / 1e6;
    case measured::second_kernel: return report.round_ns.back() / 1e6;
    case measured::kernel:
    case measured::fault_back:
    case measured::prefetch_back: break;
  }
  return report.round_ns.front() / 1e6;
}

}  // namespace millpond::sim::pages
