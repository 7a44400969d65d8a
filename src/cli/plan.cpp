// millpond plan: fixed offsets for known lifetimes, from a planning instance or from a trace's iteration.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/command.hpp"
#include "millpond/units.hpp"
#include "plan/bound.hpp"
#include "plan/csv.hpp"
#include "plan/iteration.hpp"
#include "plan/solve.hpp"
#include "plan/validate.hpp"
#include "trace/csv_importer.hpp"
#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

namespace millpond::cli {
namespace {

using nlohmann::ordered_json;

struct plan_settings {
  std::string input;
  std::string output;
  std::string capacity_text;
  std::optional<std::uint64_t> capacity;
  double time_limit_s = 60;
  std::uint64_t node_limit = UINT64_C(20'000'000'000);
  std::uint64_t seed = 1;
  bool check = false;
};

double over_bound(std::uint64_t peak, std::uint64_t bound) {
  return bound == 0 ? 0 : static_cast<double>(peak) / static_cast<double>(bound) - 1;
}

// A planning instance starts with a header of its columns; whatever else is known is a trace.
bool is_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::getline(file, line);
  if (line.find("size") != std::string::npos && line.find("lower") != std::string::npos) return false;
  const bool gzip = line.starts_with("\x1f\x8b");
  return gzip || trace::is_csv_header(line) || path.ends_with(".mpt") || path.ends_with(".pickle");
}

plan::solve_options options_of(const plan_settings& settings, session& here) {
  plan::solve_options options;
  options.seed = settings.seed;
  options.node_limit = settings.node_limit;
  const std::uint64_t start = session::now_ns();
  const auto limit = static_cast<std::uint64_t>(settings.time_limit_s * 1e9);
  options.stop = [start, limit] { return session::now_ns() - start > limit; };
  options.progress = [start, &here](std::uint64_t peak, std::uint64_t nodes) {
    here.progress(fmt::format("{:.1f} s: peak {} ({} nodes)", static_cast<double>(session::now_ns() - start) / 1e9,
                              format_bytes(peak), nodes));
  };
  return options;
}

exit_status check(const plan_settings& settings, session& here) {
  auto file = plan::read_csv(settings.input);
  if (!file) return here.fail(file.error());
  if (!file->plan && file->without_offset > 0)
    return here.fail(exit_status::bad_input, fmt::format("{}: {} of {} buffers have no offset, so there is no whole plan to check",
                                                         settings.input, file->without_offset, file->instance.buffers.size()));
  if (!file->plan) return here.fail(exit_status::bad_input, settings.input + ": no column offset, so no plan to check");
  file->instance.capacity = settings.capacity;
  const auto bound = plan::peak_load(file->instance);
  if (!bound) return here.fail(bound.error());
  const auto peak = plan::validate(file->instance, *file->plan);
  if (here.json()) {
    ordered_json out{{"input", settings.input}, {"buffers", file->plan->size()}, {"valid", peak.has_value()}};
    if (peak) out["peak_bytes"] = *peak;
    else out["violation"] = peak.error().message;
    out["lower_bound_bytes"] = bound->bytes;
    here.out() << out.dump(2) << '\n';
  } else if (peak) {
    here.out() << fmt::format("valid: {} buffers, peak {} bytes, {:.4f}% over the lower bound of {}\n", file->plan->size(),
                              *peak, 100 * over_bound(*peak, bound->bytes), bound->bytes);
  } else {
    here.out() << fmt::format("not a plan: {}\n", peak.error().message);
  }
  return peak ? exit_status::done : exit_status::findings;
}

exit_status plan_instance(const plan_settings& settings, session& here) {
  auto file = plan::read_csv(settings.input);
  if (!file) return here.fail(file.error());
  file->instance.capacity = settings.capacity;
  const std::uint64_t start = session::now_ns();
  auto solved = plan::solve(file->instance, options_of(settings, here));
  if (!solved) return here.fail(solved.error());
  const double seconds = static_cast<double>(session::now_ns() - start) / 1e9;
  here.end_progress();
  const bool found = solved->what == plan::outcome::found;
  if (found && !settings.output.empty()) {
    const auto written = plan::write_text(settings.output, plan::format_csv(file->instance, &solved->offsets));
    if (!written) return here.fail(written.error());
  }
  if (here.json()) {
    ordered_json out{{"input", settings.input},
                     {"buffers", file->instance.buffers.size()},
                     {"outcome", to_string(solved->what)},
                     {"peak_bytes", solved->peak},
                     {"lower_bound_bytes", solved->lower_bound},
                     {"over_bound", over_bound(solved->peak, solved->lower_bound)},
                     {"proved_optimal", solved->proved_optimal},
                     {"method", solved->stats.method},
                     {"seed", settings.seed},
                     {"nodes", solved->stats.nodes},
                     {"placements", solved->stats.placements},
                     {"seconds", seconds}};
    if (settings.capacity) out["capacity_bytes"] = *settings.capacity;
    if (!file->other_columns.empty()) out["columns_left_out"] = file->other_columns;
    if (!solved->reason.empty()) out["reason"] = solved->reason;
    here.out() << out.dump(2) << '\n';
  } else if (found) {
    here.out() << fmt::format("{} buffers, peak {} bytes ({}), lower bound {}, {:.4f}% over it{}; {} in {:.2f} s\n",
                              file->instance.buffers.size(), solved->peak, format_bytes(solved->peak), solved->lower_bound,
                              100 * over_bound(solved->peak, solved->lower_bound),
                              solved->proved_optimal ? ", optimal" : "", solved->stats.method, seconds);
    if (!file->other_columns.empty())
      here.out() << fmt::format("columns that were left out: {}\n", fmt::join(file->other_columns, ", "));
  }
  if (found) return exit_status::done;
  return here.fail(exit_status::bad_input, fmt::format("{}: {}", settings.input, solved->reason));
}

// All shapes in one planning instance: each at times of its own, so that the file's plan has the arenas' peak.
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

exit_status plan_trace(const plan_settings& settings, session& here) {
  auto source = trace::open_trace(settings.input);
  if (!source) return here.fail(source.error());
  trace::lifetime_builder builder(settings.input, {.on_fault = trace::strictness::tolerant});
  reserved_peak reserved;
  const auto read = source->for_each([&](const trace::event& e) {
    reserved.add(e);
    (void)builder.add(e);  // tolerant: faults are counted, never errors
  });
  if (!read) return here.fail(read.error());
  const trace::lifetimes lives = builder.finish();
  const std::uint64_t start = session::now_ns();
  const plan::iterations found = plan::find_iterations(lives);
  auto planned = plan::plan_iterations(found, options_of(settings, here));
  if (!planned) return here.fail(planned.error());
  const double seconds = static_cast<double>(session::now_ns() - start) / 1e9;
  here.end_progress();
  if (settings.capacity && planned->planned_bytes > *settings.capacity) {
    const bool proved = planned->lower_bound > *settings.capacity;
    return here.fail(exit_status::bad_input,
                     fmt::format("{}: the iterations need {} bytes, {} more than the capacity of {}; their lower bound is "
                                 "{}, {}", settings.input, planned->planned_bytes, planned->planned_bytes - *settings.capacity,
                                 *settings.capacity, planned->lower_bound,
                                 proved ? "which proves that none fit" : "so it is not proved that none fit"));
  }
  if (!settings.output.empty()) {
    const auto written = plan::write_text(settings.output, shapes_csv(found, *planned));
    if (!written) return here.fail(written.error());
  }
  const auto& of = [&](plan::block_fate fate) -> const plan::fate_totals& { return found.totals[static_cast<std::size_t>(fate)]; };
  const auto& persistent = of(plan::block_fate::persistent);
  const auto& dynamic = of(plan::block_fate::dynamic);
  const auto& repeating = of(plan::block_fate::planned);
  const std::uint64_t whole = planned->planned_bytes + persistent.peak_live_bytes + dynamic.peak_live_bytes;
  if (here.json()) {
    const auto totals = [](const plan::fate_totals& t) {
      return ordered_json{{"blocks", t.blocks}, {"bytes", t.bytes}, {"peak_live_bytes", t.peak_live_bytes}};
    };
    ordered_json out{{"input", settings.input},
                     {"events", lives.events},
                     {"iterations", found.found.size()},
                     {"shapes", found.shapes.size()},
                     {"lanes", found.lanes.size()},
                     {"planned_bytes", planned->planned_bytes},
                     {"lower_bound_bytes", planned->lower_bound},
                     {"over_bound", over_bound(planned->planned_bytes, planned->lower_bound)},
                     {"planned", totals(repeating)},
                     {"persistent", totals(persistent)},
                     {"dynamic", totals(dynamic)},
                     {"whole_bytes", whole},
                     {"peak_requested_bytes", lives.peak_live_bytes},
                     {"recorded_reserved_bytes", reserved.bytes()},
                     {"seed", settings.seed},
                     {"seconds", seconds}};
    here.out() << out.dump(2) << '\n';
    return exit_status::done;
  }
  if (found.found.empty()) {
    here.out() << fmt::format("{} events, and no iteration repeats: nothing to plan\n", lives.events);
    return exit_status::done;
  }
  here.out() << fmt::format("{} iterations of {} shapes on {} stream{}\n", found.found.size(), found.shapes.size(),
                            found.lanes.size(), found.lanes.size() == 1 ? "" : "s")
             << fmt::format("planned     {:>12}  {} blocks; lower bound {}, {:.4f}% over it\n", format_bytes(planned->planned_bytes),
                            repeating.blocks, format_bytes(planned->lower_bound),
                            100 * over_bound(planned->planned_bytes, planned->lower_bound))
             << fmt::format("persistent  {:>12}  {} blocks that outlive iterations\n", format_bytes(persistent.peak_live_bytes), persistent.blocks)
             << fmt::format("dynamic     {:>12}  {} blocks: warm-up, and what crosses iterations or streams\n",
                            format_bytes(dynamic.peak_live_bytes), dynamic.blocks)
             << fmt::format("together    {:>12}  requested at most {}", format_bytes(whole), format_bytes(lives.peak_live_bytes));
  if (reserved.bytes() > 0)
    here.out() << fmt::format("; the recorded allocator reserved {} ({:.3f} times this)", format_bytes(reserved.bytes()),
                              static_cast<double>(reserved.bytes()) / static_cast<double>(whole));
  here.out() << fmt::format("\nin {:.2f} s\n", seconds);
  return exit_status::done;
}

}  // namespace

command_body add_plan(CLI::App& app) {
  const auto settings = std::make_shared<plan_settings>();
  app.add_option("input", settings->input, "A planning instance (id,lower,upper,size) or a trace")->required()->type_name("FILE");
  app.add_option("-o,--output", settings->output, "Where to write the plan: the instance with a column offset")->type_name("FILE");
  app.add_option("--capacity", settings->capacity_text, "Fit into this; without it, use as little as possible")->type_name("BYTES");
  app.add_option("--time-limit", settings->time_limit_s, "Stop searching after this long")
      ->type_name("SECONDS")->check(CLI::Range(0.0, 1e7))->capture_default_str();
  app.add_option("--node-limit", settings->node_limit, "Stop after so many steps; unlike time, the same on every machine")->type_name("N");
  app.add_option("--seed", settings->seed, "Another seed searches in another order")->capture_default_str();
  app.add_flag("--check", settings->check, "Check the offsets in the input instead: status 1 where they are no plan");
  return [settings](session& here) {
    settings->capacity.reset();
    if (!settings->capacity_text.empty()) {
      std::uint64_t bytes = 0;
      if (!parse_bytes(settings->capacity_text, bytes))
        return here.fail(exit_status::usage, fmt::format("--capacity: expected bytes as 1048576 or 1MiB, found `{}`", settings->capacity_text));
      settings->capacity = bytes;
    }
    if (settings->check) return check(*settings, here);
    return is_trace(settings->input) ? plan_trace(*settings, here) : plan_instance(*settings, here);
  };
}

}  // namespace millpond::cli
