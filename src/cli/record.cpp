// millpond record: runs a program and writes down what it does with GPU memory.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/command.hpp"
#include "cli/output.hpp"
#include "millpond/base/units.hpp"
#include "record/launcher.hpp"
#include "record/lines.hpp"
#include "report/table.hpp"
#include "trace/source.hpp"

namespace millpond::cli {
namespace {

using nlohmann::ordered_json;

struct record_settings {
  record::launch_request request;
  std::string stacks = "memory";
  std::string size_limit;
  double time_limit_s = 0;
  bool no_lines = false;
};

struct recorded {
  std::string path;
  std::uint64_t events = 0, dropped = 0, lines = 0, frames = 0;
  std::string status, failure;
};

recorded look_at(const record_settings& settings, const std::string& path, session& here) {
  recorded made;
  made.path = path;
  if (!settings.no_lines) {
    here.progress("naming the lines of " + path);
    if (auto report = record::add_lines(path)) {
      made.lines = report->resolved;
      made.frames = report->frames;
    } else {
      made.failure = report.error().message;
    }
  }
  auto source = trace::open_trace(path);
  if (!source) {
    made.failure = source.error().message;
    return made;
  }
  if (auto read = source->for_each([&](const trace::event&) { ++made.events; }); !read)
    made.failure = read.error().message;
  made.dropped = source->info().meta.dropped_events;
  made.status = to_string(source->info().status);
  for (const auto& [name, value] : source->info().meta.notes) {
    if (name == "failure") made.failure = value;
    if (name == "limit") made.status += ", " + value;
  }
  return made;
}

exit_status answer(const record::launch_outcome& outcome, const std::vector<recorded>& traces,
                   session& here) {
  const std::string ended =
      outcome.signal != 0
          ? fmt::format("was ended by signal {} ({})", outcome.signal, strsignal(outcome.signal))
          : fmt::format("ended with status {}", outcome.exit_status);
  const int status = outcome.signal != 0 ? 128 + outcome.signal : outcome.exit_status;
  if (here.json()) {
    ordered_json made{{"exit_status", outcome.exit_status}, {"signal", outcome.signal}};
    ordered_json list = ordered_json::array();
    for (const recorded& each : traces) {
      list.push_back({{"path", each.path},
                      {"events", each.events},
                      {"dropped", each.dropped},
                      {"status", each.status},
                      {"frames", each.frames},
                      {"lines", each.lines},
                      {"failure", each.failure}});
    }
    made["traces"] = list;
    here.out() << document_of(made);
  } else {
    for (const recorded& each : traces) {
      here.out() << fmt::format("millpond: {}: {} ({})", each.path,
                                report::counted(each.events, "event", "events"), each.status);
      if (each.dropped > 0)
        here.out() << fmt::format(", {} DROPPED because the ring was full (--ring makes it larger)",
                                  each.dropped);
      if (each.frames > 0 && each.lines == 0)
        here.out() << "; no lines: the program has no line tables (-g), or addr2line is missing";
      if (!each.failure.empty()) here.out() << "; " << each.failure;
      here.out() << '\n';
    }
    if (status != 0) here.out() << fmt::format("millpond: the program {}\n", ended);
  }
  if (traces.empty()) {
    return here.fail(
        exit_status::bad_input,
        fmt::format("nothing was recorded: the program {}. Where the recorder said nothing, "
                    "the CUDA driver was never initialised in it, or never loaded the recorder. "
                    "A program on millpond's simulated GPU makes no CUDA calls: its trace is "
                    "written by millpond::trace_file",
                    ended));
  }
  // As `time` and `env` do: the program's own status is the command's.
  return static_cast<exit_status>(status);
}

exit_status record_program(record_settings settings, session& here) {
  auto& how = settings.request.how;
  if (const auto file = needs_a_file(how.path); !file) return here.fail(file.error());
  if (settings.stacks == "none") how.stacks = record::stack_choice::none;
  if (settings.stacks == "all") how.stacks = record::stack_choice::all;
  if (!settings.size_limit.empty() && !parse_bytes(settings.size_limit, how.most_bytes)) {
    return here.fail(exit_status::usage,
                     fmt::format("--size-limit: expected a size such as 512MiB, found `{}`",
                                 settings.size_limit));
  }
  how.most_ns = static_cast<std::uint64_t>(settings.time_limit_s * 1e9);
  if (how.path.empty()) {
    const std::string& program = settings.request.command.front();
    how.path = program.substr(program.rfind('/') + 1) + ".mpt";
  }
  how.recorded_by =
      fmt::format("millpond record {} ({})", build_info().version, build_info().commit);
  if (how.cupti.empty()) how.cupti = record::find_cupti();
  if (settings.request.library.empty()) settings.request.library = record::find_recorder_library();
  auto outcome = record::launch(settings.request);
  if (!outcome) return here.fail(outcome.error());
  std::vector<recorded> traces;
  for (const std::string& each : outcome->traces) traces.push_back(look_at(settings, each, here));
  here.end_progress();
  return answer(*outcome, traces, here);
}

}  // namespace

command_body add_record(CLI::App& app) {
  auto settings = std::make_shared<record_settings>();
  auto& how = settings->request.how;
  app.add_option("PROGRAM", settings->request.command,
                 "What to run, with its arguments, behind `--`")
      ->required();
  app.add_option("-o,--output", how.path,
                 "The trace; children write beside it (default: PROGRAM.mpt)")
      ->type_name("FILE");
  app.add_option("--stacks", settings->stacks,
                 "Call stacks of: none, memory (all calls but launches), all")
      ->check(CLI::IsMember({"none", "memory", "all"}))
      ->capture_default_str();
  app.add_option("--frames", how.frames, "Frames of a call stack")
      ->check(CLI::Range(1, 24))
      ->capture_default_str();
  app.add_flag_callback(
      "--no-kernels", [settings] { settings->request.how.kernels = false; },
      "Leave launches out: they cost most, and findings that rest on them are left out too");
  app.add_flag("--python", how.python,
               "Also frames of Python (CPython 3.11 to 3.13) in call stacks");
  app.add_option("--size-limit", settings->size_limit,
                 "Stop recording when the trace has so many bytes")
      ->type_name("SIZE");
  app.add_option("--time-limit", settings->time_limit_s, "Stop recording after so many seconds")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--last", how.last_events, "Keep only the last so many events")
      ->check(CLI::Range(1, 50'000'000));
  app.add_option_function<unsigned>(
         "--ring",
         [settings](const unsigned& bits) {
           settings->request.how.ring_cells = std::uint64_t{1} << bits;
         },
         "Cells between the program and the file, as a power of two (default: 17, 16 MiB)")
      ->check(CLI::Range(8, 22));
  app.add_option("--library", settings->request.library,
                 "libmillpond_record.so, where it is not beside the command")
      ->type_name("FILE");
  app.add_option("--cupti", how.cupti, "The libcupti to use")->type_name("FILE");
  app.add_flag("--no-lines", settings->no_lines,
               "Leave addresses as they are, without asking addr2line for lines");
  app.add_flag("--count-calls", how.count_calls,
               "Note how often each CUDA function was called (slower)");
  return [settings](session& here) { return record_program(*settings, here); };
}

}  // namespace millpond::cli
