// millpond calibrate: what this card costs, as a profile for the simulated GPU.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cctype>
#include <ctime>
#include <nlohmann/json.hpp>
#include <ostream>

#include "calibrate/calibrate.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "machine/machine_facts.hpp"
#include "millpond/base/units.hpp"

namespace millpond::cli {
namespace {

using nlohmann::ordered_json;

struct calibrate_arguments {
  std::string output;
  std::string name;
};

// "NVIDIA H200" gives "h200": what a profile is called when nobody says.
std::string short_name(const std::string& device) {
  std::string made;
  for (const char c : device) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      made += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!made.empty() && made.back() != '_') {
      made += '_';
    }
  }
  constexpr std::string_view vendor = "nvidia_";
  if (made.starts_with(vendor)) made.erase(0, vendor.size());
  while (made.ends_with('_')) made.pop_back();
  return made.empty() ? "card" : made;
}

std::string source_of(const device_info& info, const host_facts& host) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format(
      "one {}, CUDA {}.{}, {} host cores, kernel {}, measured {:%Y-%m-%d} by millpond {}",
      info.name, info.driver_version / 1000, info.driver_version % 1000 / 10, host.cpus,
      host.kernel, utc, build_info().version);
}

std::string rate_text(double bytes_per_s) {
  return bytes_per_s > 0 ? fmt::format("{:.1f} GB/s", bytes_per_s / 1e9) : "not measured";
}

// The largest table first would drown the rest: one line a call, its ends where it goes by size.
std::string text_of(const gpu_profile& made, const std::string& path) {
  std::string text = fmt::format("{}\n{}\n\n{:<34}{:>12}{:>12}{:>14}\n", made.device.name,
                                 made.source, "call", "p50", "p99", "at");
  for (const auto& [call, table] : made.calls) {
    std::vector<cost_point> ends{table.points.front()};
    if (table.points.size() > 1) ends.push_back(table.points.back());
    for (const cost_point& point : ends) {
      text += fmt::format("{:<34}{:>12}{:>12}{:>14}\n", call, format_duration(point.p50_ns),
                          format_duration(point.p99_ns),
                          point.bytes == 0 ? "" : format_bytes(point.bytes));
    }
  }
  const std::pair<const char*, double> rates[] = {
      {"device memory", made.memory_bytes_per_s},
      {"pinned to device", made.host_to_device_bytes_per_s},
      {"device to pinned", made.device_to_host_bytes_per_s},
      {"pageable to device", made.pageable_to_device_bytes_per_s},
      {"device to pageable", made.device_to_pageable_bytes_per_s},
      {"kernel on pinned memory", made.host_memory_bytes_per_s},
      {"managed, faulted in", made.managed_fault_in_bytes_per_s},
      {"managed, prefetched", made.managed_prefetch_bytes_per_s},
      {"managed, prefetched back", made.managed_prefetch_back_bytes_per_s},
      {"managed, faulted back", made.managed_fault_back_bytes_per_s},
  };
  text += '\n';
  for (const auto& [what, rate] : rates)
    text += fmt::format("{:<34}{:>16}\n", what, rate_text(rate));
  text += fmt::format("{:<34}{:>16}\n{:<34}{:>16}\n", "launch to start",
                      format_duration(made.launch_latency_ns), "shortest kernel",
                      format_duration(made.kernel_overhead_ns));
  return text + fmt::format("\nWritten to {0}; use it by --gpu sim:{0}\n", path);
}

ordered_json json_of(const gpu_profile& made, const std::string& path) {
  ordered_json calls = ordered_json::object();
  for (const auto& [call, table] : made.calls) {
    for (const cost_point& point : table.points) {
      calls[call].push_back(
          {{"bytes", point.bytes}, {"p50_ns", point.p50_ns}, {"p99_ns", point.p99_ns}});
    }
  }
  return {{"gpu", {{"name", made.device.name}, {"simulated", false}}},
          {"profile", path},
          {"source", made.source},
          {"calls", std::move(calls)},
          {"memory_bytes_per_s", made.memory_bytes_per_s},
          {"host_to_device_bytes_per_s", made.host_to_device_bytes_per_s},
          {"device_to_host_bytes_per_s", made.device_to_host_bytes_per_s},
          {"launch_latency_ns", made.launch_latency_ns},
          {"kernel_overhead_ns", made.kernel_overhead_ns}};
}

exit_status measure(session& here, const calibrate_arguments& arguments) {
  if (const auto file = needs_a_file(arguments.output); !file) return here.fail(file.error());
  if (here.gpu().what == gpu_choice::kind::simulated) {
    return here.fail(
        exit_status::device,
        "calibrate measures a card; the simulated GPU's costs are those of its profile");
  }
  auto opened =
      open_cuda_driver(here.gpu().what == gpu_choice::kind::card ? here.gpu().ordinal : 0);
  if (!opened)
    return here.fail(exit_status::device, "calibrate needs a card: " + opened.error().message);
  driver& gpu = **opened;
  if (const call_result bound = gpu.bind_thread(); !bound) {
    return here.fail(to_error(bound, "binding the thread to the GPU"));
  }
  const host_facts host = read_host_facts("");
  calibration_options options;
  options.name = arguments.name.empty() ? short_name(gpu.info().name) : arguments.name;
  options.source = source_of(gpu.info(), host);
  // What can be pinned is what there is, or what the container may use.
  options.host_bytes = host.ram_bytes.value_or(0);
  if (host.memory_limit_bytes)
    options.host_bytes = std::min(options.host_bytes, *host.memory_limit_bytes);
  options.now_ns = [] { return session::now_ns(); };
  options.progress = [&](std::string_view what, double share) {
    here.progress(fmt::format("calibrating {}: {} ({:.0f}%)", gpu.info().name, what, share * 100));
  };
  const auto made = calibrate(gpu, options);
  here.end_progress();
  if (!made) return here.fail(made.error());
  if (const auto saved = save_profile(*made, arguments.output); !saved)
    return here.fail(saved.error());
  if (here.json()) {
    here.out() << document_of(json_of(*made, arguments.output));
  } else {
    here.out() << text_of(*made, arguments.output);
  }
  return exit_status::done;
}

}  // namespace

command_body add_calibrate(CLI::App& app) {
  auto arguments = std::make_shared<calibrate_arguments>();
  app.add_option("-o,--output", arguments->output, "The profile to write")
      ->type_name("FILE")
      ->required();
  app.add_option("--name", arguments->name, "What the profile is called; the card's name otherwise")
      ->type_name("NAME");
  return [arguments](session& here) { return measure(here, *arguments); };
}

}  // namespace millpond::cli
