#include <fmt/format.h>

#include "millpond/base/units.hpp"
#include "report/comparison.hpp"
#include "report/table.hpp"

namespace millpond::report {
namespace {

using replay::outcome;
constexpr std::size_t columns = text_columns;
constexpr std::size_t violations_shown =
    3;  // a strategy; a thousand of one cause help nobody on a terminal

std::string head(const comparison& of) {
  const workload_facts& trace = of.trace;
  std::string made =
      wrapped(fmt::format("Workload  {}: {}, {}, {}, {}; peak live {}, largest {}", trace.name,
                          counted(trace.events, "event", "events"),
                          counted(trace.allocations, "allocation", "allocations"),
                          counted(trace.frees, "free", "frees"),
                          counted(trace.streams, "stream", "streams"),
                          format_bytes(trace.peak_live_bytes), format_bytes(trace.largest_bytes)),
              columns, 10);
  std::string gpu = "GPU       " + of.from.gpu_name;
  if (of.from.simulated) {
    gpu += fmt::format(
        " -- SIMULATED{}: times are virtual, from the profile {}",
        of.from.why_simulated.empty() ? ", as asked" : fmt::format(" ({})", of.from.why_simulated),
        of.from.profile);
  }
  made += '\n' + wrapped(gpu, columns, 10) + '\n';
  made += wrapped(fmt::format(
                      "Replay    {}, {}, {} round{}",
                      of.pace == replay::pacing::flat_out ? "flat out" : "with the recorded pauses",
                      of.contents == replay::contents_mode::touch
                          ? "each block written by a kernel and checked before its free"
                          : "the allocator alone, no kernel touches the blocks",
                      of.rounds, of.rounds == 1 ? "" : "s"),
                  columns, 10) +
          '\n';
  for (const std::string& note : trace.notes)
    made += wrapped("Note      " + note, columns, 10) + '\n';
  return made;
}

std::string time_table(const comparison& of) {
  table made({"us a call", "alloc p50", "p99", "max", "free p50", "p99", "max", "total"});
  for (const outcome& each : of.outcomes) {
    made.add({each.label(), microseconds(each.allocate.percentile_ns(0.5)),
              microseconds(each.allocate.percentile_ns(0.99)), microseconds(each.allocate.max_ns()),
              microseconds(each.free.percentile_ns(0.5)),
              microseconds(each.free.percentile_ns(0.99)), microseconds(each.free.max_ns()),
              format_duration(each.allocator_ns)});
  }
  return made.text();
}

std::string memory_table(const comparison& of) {
  table made({"memory and waits", "device waits", "waited", "reserved", "of live", "failures"});
  for (const outcome& each : of.outcomes) {
    made.add({each.label(), grouped(each.device_waits), format_duration(each.device_wait_ns),
              format_bytes(each.peak_reserved_bytes), fmt::format("{:.3f}", each.reserved_ratio()),
              grouped(each.failures)});
  }
  return made.text();
}

std::string step_table(const comparison& of) {
  table made({"a step, us", "steps", "mean", "p50", "p99", "max"});
  for (const outcome& each : of.outcomes) {
    made.add({each.label(), grouped(each.step.count()), microseconds(each.step.mean_ns()),
              microseconds(each.step.percentile_ns(0.5)),
              microseconds(each.step.percentile_ns(0.99)), microseconds(each.step.max_ns())});
  }
  return made.text();
}

std::string round_table(const comparison& of) {
  const std::size_t shown = std::min<std::size_t>(of.rounds, 4);
  std::vector<std::string> heads{"allocator total a round"};
  for (std::size_t i = 0; i < shown; ++i)
    heads.push_back(i == 0 ? "cold" : fmt::format("round {}", i + 1));
  table made(heads);
  for (const outcome& each : of.outcomes) {
    std::vector<std::string> cells{each.label()};
    for (std::size_t i = 0; i < shown; ++i) {
      cells.push_back(
          i < each.round_allocator_ns.size() ? format_duration(each.round_allocator_ns[i]) : "-");
    }
    made.add(cells);
  }
  return made.text();
}

// What each strategy has to say: its first failure, its violations, its remarks.
std::string remarks(const comparison& of) {
  std::string made;
  for (const outcome& each : of.outcomes) {
    if (each.failures > 0) {
      made += wrapped(fmt::format("{}: {} failures, the first: {}", each.label(), each.failures,
                                  each.first_failure),
                      columns, 2) +
              '\n';
    }
    const std::size_t shown = std::min(each.violations.size(), violations_shown);
    for (std::size_t i = 0; i < shown; ++i) {
      const replay::violation& one = each.violations[i];
      made += wrapped(fmt::format("VIOLATION {}: {}: {}", each.label(), one.rule, one.text),
                      columns, 2) +
              '\n';
    }
    if (each.violation_count > shown) {
      made += fmt::format("VIOLATION {}: {} more; --json has the first {}\n", each.label(),
                          each.violation_count - shown, each.violations.size());
    }
    for (const std::string& one : each.remarks) {
      const std::string reported = wrapped(one, columns, 2) + '\n';
      if (made.find(reported) == std::string::npos) made += reported;  // both stagings say the same
    }
  }
  if (of.from.simulated) {
    const std::string source = of.outcomes.empty() ? "" : of.outcomes.front().own_source;
    made +=
        wrapped(source.empty()
                    ? "Times are those of the driver's calls; the allocators' own host time has "
                      "not been "
                      "measured for this profile and is not in them."
                    : fmt::format(
                          "Times are the driver's calls from the profile, and the allocators' own "
                          "paths as measured in {}.",
                          source),
                columns, 0) +
        '\n';
  }
  return made;
}

}  // namespace

workload_facts facts_of(const replay::workload& work) {
  return {work.name,
          work.events,
          work.allocations,
          work.frees,
          work.never_freed,
          work.streams.size(),
          work.peak_live_bytes,
          work.largest_bytes,
          work.copied_bytes,
          work.duration_ns,
          work.inserted_synchronizes,
          work.inserted_synchronizes > 0 ? work.idle_gap_ns : 0,
          work.guessed_uses,
          work.notes};
}

std::string comparison_text(const comparison& of) {
  std::string made = head(of) + '\n' + time_table(of) + '\n' + memory_table(of);
  bool steps = false;
  for (const outcome& each : of.outcomes) steps = steps || each.step.count() > 0;
  if (steps) made += '\n' + step_table(of);
  if (of.rounds > 1) made += '\n' + round_table(of);
  const std::string said = remarks(of);
  if (!said.empty()) made += '\n' + said;
  if (!of.choice.strategy.empty() || !of.choice.why.empty()) {
    made +=
        '\n' +
        wrapped(fmt::format("Use {}: {}", of.choice.strategy.empty() ? "none" : of.choice.strategy,
                            of.choice.why),
                columns, 2) +
        '\n';
    for (const std::string& each : of.choice.against)
      made += wrapped("  not " + each, columns, 6) + '\n';
    if (of.from.simulated) made += "This is a prediction: on a card, `--gpu 0` measures it.\n";
  }
  return made;
}

}  // namespace millpond::report
