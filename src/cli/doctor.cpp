// millpond doctor: what this machine has for GPU memory, and what is misconfigured.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/command.hpp"
#include "machine/machine_facts.hpp"
#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "report/table.hpp"

namespace millpond::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t label_width = 18;

struct doctor_arguments {
  std::string pinned_budget = "1GiB";
};

struct checkup {
  machine_facts facts;
  std::optional<device_info> simulated;  // the simulated GPU, where it is what serves
  bool asked_for_simulated = false;
  std::vector<machine_finding> findings;
};

// --- Text
// ---------------------------------------------------------------------------------------------

std::string row(std::string_view label, std::string_view value) {
  return report::paragraph(fmt::format("  {:<{}}", label, label_width), std::string(value));
}

const char* yes_no(bool value) {
  return value ? "yes" : "no";
}

std::string bytes_or_none(std::optional<std::uint64_t> bytes, const char* no_limit = "unlimited") {
  if (!bytes) return "not known";
  return *bytes == unlimited_bytes ? no_limit : format_bytes(*bytes);
}

std::string abilities(const device_info& info) {
  return fmt::format(
      "virtual memory {}, driver pools {}, concurrent managed {}, pageable access {}, "
      "export by descriptor {}",
      yes_no(info.virtual_memory), yes_no(info.memory_pools),
      yes_no(info.concurrent_managed_access), yes_no(info.pageable_memory_access),
      yes_no(info.posix_fd_export));
}

std::string gpu_text(const device_info& info) {
  std::string text;
  text += row("compute",
              fmt::format("{}.{}, {} multiprocessors, L2 {}", info.compute_major,
                          info.compute_minor, info.multiprocessors, format_bytes(info.l2_bytes)));
  text += row("abilities", abilities(info));
  if (info.granularity != 0) {
    text += row(
        "granularity",
        fmt::format("{}; host memory by handle {}", format_bytes(info.granularity),
                    info.host_granularity != 0 ? format_bytes(info.host_granularity) : "refused"));
  }
  if (info.host_numa_id >= 0)
    text += row("nearest host node", fmt::format("NUMA {}", info.host_numa_id));
  return text;
}

std::string text_of_gpus(const checkup& made) {
  std::string text;
  for (const gpu_facts& gpu : made.facts.gpus) {
    text += fmt::format("GPU {}: {} at {}\n", gpu.info.ordinal, gpu.info.name, gpu.pci);
    text +=
        row("memory", gpu.free_bytes ? fmt::format("{} free of {}", format_bytes(*gpu.free_bytes),
                                                   format_bytes(gpu.info.total_bytes))
                                     : format_bytes(gpu.info.total_bytes));
    text += gpu_text(gpu.info);
    std::string marks =
        fmt::format("managed memory {}, ECC {}", yes_no(gpu.managed_memory), yes_no(gpu.ecc));
    if (gpu.mps) marks += ", through MPS";
    if (gpu.integrated) marks += ", integrated";
    text += row("also", marks) + "\n";
  }
  if (made.simulated) {
    text += made.asked_for_simulated ? "As asked: " : "No GPU here, so the simulated one serves: ";
    text += made.simulated->name + "\n";
    text +=
        row("memory", format_bytes(made.simulated->total_bytes)) + gpu_text(*made.simulated) + "\n";
  }
  return text;
}

std::string text_of_driver(const machine_facts& facts) {
  const driver_install_facts& install = facts.install;
  std::string text = "Driver\n";
  text += row("CUDA", facts.driver_version != 0 ? fmt::format("{}.{}", facts.driver_version / 1000,
                                                              facts.driver_version % 1000 / 10)
                                                : "none");
  if (!facts.loaded_library.empty() || !install.library.empty()) {
    text += row("library", facts.loaded_library.empty() ? install.library : facts.loaded_library);
  }
  text +=
      row("kernel module", install.kernel_module.empty()
                               ? "not loaded"
                               : install.kernel_module + (install.open_module ? " (open)" : ""));
  std::string files;
  for (const device_file& file : install.device_files) {
    files += fmt::format("{}{} {:04o}{}", files.empty() ? "" : ", ", file.path, file.mode,
                         file.accessible ? "" : " (closed to this user)");
  }
  text += row("device files", files.empty() ? "none" : files);
  if (install.hmm) text += row("HMM", *install.hmm ? "on" : "off");
  std::string parameters;
  for (const auto& [name, value] : install.uvm) {
    // The page machine's own; the module has dozens of debug switches beside them.
    if (name.starts_with("uvm_perf_")) parameters += fmt::format("{}={} ", name, value);
  }
  if (!parameters.empty()) text += row("managed memory", parameters);
  if (install.mps_running) text += row("MPS", "a control daemon runs");
  if (install.mig_instances > 0)
    text += row("MIG", fmt::format("{} instances", install.mig_instances));
  return text + "\n";
}

