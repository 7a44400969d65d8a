// millpond plan TRACE: the repeating iteration of a trace, its plan, and what dynamic allocators
// need for the same blocks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/plan_command.hpp"
#include "millpond/base/units.hpp"
#include "plan/csv.hpp"
#include "plan/iteration.hpp"
#include "replay/run.hpp"
#include "report/table.hpp"
#include "trace/event_views.hpp"
#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

namespace millpond::cli {
namespace {

using nlohmann::ordered_json;

// The planned blocks, and nothing else, through allocators that do not know what comes.
struct dynamic_peers {
  std::vector<replay::outcome> outcomes;
  std::uint64_t planned_bytes = 0;  // of the same device's blocks
  std::string gpu_label;
  bool simulated = false;
};

// Only the allocator's calls are replayed, as recorded but for the blocks that are not planned.
// Nothing where the plan has no device memory.
result<dynamic_peers> replay_planned_part(const trace::trace_data& data,
                                          const trace::lifetimes& lives,
                                          const plan::iterations& found,
                                          const plan::iteration_plan& planned, session& here) {
  dynamic_peers out;
  const auto first =
      std::find_if(found.groups.begin(), found.groups.end(),
                   [](const plan::stream_group& g) { return trace::is_gpu_memory(g.kind); });
  if (first == found.groups.end()) return out;
  for (std::size_t g = 0; g < found.groups.size(); ++g)
    if (found.groups[g].device == first->device && trace::is_gpu_memory(found.groups[g].kind))
      out.planned_bytes += planned.arenas[g].planned_bytes;
  std::vector<bool> keep(data.events.size(), false);
  for (std::size_t b = 0; b < lives.blocks.size(); ++b) {
    if (found.fates[b] != plan::block_fate::planned) continue;
    keep[lives.blocks[b].allocate_event] = true;
    keep[lives.blocks[b].free_event] = true;  // a planned block is freed in its iteration
  }
  trace::trace_data part;
  part.info.name = data.info.name;
  for (std::size_t e = 0; e < data.events.size(); ++e) {
    const trace::action what = data.events[e].what;
    const bool orders = what == trace::action::stream_synchronize ||
                        what == trace::action::event_synchronize ||
                        what == trace::action::device_synchronize ||
                        what == trace::action::event_record || what == trace::action::event_wait;
    if (keep[e] || orders) part.events.push_back(data.events[e]);
  }
  const auto work = replay::lower(part, {.device = first->device});
  if (!work) return work.error();
  for (const char* name : {"millpond-pool", "driver-pool-kept"}) {
    here.progress(fmt::format("replaying the planned part through {}", name));
    auto gpu = here.open_gpu();
    if (!gpu) return gpu.error();
    out.gpu_label = here.gpu_label(**gpu);
    out.simulated = (*gpu)->simulated();
    replay::run_options options;
    options.contents = replay::contents_mode::no_touch;
    options.clock = session::now_ns;
    auto outcome = replay::run(*work, *replay::find_strategy(name), *gpu, options);
    if (!outcome) return outcome.error();
    out.outcomes.push_back(std::move(*outcome));
  }
  return out;
}

// 0.1: the plan takes a tenth less; negative where it takes more.
double below(std::uint64_t planned, std::uint64_t reserved) {
  return reserved == 0 ? 0 : 1 - static_cast<double>(planned) / static_cast<double>(reserved);
}

ordered_json peers_json(const dynamic_peers& of) {
  ordered_json all = ordered_json::array();
  for (const replay::outcome& each : of.outcomes)
    all.push_back({{"name", each.strategy},
                   {"peak_reserved_bytes", each.peak_reserved_bytes},
                   {"plan_below", below(of.planned_bytes, each.peak_reserved_bytes)},
                   {"failures", each.failures}});
  return {{"gpu", of.gpu_label},
          {"simulated", of.simulated},
          {"planned_bytes", of.planned_bytes},
          {"strategies", all}};
}

std::string peers_text(const dynamic_peers& of) {
  std::string out =
      report::paragraph("", fmt::format("the same blocks through dynamic allocators on {}{}",
                                        of.simulated ? "a SIMULATED GPU: " : "", of.gpu_label));
  for (const replay::outcome& each : of.outcomes) {
    const double part = below(of.planned_bytes, each.peak_reserved_bytes);
    out += fmt::format(
        "  {:<18} {:>12} reserved; the plan takes {:.1f}% {}{}\n", each.strategy,
        format_bytes(each.peak_reserved_bytes), 100 * std::abs(part), part < 0 ? "more" : "less",
        each.failures == 0
            ? ""
            : fmt::format(" ({} failed)", report::counted(each.failures, "request", "requests")));
  }
  return out;
}

// All shapes in one planning instance: each at times of its own, so that the file's plan has the
// arenas' peak.
std::string shapes_csv(const plan::iterations& of, const plan::iteration_plan& planned) {
  plan::problem all;
  plan::offsets at;
  std::int64_t time = 0;
  for (std::size_t s = 0; s < of.shapes.size(); ++s) {
    std::int64_t end = time;
    for (std::size_t k = 0; k < of.shapes[s].instance.buffers.size(); ++k) {
      plan::buffer b = of.shapes[s].instance.buffers[k];
      b.id = fmt::format("shape{}.{}", s, k);
      b.lower += time;
      b.upper += time;
      end = std::max(end, b.upper);
      all.buffers.push_back(std::move(b));
      at.push_back(planned.shapes[s].offsets[k]);
    }
    time = end;
  }
  return plan::format_csv(all, &at);
}

// What the allocator of the recording had reserved at most; 0 where the trace does not say.
class reserved_peak {
 public:
  void add(const trace::event& e) {
    if (e.what == trace::action::segment_allocate) now_ += e.bytes;
    if (e.what == trace::action::segment_free) now_ -= std::min(now_, e.bytes);
    peak_ = std::max(peak_, now_);
  }
  [[nodiscard]] std::uint64_t bytes() const { return peak_; }

