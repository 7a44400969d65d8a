#include <cmath>
#include <nlohmann/json.hpp>

#include "report/comparison.hpp"

namespace millpond::report {
namespace {

using nlohmann::ordered_json;
using replay::outcome;

// Nanoseconds to microseconds with a nanosecond's tenth kept.
double us(double nanoseconds) {
  return std::round(nanoseconds * 10) / 10'000;
}

ordered_json latency(const replay::latency_histogram& of) {
  return {{"p50", us(of.percentile_ns(0.5))},
          {"p99", us(of.percentile_ns(0.99))},
          {"max", us(of.max_ns())},
          {"mean", us(of.mean_ns())},
          {"count", of.count()}};
}

const char* staging_name(replay::staging of) {
  switch (of) {
    case replay::staging::none: return "none";
    case replay::staging::pageable: return "pageable";
    case replay::staging::pinned: return "pinned";
  }
  return "none";
}

ordered_json strategy(const outcome& of) {
  ordered_json made{{"name", of.label()},
                    {"strategy", of.strategy},
                    {"meaning", of.meaning},
                    {"staging", staging_name(of.copies)},
                    {"allocate_us", latency(of.allocate)},
                    {"free_us", latency(of.free)},
                    {"allocator_total_us", us(of.allocator_ns)},
                    {"sharing_us", us(of.sharing_ns)},
                    {"own_us", us(of.own_ns)},
                    {"own_cost_source", of.own_source},
                    {"device_waits", of.device_waits},
                    {"device_wait_us", us(of.device_wait_ns)},
                    {"peak_live_bytes", of.peak_live_bytes},
                    {"peak_reserved_bytes", of.peak_reserved_bytes},
                    {"reserved_ratio", of.reserved_ratio()},
                    {"peak_host_bytes", of.peak_host_bytes},
                    {"failures", of.failures},
                    {"first_failure", of.first_failure},
                    {"checked_blocks", of.checked_blocks},
                    {"wrong_words", of.wrong_words},
                    {"violation_count", of.violation_count},
                    {"run_us", us(of.run_ns)}};
  ordered_json rounds = ordered_json::array();
  for (const double each : of.round_allocator_ns) rounds.push_back(us(each));
  made["round_allocator_us"] = rounds;
  ordered_json violations = ordered_json::array();
  for (const replay::violation& each : of.violations)
    violations.push_back({{"rule", each.rule}, {"text", each.text}});
  made["violations"] = violations;
  made["remarks"] = of.remarks;
  if (of.step.count() > 0) made["step_us"] = latency(of.step);
  return made;
}

}  // namespace

std::string comparison_json(const comparison& of) {
  const workload_facts& trace = of.trace;
  ordered_json made;
  made["millpond"] = {{"version", of.from.version},
                      {"commit", of.from.commit},
                      {"compiler", of.from.compiler},
                      {"build", of.from.flavour}};
  made["gpu"] = {{"name", of.from.gpu_name},
                 {"simulated", of.from.simulated},
                 {"why_simulated", of.from.why_simulated},
                 {"driver_version", of.from.driver_version},
                 {"profile", of.from.profile},
                 {"profile_source", of.from.profile_source}};
  made["trace"] = {{"name", trace.name},
                   {"events", trace.events},
                   {"allocations", trace.allocations},
                   {"frees", trace.frees},
                   {"never_freed", trace.never_freed},
                   {"streams", trace.streams},
                   {"peak_live_bytes", trace.peak_live_bytes},
                   {"largest_bytes", trace.largest_bytes},
                   {"copied_bytes", trace.copied_bytes},
                   {"duration_us", us(static_cast<double>(trace.duration_ns))},
                   {"inserted_synchronizes", trace.inserted_synchronizes},
                   {"idle_gap_us", us(static_cast<double>(trace.idle_gap_ns))},
                   {"guessed_uses", trace.guessed_uses},
                   {"notes", trace.notes}};
  made["replay"] = {
      {"seed", of.seed},
      {"rounds", of.rounds},
      {"contents", of.contents == replay::contents_mode::touch ? "touch" : "no_touch"},
      {"pacing", of.pace == replay::pacing::flat_out ? "flat_out" : "recorded"}};
  ordered_json strategies = ordered_json::array();
  for (const outcome& each : of.outcomes) strategies.push_back(strategy(each));
  made["strategies"] = strategies;
  made["recommendation"] = {
      {"strategy", of.choice.strategy}, {"why", of.choice.why}, {"against", of.choice.against}};
  // File names may hold any bytes: what is not UTF-8 is replaced.
  return made.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace millpond::report
