// The rules of `millpond doctor`: from facts to findings, each with its reason and its remedy.
#include <fmt/format.h>

#include <algorithm>

#include "machine/machine_facts.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

// The kernel's own default before 6.x; programs that map many pieces need it at least.
constexpr std::uint64_t least_maps = 65530;
// Below this a process that shares memory by file descriptors runs out soon.
constexpr std::uint64_t least_open_files = 1024;
// A card on which others hold more than nine tenths is nearly full.
constexpr std::uint64_t nearly_full_share = 10;

class rules {
 public:
  rules(const machine_facts& facts, const diagnosis_options& options)
      : facts_(facts), options_(options) {}

  std::vector<machine_finding> run() {
    look_at_driver();
    look_at_device_files();
    for (const gpu_facts& gpu : facts_.gpus) look_at_gpu(gpu);
    look_at_limits();
    look_at_memory_settings();
    std::stable_sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) {
      return static_cast<int>(a.severity) > static_cast<int>(b.severity);
    });
    return std::move(found_);
  }

 private:
  [[nodiscard]] bool has_gpu() const { return !facts_.gpus.empty(); }
  // Something of an NVIDIA driver is here, so that a failure to use it is worth mending.
  [[nodiscard]] bool driver_expected() const {
    return !facts_.install.kernel_module.empty() || !facts_.install.device_files.empty() ||
           !facts_.install.library.empty();
  }
  void add(const char* id, finding_severity severity, std::string what, std::string why,
           std::string how) {
    found_.push_back({id, severity, std::move(what), std::move(why), std::move(how)});
  }
  // A setting of the host: a note where no GPU suffers from it.
  void add_setting(const char* id, std::string what, std::string why, std::string how) {
    add(id, has_gpu() ? finding_severity::warning : finding_severity::note, std::move(what),
        std::move(why), std::move(how));
  }

  void look_at_driver() {
    const driver_install_facts& install = facts_.install;
    if (!facts_.driver_failure.empty()) {
      if (!driver_expected()) {
        add("no_driver", finding_severity::note, "This machine has no NVIDIA driver.",
            facts_.driver_failure, "");
        return;
      }
      const bool no_library = install.library.empty();
      add(no_library ? "library_missing" : "driver_failure", finding_severity::failure,
          "The NVIDIA driver is here and cannot be used.", facts_.driver_failure,
          no_library
              ? "In a container: start it with --gpus all and NVIDIA_DRIVER_CAPABILITIES including "
                "compute. Otherwise install the driver's libraries (libcuda1, cuda-drivers)."
              : "");
      return;
    }
    if (facts_.gpus.empty() && facts_.driver_version != 0) {
      add("no_device", finding_severity::failure, "The driver is here and shows no GPU.",
          "CUDA_VISIBLE_DEVICES may hide it, or the container was given none.",
          "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES");
    }
    if (!facts_.loaded_library.empty() &&
        facts_.loaded_library.find("/compat/") != std::string::npos) {
      add("compat_library", finding_severity::note,
          fmt::format("CUDA runs on the forward-compatibility library {}.", facts_.loaded_library),
          "It serves newer CUDA on an older kernel module, on data-centre GPUs only.", "");
    }
  }

  void look_at_device_files() {
    const auto find = [&](std::string_view path) {
      const auto& all = facts_.install.device_files;
      const auto at =
          std::find_if(all.begin(), all.end(), [&](const auto& f) { return f.path == path; });
      return at == all.end() ? nullptr : &*at;
    };
    for (const device_file& file : facts_.install.device_files) {
      if (file.accessible) continue;
      add("device_file_closed", finding_severity::failure,
          fmt::format("{} (mode {:04o}) is not readable and writable by this user.", file.path,
                      file.mode),
          "CUDA cannot start without it.",
          fmt::format("sudo chmod 0666 {}, or join the group that owns it", file.path));
    }
    if (facts_.install.kernel_module.empty()) return;
    if (find("/dev/nvidiactl") == nullptr) {
      add("nvidiactl_missing", finding_severity::failure,
          "The kernel module is loaded and /dev/nvidiactl is missing.",
          "CUDA cannot start without it.", "sudo nvidia-modprobe; in a container: --gpus all");
    }
    if (find("/dev/nvidia-uvm") == nullptr) {
      add("uvm_missing", finding_severity::failure,
          "The kernel module is loaded and /dev/nvidia-uvm is missing.",
          "cuInit fails without it, often as CUDA_ERROR_UNKNOWN.",
          "sudo nvidia-modprobe -u -c=0; in a container: --gpus all, or --device /dev/nvidia-uvm");
    }
  }

  void look_at_gpu(const gpu_facts& gpu) {
    const std::string name = fmt::format("GPU {} ({})", gpu.info.ordinal, gpu.info.name);
    if (!gpu.open_failure.empty()) {
      add("gpu_closed", finding_severity::failure, name + " cannot be used.", gpu.open_failure, "");
      return;
    }
    if (!gpu.info.virtual_memory) {
      add("no_virtual_memory", finding_severity::warning,
          name + " has no virtual memory management.",
          "Pools then grow by whole cudaMalloc blocks, and no page can be moved to where it is "
          "needed.",
          "");
    }
    if (!gpu.info.memory_pools) {
      add("no_driver_pools", finding_severity::note,
          name + " has no driver pools (cudaMallocAsync).",
          "Strategies that use them are left out.", "");
    }
    if (gpu.managed_memory && !gpu.info.concurrent_managed_access) {
      add("no_concurrent_managed", finding_severity::warning,
          name + ": the CPU may not touch managed memory while a kernel runs.",
          "A touch crashes; prefetch and advice are refused, as under Windows and WSL.",
          "Use device memory with pinned staging here.");
    }
    if (gpu.info.pageable_memory_access) {
      add("pageable_access", finding_severity::note,
          name + (gpu.pageable_host_tables
                      ? ": kernels reach all host memory (address translation)."
                      : ": kernels reach ordinary host memory (HMM)."),
          "A stray host pointer in a kernel works silently and slowly instead of failing.", "");
    }
    if (gpu.free_bytes && *gpu.free_bytes < gpu.info.total_bytes / nearly_full_share) {
      add("memory_nearly_full", finding_severity::warning,
          fmt::format("{}: {} of {} are free.", name, format_bytes(*gpu.free_bytes),
                      format_bytes(gpu.info.total_bytes)),
          "Other processes hold the rest, and an allocation may fail at any time.", "nvidia-smi");
    }
    if (gpu.mps) {
      add("mps", finding_severity::note,
          name + " is shared through the multi-process service (MPS).",
          "Contexts share one address space and its limits; free memory changes under you.", "");
    }
    if (gpu.info.virtual_memory && gpu.info.host_granularity == 0) {
      add("no_host_handles", finding_severity::note,
          name + ": host memory by cuMemCreate is refused.",
          "Pinned pools then grow by cudaHostAlloc, which pins more slowly.", "");
    }
  }

  void look_at_limits() {
    const host_facts& host = facts_.host;
    const std::uint64_t budget = options_.pinned_budget_bytes;
    if (host.memlock_bytes && *host.memlock_bytes < budget) {
      add_setting(
          "memlock_low",
          fmt::format("The limit on locked memory is {}, below the {} meant to be pinned.",
                      format_bytes(*host.memlock_bytes), format_bytes(budget)),
          "mlock, registering memory with a network card (RDMA, NCCL) and, on some drivers, "
          "cudaHostRegister are refused beyond it.",
          "ulimit -l unlimited; for services LimitMEMLOCK=infinity; docker: --ulimit memlock=-1");
    }
    if (host.address_space_bytes && *host.address_space_bytes != unlimited_bytes) {
      add_setting(
          "address_space_limited",
          fmt::format("The address space of a process is limited to {}.",
                      format_bytes(*host.address_space_bytes)),
          "CUDA reserves more addresses than all memory of the machine; it fails to start or to "
          "reserve.",
          "ulimit -v unlimited");
    }
    if (host.open_files && *host.open_files < least_open_files) {
      add_setting("open_files_low", fmt::format("A process may open {} files.", *host.open_files),
                  "Memory shared between processes takes a descriptor a handle.",
                  "ulimit -n 65536");
    }
    if (host.memory_limit_bytes) look_at_memory_limit(*host.memory_limit_bytes);
  }

  void look_at_memory_limit(std::uint64_t limit) {
    const std::uint64_t budget = options_.pinned_budget_bytes;
    if (limit < budget) {
      add_setting(
          "memory_limit_low",
          fmt::format("This container's memory limit is {}, below the {} meant to be pinned.",
                      format_bytes(limit), format_bytes(budget)),
          "Pinned and managed memory count against it: the process is killed when it is passed.",
          fmt::format("docker: --memory; Kubernetes: limits.memory ({})",
                      facts_.host.memory_limit_from));
    } else if (facts_.host.ram_bytes && limit < *facts_.host.ram_bytes) {
      add("memory_limited", finding_severity::note,
          fmt::format("This container's memory limit is {} of the machine's {}.",
                      format_bytes(limit), format_bytes(*facts_.host.ram_bytes)),
          "Pinned and managed memory count against it.", "");
    }
  }

  void look_at_memory_settings() {
    const host_facts& host = facts_.host;
    if (host.huge_pages == "never") {
      add_setting(
          "huge_pages_never", "Transparent huge pages are off.",
          "Pinning is slower: 2 GiB touched and registered by one thread took 1111 ms without and "
          "453 ms with them (measured on an H200's host, driver 580.159, 2026-11-30).",
          "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
    }
    if (host.overcommit == 2) {
      add_setting(
          "overcommit_strict", "The kernel promises no more memory than it has (overcommit 2).",
          "CUDA and address reservations ask for far more addresses than memory, and may be "
          "refused.",
          "sudo sysctl vm.overcommit_memory=0");
    }
    if (host.max_maps && *host.max_maps < least_maps) {
      add_setting(
          "max_maps_low", fmt::format("A process may have {} mappings.", *host.max_maps),
          "Each piece of mapped host memory takes one; a pool of many pieces is refused beyond "
          "them.",
          "sudo sysctl vm.max_map_count=1048576");
    }
    if (host.numa_balancing.value_or(false) && host.numa_nodes > 1) {
      add_setting(
          "numa_balancing",
          fmt::format("The kernel moves pages between {} NUMA nodes by itself.", host.numa_nodes),
          "Its sampling faults slow managed memory and host buffers near the GPU.",
          "sudo sysctl kernel.numa_balancing=0");
    }
    if (facts_.install.mig_instances > 0) {
      add("mig", finding_severity::note,
          fmt::format("A GPU is divided into {} MIG instances.", facts_.install.mig_instances),
          "Each has its own memory; CUDA sees one of them a process.", "");
    }
    const auto prefetch = facts_.install.uvm.find("uvm_perf_prefetch_enable");
    if (prefetch != facts_.install.uvm.end() && prefetch->second == "0") {
      add_setting("uvm_prefetch_off",
                  "The managed-memory prefetcher is off (uvm_perf_prefetch_enable=0).",
                  "Each fault then brings one page of 64 KiB or less instead of up to 2 MiB.",
                  "options nvidia-uvm uvm_perf_prefetch_enable=1 in /etc/modprobe.d, and reload");
    }
  }

  const machine_facts& facts_;
  const diagnosis_options& options_;
  std::vector<machine_finding> found_;
};

}  // namespace

const char* to_string(finding_severity severity) noexcept {
  switch (severity) {
    case finding_severity::note: return "note";
    case finding_severity::warning: return "warning";
    case finding_severity::failure: return "failure";
  }
  return "unknown";
}

std::vector<machine_finding> diagnose(const machine_facts& facts,
                                      const diagnosis_options& options) {
  return rules(facts, options).run();
}

}  // namespace millpond
