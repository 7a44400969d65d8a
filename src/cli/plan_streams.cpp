// millpond plan of a file with a column `stream`: buffers of several streams, which share bytes
// only where waits order them.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/plan_command.hpp"
#include "millpond/base/units.hpp"
#include "plan/csv.hpp"
#include "plan/streams_csv.hpp"
#include "report/table.hpp"

namespace millpond::cli {
namespace {

using nlohmann::ordered_json;

exit_status check_plan(const plan_settings& settings, const plan::stream_file& file,
                       session& here) {
  if (!file.plan)
    return here.fail(
        exit_status::bad_input,
        settings.input + ": not every line has an offset, so there is no whole plan to check");
  if (const auto good = plan::find_conflicts(file.instance); !good) return here.fail(good.error());
  const auto peak = plan::validate_streams(file.instance, *file.plan);
  if (here.json()) {
    ordered_json out{
        {"input", settings.input}, {"buffers", file.plan->size()}, {"valid", peak.has_value()}};
    if (peak)
      out["peak_bytes"] = *peak;
    else
      out["violation"] = peak.error().message;
    here.out() << document_of(out);
  } else if (peak) {
    here.out() << fmt::format("valid: {}, peak {} bytes\n",
                              report::counted(file.plan->size(), "buffer", "buffers"), *peak);
  } else {
    here.out() << report::paragraph("", "not a plan: " + peak.error().message);
  }
  return peak ? exit_status::done : exit_status::findings;
}

}  // namespace

exit_status plan_streams(const plan_settings& settings, session& here) {
  const auto text = plan::read_text(settings.path, settings.input);
  if (!text) return here.fail(text.error());
  auto file = plan::parse_streams_csv(*text, settings.input);
  if (!file) return here.fail(file.error());
  if (!settings.waits.empty()) {
    const auto waits_text = plan::read_text(settings.waits);
    if (!waits_text) return here.fail(waits_text.error());
    auto waits = plan::parse_waits_csv(*waits_text, settings.waits);
    if (!waits) return here.fail(waits.error());
    file->instance.waits = std::move(*waits);
  }
  if (file->instance.buffers.empty()) return here.fail(no_buffers(settings.input));
  file->instance.capacity = settings.capacity;
  if (settings.check) return check_plan(settings, *file, here);
  const std::uint64_t start = session::now_ns();
  const auto solved = plan::solve_streams(file->instance, solve_options_of(settings, here));
  if (!solved) return here.fail(solved.error());
  const double seconds = static_cast<double>(session::now_ns() - start) / 1e9;
  here.end_progress();
  const bool found = solved->what == plan::outcome::found;
  std::ostream* said = &here.out();
  if (found && !settings.output.empty()) {
    if (const auto done =
            write_plan(settings.output, plan::format_streams_csv(file->instance, &solved->offsets),
                       here, said);
        !done)
      return here.fail(done.error());
  }
  if (here.json()) {
    ordered_json out{{"input", settings.input},
                     {"buffers", file->instance.buffers.size()},
                     {"waits", file->instance.waits.size()},
                     {"outcome", to_string(solved->what)},
                     {"peak_bytes", solved->peak},
                     {"lower_bound_bytes", solved->lower_bound},
                     {"proved_optimal", solved->proved_optimal},
                     {"method", solved->stats.method},
                     {"seed", settings.seed},
                     {"seconds", seconds}};
    if (!solved->reason.empty()) out["reason"] = solved->reason;
    here.out() << document_of(out);
  } else if (found) {
    *said << report::paragraph(
        "", fmt::format("{} on several streams, {}: peak {} bytes ({}), lower bound {}, {:.4f}% "
                        "over it{}; {} in {:.2f} s",
                        report::counted(file->instance.buffers.size(), "buffer", "buffers"),
                        report::counted(file->instance.waits.size(), "wait", "waits"), solved->peak,
                        format_bytes(solved->peak), solved->lower_bound,
                        100 * over_bound(solved->peak, solved->lower_bound),
                        solved->proved_optimal ? ", optimal" : "", solved->stats.method, seconds));
  }
  return found ? exit_status::done
               : here.fail(exit_status::bad_input,
                           fmt::format("{}: {}", settings.input, solved->reason));
}

}  // namespace millpond::cli
