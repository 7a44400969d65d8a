#include "cli/workload_input.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "millpond/sim/simulated_gpu.hpp"
#include "trace/source.hpp"
#include "trace/synthetic/workload.hpp"

namespace millpond::cli {

void workload_input::add_to(CLI::App& app) {
  app.add_option("TRACE", trace,
                 "A recording: .mpt, PyTorch CSV or snapshot, RMM log; plain or .gz")
      ->type_name("FILE");
  app.add_option("--workload", name,
                 "Instead of a recording: inference, churn, training, or a shape: llm, recompute, "
                 "detection, diffusion, experts, streams")
      ->type_name("NAME");
  app.add_option("--seed", seed, "Of the workload and of the simulated GPU")->capture_default_str();
  app.add_option("--length", length,
                 "Requests, operations or steps of --workload; 0: its own default")
      ->capture_default_str();
  app.add_option("--streams", streams, "Streams of --workload")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--device", device, "Which device's events of a recording")
      ->check(CLI::Range(0, 65535));
  app.add_option("--rounds", rounds,
                 "The workload again and again through one allocator; the first is cold")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--no-touch", no_touch,
               "Time the allocator alone: no kernel writes or checks the blocks");
  auto* const keep = app.add_flag(
      "--recorded-pace", recorded_pace,
      "Keep the recorded pauses between operations (a recording's default on the simulated GPU)");
  app.add_flag("--flat-out", flat_out, "One operation after another (the default elsewhere)")
      ->excludes(keep);
}

result<replay::workload> workload_input::load() const {
  if (trace.empty() == name.empty()) {
    return error{error_code::invalid_argument, trace.empty()
                                                   ? "a TRACE or --workload NAME is needed"
                                                   : "TRACE and --workload exclude each other"};
  }
  auto loaded = name.empty()
                    ? trace::load_trace(trace)
                    : trace::make_workload(name, {seed, length, streams, trace::staging::pinned});
  if (!loaded) return loaded.error();
  replay::lower_options options;
  options.device = static_cast<std::uint16_t>(device);
  auto work = replay::lower(*loaded, options);
  if (work && !name.empty()) work->name = fmt::format("{} (seed {})", name, seed);
  return work;
}

replay::run_options workload_input::run_options(const driver& gpu) const {
  replay::run_options made;
  made.contents = no_touch ? replay::contents_mode::no_touch : replay::contents_mode::touch;
  const bool keeps = recorded_pace || (!flat_out && !trace.empty() && gpu.simulated());
  made.pace = keeps ? replay::pacing::recorded : replay::pacing::flat_out;
  made.rounds = rounds;
  made.clock = session::now_ns;
  return made;
}

report::comparison workload_input::describe(const session& here, const driver& gpu,
                                            const replay::workload& work) const {
  const build_facts& build = build_info();
  report::comparison made;
  made.from = {build.version,
               build.commit,
               build.compiler,
               build.flavour,
               gpu.info().name,
               here.why_simulated(),
               gpu.simulated(),
               gpu.info().driver_version,
               {},
               {}};
  if (const auto* simulated = dynamic_cast<const simulated_gpu*>(&gpu)) {
    made.from.profile = simulated->profile().name;
    made.from.profile_source = simulated->profile().source;
  }
  made.trace = report::facts_of(work);
  made.seed = seed;
  made.rounds = rounds;
  const replay::run_options options = run_options(gpu);
  made.contents = options.contents;
  made.pace = options.pace;
  return made;
}

}  // namespace millpond::cli
