// millpond plan: fixed offsets for known lifetimes, from a planning instance; a trace is
// plan_trace.cpp's.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/option_values.hpp"
#include "cli/output.hpp"
#include "cli/plan_command.hpp"
#include "millpond/base/units.hpp"
#include "plan/bound.hpp"
#include "plan/csv.hpp"
#include "plan/streams_csv.hpp"
#include "plan/validate.hpp"
#include "report/table.hpp"
#include "trace/import/csv_importer.hpp"
#include "trace/kept_input.hpp"

namespace millpond::cli {
namespace {

using nlohmann::ordered_json;

// At most so much of it as a header has; a file without line ends is read no further.
std::string first_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line(4096, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<std::size_t>(file.gcount()));
  return line.substr(0, line.find('\n'));
}

// A planning instance starts with a header of its columns; whatever else is known is a trace.
bool is_trace(const plan_settings& settings) {
  const std::string line = first_line(settings.path);
  if (line.find("size") != std::string::npos && line.find("lower") != std::string::npos)
    return false;
  const bool gzip = line.starts_with("\x1f\x8b");
  return gzip || trace::is_csv_header(line) || settings.input.ends_with(".mpt") ||
         settings.input.ends_with(".pickle");
}

bool has_streams(const std::string& path) {
  return plan::is_stream_header(first_line(path));
}

exit_status check(const plan_settings& settings, session& here) {
  auto file = plan::read_csv(settings.path, settings.input);
  if (!file) return here.fail(file.error());
  if (!file->plan && file->without_offset > 0)
    return here.fail(
        exit_status::bad_input,
        fmt::format("{}: {} of {} buffers have no offset, so there is no whole plan to check",
                    settings.input, file->without_offset, file->instance.buffers.size()));
  if (!file->plan)
    return here.fail(exit_status::bad_input,
                     settings.input + ": no column offset, so no plan to check");
  file->instance.capacity = settings.capacity;
  const auto bound = plan::peak_load(file->instance);
  if (!bound) return here.fail(bound.error());
  const auto peak = plan::validate(file->instance, *file->plan);
  if (here.json()) {
    ordered_json out{
        {"input", settings.input}, {"buffers", file->plan->size()}, {"valid", peak.has_value()}};
    if (peak)
      out["peak_bytes"] = *peak;
    else
      out["violation"] = peak.error().message;
    out["lower_bound_bytes"] = bound->bytes;
    here.out() << document_of(out);
  } else if (peak) {
    here.out() << report::paragraph(
        "", fmt::format("valid: {}, peak {} bytes, {:.4f}% over the lower bound of {}",
                        report::counted(file->plan->size(), "buffer", "buffers"), *peak,
                        100 * over_bound(*peak, bound->bytes), bound->bytes));
  } else {
    here.out() << report::paragraph("", "not a plan: " + peak.error().message);
  }
  return peak ? exit_status::done : exit_status::findings;
}

exit_status plan_instance(const plan_settings& settings, session& here) {
  auto file = plan::read_csv(settings.path, settings.input);
  if (!file) return here.fail(file.error());
  if (file->instance.buffers.empty()) return here.fail(no_buffers(settings.input));
  file->instance.capacity = settings.capacity;
  const std::uint64_t start = session::now_ns();
  auto solved = plan::solve(file->instance, solve_options_of(settings, here));
  if (!solved) return here.fail(solved.error());
  const double seconds = static_cast<double>(session::now_ns() - start) / 1e9;
  here.end_progress();
  const bool found = solved->what == plan::outcome::found;
  std::ostream* said = &here.out();
  if (found && !settings.output.empty()) {
    if (const auto done = write_plan(
            settings.output, plan::format_csv(file->instance, &solved->offsets), here, said);
        !done)
      return here.fail(done.error());
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
    here.out() << document_of(out);
  } else if (found) {
    *said << report::paragraph(
        "", fmt::format("{}, peak {} bytes ({}), lower bound {}, {:.4f}% over it{}; {} in {:.2f} s",
                        report::counted(file->instance.buffers.size(), "buffer", "buffers"),
                        solved->peak, format_bytes(solved->peak), solved->lower_bound,
                        100 * over_bound(solved->peak, solved->lower_bound),
                        solved->proved_optimal ? ", optimal" : "", solved->stats.method, seconds));
    if (!file->other_columns.empty())
      *said << report::paragraph(
          "", fmt::format("columns that were left out: {}", fmt::join(file->other_columns, ", ")));
  }
  if (found) return exit_status::done;
  return here.fail(exit_status::bad_input, fmt::format("{}: {}", settings.input, solved->reason));
}

}  // namespace