std::string text_of_host(const host_facts& host) {
  std::string text = "Host\n";
  text += row("kernel", host.kernel.empty() ? "not known" : host.kernel);
  text += row("processors",
              fmt::format("{} cores, {}", host.cpus,
                          host.numa_nodes == 0 ? std::string("NUMA nodes not known")
                                               : fmt::format("{} NUMA node{}", host.numa_nodes,
                                                             host.numa_nodes == 1 ? "" : "s")));
  text += row("memory",
              fmt::format("{} available of {}, swap {}", bytes_or_none(host.ram_available_bytes),
                          bytes_or_none(host.ram_bytes), bytes_or_none(host.swap_bytes)));
  if (host.memory_limit_bytes) {
    text += row("memory limit", fmt::format("{} ({})", format_bytes(*host.memory_limit_bytes),
                                            host.memory_limit_from));
  }
  text += row("locked memory", bytes_or_none(host.memlock_bytes));
  text += row("address space", bytes_or_none(host.address_space_bytes));
  text += row(
      "huge pages",
      fmt::format(
          "transparent: {}; reserved: {}", host.huge_pages.empty() ? "not known" : host.huge_pages,
          host.reserved_huge_pages ? std::to_string(*host.reserved_huge_pages) : "not known"));
  text += row("mappings",
              host.max_maps ? fmt::format("at most {} a process", *host.max_maps) : "not known");
  text += row("overcommit", !host.overcommit        ? "not known"
                            : *host.overcommit == 0 ? "0 (heuristic)"
                            : *host.overcommit == 1 ? "1 (always)"
                                                    : "2 (strict)");
  return text + "\n";
}

std::string text_of_findings(const std::vector<machine_finding>& findings) {
  if (findings.empty()) return "Nothing is misconfigured.\n";
  std::string text = "Findings\n";
  for (const machine_finding& each : findings) {
    constexpr std::size_t indent = 11;
    text +=
        report::paragraph(fmt::format("  {:<{}}", to_string(each.severity), indent - 2), each.what);
    if (!each.why.empty()) text += report::paragraph(std::string(indent, ' '), each.why);
    if (!each.how.empty()) text += report::paragraph(std::string(indent, ' ') + "-> ", each.how);
  }
  return text;
}

// --- JSON
// ---------------------------------------------------------------------------------------------

ordered_json json_or_null(std::optional<std::uint64_t> value) {
  if (!value) return nullptr;
  if (*value == unlimited_bytes) return "unlimited";
  return *value;
}

ordered_json json_of(const device_info& info, bool simulated) {
  return {{"name", info.name},
          {"simulated", simulated},
          {"ordinal", info.ordinal},
          {"compute", fmt::format("{}.{}", info.compute_major, info.compute_minor)},
          {"multiprocessors", info.multiprocessors},
          {"total_bytes", info.total_bytes},
          {"l2_bytes", info.l2_bytes},
          {"virtual_memory", info.virtual_memory},
          {"granularity_bytes", info.granularity},
          {"host_granularity_bytes", info.host_granularity},
          {"memory_pools", info.memory_pools},
          {"concurrent_managed_access", info.concurrent_managed_access},
          {"pageable_memory_access", info.pageable_memory_access},
          {"posix_fd_export", info.posix_fd_export},
          {"unified_addressing", info.unified_addressing},
          {"host_numa_id", info.host_numa_id}};
}

ordered_json json_of(const gpu_facts& gpu) {
  ordered_json made = json_of(gpu.info, false);
  made["pci"] = gpu.pci;
  made["free_bytes"] = json_or_null(gpu.free_bytes);
  made["managed_memory"] = gpu.managed_memory;
  made["ecc"] = gpu.ecc;
  made["mps"] = gpu.mps;
  if (!gpu.open_failure.empty()) made["failure"] = gpu.open_failure;
  return made;
}