 private:
  std::uint64_t now_ = 0;
  std::uint64_t peak_ = 0;
};

// The most bytes at one time: the blocks that are not planned, and from the first iteration on the
// arenas.
std::uint64_t whole_peak(const trace::lifetimes& lives, const plan::iterations& found,
                         std::uint64_t arenas) {
  struct change {
    std::uint64_t event;
    bool allocates;
    std::uint64_t bytes;
  };
  std::vector<change> changes;
  for (std::size_t b = 0; b < lives.blocks.size(); ++b) {
    if (found.fates[b] == plan::block_fate::planned) continue;
    const trace::block& block = lives.blocks[b];
    changes.push_back({block.allocate_event, true, block.bytes});
    if (block.free_event != trace::never) changes.push_back({block.free_event, false, block.bytes});
  }
  std::sort(changes.begin(), changes.end(),
            [](const change& a, const change& b) { return a.event < b.event; });
  const std::uint64_t start = found.found.empty() ? trace::never : found.found.front().first_event;
  std::uint64_t live = 0;
  std::uint64_t live_at_start = 0;
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  for (const change& c : changes) {
    live = c.allocates ? live + c.bytes : live - c.bytes;
    if (c.event < start) {
      before = std::max(before, live);
      live_at_start = live;
    } else {
      after = std::max(after, live);
    }
  }
  return start == trace::never ? before : std::max(before, arenas + std::max(live_at_start, after));
}

// What a plan of a trace's iterations came to, to be printed.
struct traced_plan {
  const std::string& input;
  const trace::lifetimes& lives;
  const plan::iterations& found;
  const plan::iteration_plan& planned;
  std::uint64_t reserved_bytes, whole_bytes;
  double seconds;
  std::uint64_t seed;
  dynamic_peers peers;