error no_buffers(const std::string& input) {
  return {error_code::bad_input, input + ": expected buffers below the header, found none"};
}

result<void> write_plan(const std::string& path, const std::string& text, session& here,
                        std::ostream*& said) {
  auto file = output::open(here, path);
  if (!file) return file.error();
  said = &file->beside();
  if (auto done = file->write(text); !done) return done;
  return file->finish();
}

double over_bound(std::uint64_t peak, std::uint64_t bound) {
  return bound == 0 ? 0 : static_cast<double>(peak) / static_cast<double>(bound) - 1;
}

plan::solve_options solve_options_of(const plan_settings& settings, session& here) {
  plan::solve_options options;
  options.seed = settings.seed;
  options.node_limit = settings.node_limit;
  const std::uint64_t start = session::now_ns();
  const auto limit = static_cast<std::uint64_t>(settings.time_limit_s * 1e9);
  options.stop = [start, limit] { return session::now_ns() - start > limit; };
  options.progress = [start, &here](std::uint64_t peak, std::uint64_t nodes) {
    here.progress(fmt::format("{:.1f} s: peak {} ({} nodes)",
                              static_cast<double>(session::now_ns() - start) / 1e9,
                              format_bytes(peak), nodes));
  };
  return options;
}

command_body add_plan(CLI::App& app) {
  const auto settings = std::make_shared<plan_settings>();
  app.add_option("input", settings->input, "A planning instance (id,lower,upper,size) or a trace")
      ->required()
      ->type_name("FILE");
  app.add_option(
         "-o,--output", settings->output,
         "Where to write the plan, the instance with a column offset; - for standard output")
      ->type_name("FILE");
  app.add_option("--waits", settings->waits,
                 "For an instance with a column stream: which steps wait for which "
                 "(stream,step,for_stream,for_step)")
      ->type_name("FILE");
  app.add_option("--capacity", settings->capacity_text,
                 "Fit into this; without it, use as little as possible")
      ->type_name("BYTES");
  app.add_option("--time-limit", settings->time_limit_s, "Stop searching after this long")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e7))
      ->check(finite_number())
      ->capture_default_str();
  app.add_option("--node-limit", settings->node_limit,
                 "Stop after so many steps; unlike time, the same on every machine")
      ->check(whole_number())
      ->type_name("N");
  app.add_option("--seed", settings->seed, "Another seed searches in another order")
      ->capture_default_str();
  app.add_flag("--no-compare", settings->no_compare,
               "Of a trace: do not replay its planned part through the dynamic allocators");
  app.add_flag("--check", settings->check,
               "Check the offsets in the input instead: status 1 where they are no plan");
  return [settings](session& here) {
    settings->capacity.reset();
    if (!settings->capacity_text.empty()) {
      std::uint64_t bytes = 0;
      if (!parse_bytes(settings->capacity_text, bytes))
        return here.fail(exit_status::usage,
                         fmt::format("--capacity: expected bytes as 1048576 or 1MiB, found `{}`",
                                     settings->capacity_text));
      settings->capacity = bytes;
    }
    const auto kept = trace::kept_input::take(settings->input);
    if (!kept) return here.fail(kept.error());
    settings->path = kept->path();
    if (has_streams(settings->path)) return plan_streams(*settings, here);
    if (!settings->waits.empty())
      return here.fail(
          exit_status::usage,
          fmt::format("--waits: {} has no column stream, so nothing there waits", settings->input));
    if (settings->check) return check(*settings, here);
    return is_trace(*settings) ? plan_trace(*settings, here) : plan_instance(*settings, here);
  };
}

}  // namespace millpond::cli