ordered_json json_of(const machine_facts& facts) {
  const host_facts& host = facts.host;
  const driver_install_facts& install = facts.install;
  ordered_json files = ordered_json::array();
  for (const device_file& file : install.device_files) {
    files.push_back({{"path", file.path},
                     {"mode", fmt::format("{:04o}", file.mode)},
                     {"accessible", file.accessible}});
  }
  ordered_json driver = {
      {"cuda_version", facts.driver_version},
      {"library", facts.loaded_library.empty() ? install.library : facts.loaded_library},
      {"kernel_module", install.kernel_module},
      {"open_module", install.open_module},
      {"device_files", std::move(files)},
      {"hmm", install.hmm ? ordered_json(*install.hmm) : ordered_json(nullptr)},
      {"uvm_parameters", install.uvm},
      {"mps_running", install.mps_running},
      {"mig_instances", install.mig_instances},
      {"failure", facts.driver_failure}};
  ordered_json made_host = {
      {"kernel", host.kernel},
      {"cpus", host.cpus},
      {"numa_nodes", host.numa_nodes},
      {"ram_bytes", json_or_null(host.ram_bytes)},
      {"ram_available_bytes", json_or_null(host.ram_available_bytes)},
      {"swap_bytes", json_or_null(host.swap_bytes)},
      {"memory_limit_bytes", json_or_null(host.memory_limit_bytes)},
      {"memlock_bytes", json_or_null(host.memlock_bytes)},
      {"address_space_bytes", json_or_null(host.address_space_bytes)},
      {"open_files", json_or_null(host.open_files)},
      {"transparent_huge_pages", host.huge_pages},
      {"reserved_huge_pages", json_or_null(host.reserved_huge_pages)},
      {"max_maps", json_or_null(host.max_maps)},
      {"overcommit", host.overcommit ? ordered_json(*host.overcommit) : ordered_json(nullptr)},
      {"numa_balancing",
       host.numa_balancing ? ordered_json(*host.numa_balancing) : ordered_json(nullptr)}};
  return {{"driver", std::move(driver)}, {"host", std::move(made_host)}};
}

ordered_json json_of(const checkup& made) {
  ordered_json gpus = ordered_json::array();
  for (const gpu_facts& gpu : made.facts.gpus) gpus.push_back(json_of(gpu));
  if (made.simulated) gpus.push_back(json_of(*made.simulated, true));
  ordered_json document;
  if (!gpus.empty()) {
    document["gpu"] = {{"name", gpus.front()["name"]}, {"simulated", gpus.front()["simulated"]}};
  }
  document["gpus"] = std::move(gpus);
  document.update(json_of(made.facts));
  document["findings"] = ordered_json::array();
  for (const machine_finding& each : made.findings) {
    document["findings"].push_back({{"id", each.id},
                                    {"severity", to_string(each.severity)},
                                    {"what", each.what},
                                    {"why", each.why},
                                    {"how", each.how}});
  }
  return document;
}

// --- The body
// -----------------------------------------------------------------------------------------

result<device_info> simulated_device(const gpu_choice& choice) {
  simulated_gpu_options options;
  if (!choice.profile.empty()) {
    auto profile = find_profile(choice.profile);
    if (!profile) return profile.error();
    options.profile = std::move(*profile);
  }
  auto made = simulated_gpu::create(std::move(options));
  if (!made) return made.error();
  return (*made)->info();
}

exit_status analyse(session& here, const doctor_arguments& arguments) {
  diagnosis_options options;
  if (!parse_bytes(arguments.pinned_budget, options.pinned_budget_bytes)) {
    return here.fail(exit_status::usage,
                     fmt::format("--pinned-budget: expected a size such as 4GiB, found `{}`",
                                 arguments.pinned_budget));
  }
  checkup made;
  made.facts.host = read_host_facts("");
  made.facts.install = read_install_facts("");
  made.asked_for_simulated = here.gpu().what == gpu_choice::kind::simulated;
  if (!made.asked_for_simulated) {
    here.progress("asking the driver");
    const bool one = here.gpu().what == gpu_choice::kind::card;
    read_gpu_facts(made.facts, one ? here.gpu().ordinal : -1);
    if (one && made.facts.gpus.empty()) {
      return here.fail(exit_status::device,
                       made.facts.driver_failure.empty()
                           ? fmt::format("there is no GPU {} here", here.gpu().ordinal)
                           : made.facts.driver_failure);
    }
  }
  if (made.facts.gpus.empty()) {
    auto simulated = simulated_device(here.gpu());
    if (!simulated) return here.fail(simulated.error());
    made.simulated = std::move(*simulated);
  }
  made.findings = diagnose(made.facts, options);
  here.end_progress();
  if (here.json()) {
    here.out() << document_of(json_of(made));
  } else {
    here.out() << text_of_gpus(made) << text_of_driver(made.facts) << text_of_host(made.facts.host)
               << text_of_findings(made.findings);
  }
  const bool faulty = std::any_of(
      made.findings.begin(), made.findings.end(),
      [](const machine_finding& each) { return each.severity != finding_severity::note; });
  return faulty ? exit_status::findings : exit_status::done;
}

}  // namespace

command_body add_doctor(CLI::App& app) {
  auto arguments = std::make_shared<doctor_arguments>();
  app.add_option("--pinned-budget", arguments->pinned_budget,
                 "Pinned memory that programs here are to have; limits are judged by it")
      ->type_name("SIZE")
      ->capture_default_str();
  return [arguments](session& here) { return analyse(here, *arguments); };
}

}  // namespace millpond::cli