  [[nodiscard]] const plan::fate_totals& of(plan::block_fate fate) const {
    return found.totals[static_cast<std::size_t>(fate)];
  }
  [[nodiscard]] double over() const {
    return over_bound(planned.planned_bytes, planned.lower_bound);
  }
};

std::string json_of(const traced_plan& made) {
  const auto totals = [&](plan::block_fate fate) {
    const plan::fate_totals& t = made.of(fate);
    return ordered_json{
        {"blocks", t.blocks}, {"bytes", t.bytes}, {"peak_live_bytes", t.peak_live_bytes}};
  };
  ordered_json out{{"input", made.input},
                   {"events", made.lives.events},
                   {"iterations", made.found.found.size()},
                   {"shapes", made.found.shapes.size()},
                   {"streams", made.found.groups.size()},
                   {"planned_bytes", made.planned.planned_bytes},
                   {"lower_bound_bytes", made.planned.lower_bound},
                   {"over_bound", made.over()},
                   {"planned", totals(plan::block_fate::planned)},
                   {"persistent", totals(plan::block_fate::persistent)},
                   {"dynamic", totals(plan::block_fate::dynamic)},
                   {"whole_bytes", made.whole_bytes},
                   {"peak_requested_bytes", made.lives.peak_live_bytes},
                   {"recorded_reserved_bytes", made.reserved_bytes},
                   {"seed", made.seed},
                   {"seconds", made.seconds}};
  if (!made.peers.outcomes.empty()) out["dynamic_allocators"] = peers_json(made.peers);
  return document_of(out);
}

std::string text_of(const traced_plan& made) {
  if (made.found.found.empty()) {
    return fmt::format("{}, and no iteration repeats: nothing to plan\n",
                       report::counted(made.lives.events, "event", "events"));
  }
  const auto row = [](const char* name, std::uint64_t bytes, const std::string& text) {
    return report::paragraph(fmt::format("{:<10}{:>10}  ", name, format_bytes(bytes)), text);
  };
  const auto blocks = [&](plan::block_fate fate) {
    return report::counted(made.of(fate).blocks, "block", "blocks");
  };
  std::string together =
      fmt::format("requested at most {}", format_bytes(made.lives.peak_live_bytes));
  if (made.reserved_bytes > 0) {
    together += fmt::format(
        "; the recorded allocator reserved {} ({:.3f} times this)",
        format_bytes(made.reserved_bytes),
        static_cast<double>(made.reserved_bytes) / static_cast<double>(made.whole_bytes));
  }
  std::string out = fmt::format("{} of {} on {}\n",
                                report::counted(made.found.found.size(), "iteration", "iterations"),
                                report::counted(made.found.shapes.size(), "shape", "shapes"),
                                report::counted(made.found.groups.size(), "stream", "streams"));
  out += row("planned", made.planned.planned_bytes,
             fmt::format("{}; lower bound {}, {:.4f}% over it", blocks(plan::block_fate::planned),
                         format_bytes(made.planned.lower_bound), 100 * made.over()));
  out += row("persistent", made.of(plan::block_fate::persistent).peak_live_bytes,
             blocks(plan::block_fate::persistent) + " that outlive iterations");
  out +=
      row("dynamic", made.of(plan::block_fate::dynamic).peak_live_bytes,
          blocks(plan::block_fate::dynamic) + ": warm-up, and what crosses iterations or streams");
  out += row("together", made.whole_bytes, together);
  out += fmt::format("in {:.2f} s\n", made.seconds);
  if (!made.peers.outcomes.empty()) out += peers_text(made.peers);
  return out;
}

std::string over_capacity(const plan_settings& settings, const plan::iteration_plan& planned) {
  const bool proved = planned.lower_bound > *settings.capacity;
  return fmt::format(
      "{}: the iterations need {} bytes, {} more than the capacity of {}; their lower bound is {}, "
      "{}",
      settings.input, planned.planned_bytes, planned.planned_bytes - *settings.capacity,
      *settings.capacity, planned.lower_bound,
      proved ? "which proves that none fit" : "so it is not proved that none fit");
}

}  // namespace

exit_status plan_trace(const plan_settings& settings, session& here) {
  const auto data = trace::load_trace(settings.path, {.name = settings.input});
  if (!data) return here.fail(data.error());
  const auto lives = trace::find_lifetimes(*data, {.on_fault = trace::strictness::tolerant});
  if (!lives) return here.fail(lives.error());
  reserved_peak reserved;
  for (const trace::event& e : data->events) reserved.add(e);
  const std::uint64_t start = session::now_ns();
  const plan::iterations found = plan::find_iterations(*lives);
  const auto planned = plan::plan_iterations(found, solve_options_of(settings, here));
  if (!planned) return here.fail(planned.error());
  const double seconds = static_cast<double>(session::now_ns() - start) / 1e9;
  here.end_progress();
  if (settings.capacity && planned->planned_bytes > *settings.capacity)
    return here.fail(exit_status::bad_input, over_capacity(settings, *planned));
  std::ostream* said = &here.out();
  if (!settings.output.empty()) {
    if (const auto done = write_plan(settings.output, shapes_csv(found, *planned), here, said);
        !done)
      return here.fail(done.error());
  }
  traced_plan made{
      settings.input, *lives,           found,
      *planned,       reserved.bytes(), whole_peak(*lives, found, planned->planned_bytes),
      seconds,        settings.seed,    {}};
  if (!settings.no_compare && !found.found.empty()) {
    here.set_seed(settings.seed);
    auto replayed = replay_planned_part(*data, *lives, found, *planned, here);
    if (!replayed) return here.fail(replayed.error());
    made.peers = std::move(*replayed);
    here.end_progress();
  }
  if (here.json()) {
    here.out() << json_of(made);
  } else {
    *said << text_of(made);
  }
  return exit_status::done;
}

}  // namespace millpond::cli
