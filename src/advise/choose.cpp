#include "advise/choose.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "millpond/base/units.hpp"

namespace millpond::advise {
namespace {

using replay::outcome;

// The time that decides: whole requests where the workload has them (staging counts there too),
// else the allocator's calls.
double time_of(const outcome& each) {
  return each.step.count() > 0 ? each.step.sum_ns() : each.allocator_ns;
}

std::string time_text(const outcome& each) {
  if (each.step.count() > 0) {
    return fmt::format("{} a step (p99 {})", format_duration(each.step.mean_ns()),
                       format_duration(each.step.percentile_ns(0.99)));
  }
  return fmt::format("{} in the allocator (allocate p50 {}, p99 {})",
                     format_duration(each.allocator_ns),
                     format_duration(each.allocate.percentile_ns(0.5)),
                     format_duration(each.allocate.percentile_ns(0.99)));
}

std::string memory_text(const outcome& each) {
  return fmt::format("{} reserved, {:.3f} of the peak of live bytes",
                     format_bytes(each.peak_reserved_bytes), each.reserved_ratio());
}

std::string times_text(double factor) {
  return factor >= 10 ? fmt::format("{:.0f} times", factor) : fmt::format("{:.1f} times", factor);
}

// Why an outcome is not even a candidate; empty for a candidate.
std::string disqualified(const outcome& each, bool calm_exists) {
  if (each.violation_count > 0) {
    return fmt::format("its memory was wrong ({} violation{})", each.violation_count,
                       each.violation_count == 1 ? "" : "s");
  }
  if (each.failures > 0) {
    return fmt::format("{} request{} failed: {}", each.failures, each.failures == 1 ? "" : "s",
                       each.first_failure);
  }
  if (each.needs == replay::strategy_facts::knowledge::whole_workload) {
    return "it was sized from this very workload, and has no answer to a larger one";
  }
  if (calm_exists && each.device_waits > 0) {
    return fmt::format(
        "{} of its calls waited for the whole device, {} in all, and every stream waited with them",
        each.device_waits, format_duration(each.device_wait_ns));
  }
  return {};
}

// One sentence: what the one not taken costs more, or less.
std::string compared(const outcome& other, const outcome& taken, const std::string& barred) {
  if (!barred.empty()) return fmt::format("{}: {}", other.label(), barred);
  std::string text;
  const double time = time_of(other) / std::max(1.0, time_of(taken));
  text = time >= 1 ? fmt::format("{} the time", times_text(time))
                   : fmt::format("{:.0f}% of the time", 100 * time);
  const double memory = static_cast<double>(other.peak_reserved_bytes) /
                        static_cast<double>(std::max<std::uint64_t>(1, taken.peak_reserved_bytes));
  text += fmt::format(", {:+.1f}% of memory ({})", 100 * (memory - 1),
                      format_bytes(other.peak_reserved_bytes));
  return fmt::format("{}: {}", other.label(), text);
}

recommendation least_bad(std::span<const outcome> outcomes) {
  recommendation made;
  const outcome* best = nullptr;
  for (const outcome& each : outcomes) {
    if (each.violation_count > 0 || each.allocate.count() == 0) continue;
    if (best == nullptr || each.failures < best->failures ||
        (each.failures == best->failures && time_of(each) < time_of(*best))) {
      best = &each;
    }
  }
  if (best == nullptr) {
    made.why = "no strategy served this workload with right contents";
    return made;
  }
  made.strategy = best->label();
  made.why =
      best->failures > 0
          ? fmt::format("no strategy served every request; this one failed the fewest ({}): {}",
                        best->failures, best->first_failure)
          : fmt::format("nothing else was compared or right; {}, {}", time_text(*best),
                        memory_text(*best));
  return made;
}

}  // namespace

recommendation choose(std::span<const outcome> outcomes, const choose_options& options) {
  const auto usable = [](const outcome& each) { return disqualified(each, false).empty(); };
  const bool calm_exists = std::ranges::any_of(
      outcomes, [&](const outcome& each) { return usable(each) && each.device_waits == 0; });
  std::vector<const outcome*> left;
  for (const outcome& each : outcomes) {
    if (disqualified(each, calm_exists).empty()) left.push_back(&each);
  }
  if (left.empty()) return least_bad(outcomes);

  const auto narrow = [&left](auto keep) {
    std::erase_if(left, [&](const outcome* each) { return !keep(*each); });
  };
  const auto by_time = [](const outcome* a, const outcome* b) { return time_of(*a) < time_of(*b); };
  const auto by_memory = [](const outcome* a, const outcome* b) {
    return a->peak_reserved_bytes < b->peak_reserved_bytes;
  };
  const outcome& fastest = **std::ranges::min_element(left, by_time);
  const double program = options.program_ns > 0 ? options.program_ns : fastest.run_ns;
  narrow([&](const outcome& each) {
    return time_of(each) - time_of(fastest) <= options.negligible_time_share * program;
  });
  const std::uint64_t least = (*std::ranges::min_element(left, by_memory))->peak_reserved_bytes;
  narrow([&](const outcome& each) {
    return static_cast<double>(each.peak_reserved_bytes) <=
           static_cast<double>(least) * (1 + options.same_memory_share);
  });
  const outcome& taken = **std::ranges::min_element(left, by_time);

  recommendation made;
  made.strategy = taken.label();
  made.why = fmt::format("{}, {}", time_text(taken), memory_text(taken));
  made.why += taken.device_waits == 0
                  ? ", and no call waits for the whole device."
                  : fmt::format(", with {} waits for the whole device, as all the others have.",
                                taken.device_waits);
  if (&taken != &fastest) {
    made.why += fmt::format(
        " {} is faster by {}, which is {:.2g}% of the program's {}; it takes {:.0f}% more memory.",
        fastest.label(), format_duration(time_of(taken) - time_of(fastest)),
        100 * (time_of(taken) - time_of(fastest)) / program, format_duration(program),
        100 * (static_cast<double>(fastest.peak_reserved_bytes) /
                   static_cast<double>(std::max<std::uint64_t>(1, taken.peak_reserved_bytes)) -
               1));
  }
  for (const outcome& each : outcomes) {
    if (&each == &taken) continue;
    made.against.push_back(compared(each, taken, disqualified(each, calm_exists)));
  }
  return made;
}

}  // namespace millpond::advise
