// What a machine has for GPU memory, and what is wrong with it: the facts behind `millpond doctor`.
//
// Facts are plain data, read from the files under a root ("/" for this machine, a folder in the
// tests) and from the driver; the rules look at the facts alone. What cannot be read is absent,
// never guessed.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millpond/driver/driver.hpp"

namespace millpond {

inline constexpr std::uint64_t unlimited_bytes = ~std::uint64_t{0};

// A file below /dev that the driver needs.
struct device_file {
  std::string path;         // "/dev/nvidia0"
  bool accessible = false;  // this process may read and write it
  unsigned mode = 0;        // 0666
};

struct host_facts {
  std::string kernel;  // "6.1.0-28-amd64"
  unsigned cpus = 0;
  std::optional<std::uint64_t> ram_bytes, ram_available_bytes, swap_bytes;
  unsigned numa_nodes = 0;  // 0: not known
  std::optional<bool> numa_balancing;
  std::optional<std::uint64_t> memlock_bytes;  // unlimited_bytes where there is no limit
  std::optional<std::uint64_t> address_space_bytes;
  std::optional<std::uint64_t> open_files;
  std::string huge_pages;  // of "always", "madvise", "never"; empty: not known
  std::optional<std::uint64_t> reserved_huge_pages;  // vm.nr_hugepages
  std::optional<std::uint64_t> max_maps;             // vm.max_map_count
  std::optional<int> overcommit;                     // vm.overcommit_memory
  std::optional<std::uint64_t> memory_limit_bytes;   // the nearest of the control groups' limits
  std::string memory_limit_from;                     // the file that it stands in
};

struct driver_install_facts {
  std::string kernel_module;  // "580.159.03", empty where it is not loaded
  bool open_module = false;   // the open kernel modules
  std::vector<device_file> device_files;
  std::string library;  // libcuda.so.1, where it lies; empty: in none of the usual places
  std::map<std::string, std::string> uvm;  // readable parameters of nvidia_uvm
  std::optional<bool> hmm;   // pageable memory usable by the GPU, as the module is set
  bool mps_running = false;  // a control pipe of the multi-process service is there
  unsigned mig_instances = 0;
};

struct gpu_facts {
  device_info info;
  std::string pci;
  bool managed_memory = false;
  bool pageable_host_tables = false;
  bool integrated = false;
  bool ecc = false;
  bool mps = false;
  std::string open_failure;  // why no context could be made; then nothing below is known
  std::optional<std::uint64_t> free_bytes;
};

struct machine_facts {
  host_facts host;
  driver_install_facts install;
  std::string driver_failure;  // why the driver could not be asked; empty: it answered
  int driver_version = 0;      // 13000 for CUDA 13.0
  std::string loaded_library;  // the file that was loaded
  std::vector<gpu_facts> gpus;
};

// The files below `root` (which ends without a slash; "" is this machine). Never fails: what is not
// there stays empty.
[[nodiscard]] host_facts read_host_facts(const std::string& root);
[[nodiscard]] driver_install_facts read_install_facts(const std::string& root);

// Asks the real driver, making a context on each GPU (a third of a second each) for free memory and
// granularities. `only` >= 0 asks that GPU alone.
void read_gpu_facts(machine_facts& facts, int only);

enum class finding_severity : std::uint8_t { note, warning, failure };
[[nodiscard]] const char* to_string(finding_severity severity) noexcept;

struct machine_finding {
  std::string id;  // "memlock_low": fixed, for programs that read the JSON
  finding_severity severity = finding_severity::note;
  std::string what;  // one sentence: what is so
  std::string why;   // what it costs or breaks
  std::string how;   // what to do, as a command where there is one; empty for mere notes
};

struct diagnosis_options {
  // Pinned memory that programs here are to have. The default is what a serving process with a few
  // staging buffers takes.
  std::uint64_t pinned_budget_bytes = std::uint64_t{1} << 30;
};

// What is misconfigured, worst first. Without a GPU the host's settings are notes, since nothing
// suffers.
[[nodiscard]] std::vector<machine_finding> diagnose(const machine_facts& facts,
                                                    const diagnosis_options& options = {});

}  // namespace millpond
