// The facts that lie in files: /proc, /sys and /dev below a root.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "machine/machine_facts.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

namespace files = std::filesystem;

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  return text.str();
}

std::string read_line(const std::string& path) {
  std::string text = read_text(path);
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  text.remove_prefix(start);
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  return parse_number(read_line(path));
}

// The lines "cpu0 ...", "cpu1 ..." of /proc/stat: one for each processor that is online.
unsigned count_in_stat(const std::string& text) {
  unsigned count = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("cpu") && line.size() > 3 && line[3] >= '0' && line[3] <= '9') ++count;
  }
  return count;
}

// "MemTotal:   131 kB" of /proc/meminfo.
std::optional<std::uint64_t> meminfo(const std::string& text, const std::string& key) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key + ":")) {
      const auto kib = parse_number(std::string_view(line).substr(key.size() + 1));
      if (kib) return *kib * KiB;
    }
  }
  return std::nullopt;
}

// The soft limit in a line of /proc/self/limits, whose columns begin at 26 characters.
std::optional<std::uint64_t> soft_limit(const std::string& text, const std::string& name) {
  constexpr std::size_t column = 26;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name + " ") || line.size() <= column) continue;
    const std::string_view value = std::string_view(line).substr(column);
    if (value.starts_with("unlimited")) return unlimited_bytes;
    return parse_number(value);
  }
  return std::nullopt;
}

// How many numbers a list such as "0-3,8" holds.
unsigned count_list(const std::string& text) {
  std::uint64_t count = 0;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const auto low = parse_number(part);
    if (!low) continue;
    const std::size_t dash = part.find('-');
    const auto high = dash == std::string::npos ? low : parse_number(part.substr(dash + 1));
    if (high && *high >= *low && *high - *low < 100'000) count += *high - *low + 1;
  }
  return static_cast<unsigned>(count);
}

// "always [madvise] never" gives "madvise".
std::string chosen(const std::string& text) {
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return text.substr(open + 1, close - open - 1);
}

// The lowest memory limit of this process's control group and those above it, of either version.
// Inside a container the path of /proc/self/cgroup may not exist; the mount's own root is then the
// container's.
void read_memory_limit(const std::string& root, host_facts& host) {
  const auto look = [&](const std::string& file) {
    const auto limit = read_number(root + file);
    // Version 1 writes the largest page-aligned number for "no limit"; version 2 writes "max".
    if (!limit || *limit >= std::uint64_t{1} << 60) return;
    if (host.memory_limit_bytes && *host.memory_limit_bytes <= *limit) return;
    host.memory_limit_bytes = limit;
    host.memory_limit_from = file;
  };
  const auto climb = [&](const std::string& mount, std::string path, const char* name) {
    for (;;) {
      while (path.ends_with('/')) path.pop_back();
      look(mount + path + "/" + name);
      if (path.empty()) return;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  };
  std::istringstream in(read_text(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      climb("/sys/fs/cgroup", path, "memory.max");
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      climb("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes");
    }
  }
}

device_file look_at_device(const std::string& root, const std::string& path) {
  device_file found;
  found.path = path;
  struct stat status{};
  if (::stat((root + path).c_str(), &status) == 0) found.mode = status.st_mode & 07777u;
  found.accessible = ::access((root + path).c_str(), R_OK | W_OK) == 0;
  return found;
}

// Names in a folder, sorted; none where it cannot be read.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  for (files::directory_iterator it(folder, failure), end; !failure && it != end;
       it.increment(failure)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool is_gpu_node(const std::string& name) {
  constexpr std::string_view prefix = "nvidia";
  return name.starts_with(prefix) && name.size() > prefix.size() &&
         std::all_of(name.begin() + prefix.size(), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build": the first
// word of digits and points with a point in it.
std::string module_version(const std::string& text) {
  std::istringstream in(text.substr(0, text.find('\n')));
  for (std::string word; in >> word;) {
    const bool number = std::all_of(word.begin(), word.end(),
                                    [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
    if (number && word.find('.') != std::string::npos) return word;
  }
  return {};
}

}  // namespace

host_facts read_host_facts(const std::string& root) {
  host_facts host;
  host.kernel = read_line(root + "/proc/sys/kernel/osrelease");
  host.cpus = count_list(read_line(root + "/sys/devices/system/cpu/online"));
  // A chroot or a small container may be without /sys.
  if (host.cpus == 0) host.cpus = count_in_stat(read_text(root + "/proc/stat"));
  const std::string memory = read_text(root + "/proc/meminfo");
  host.ram_bytes = meminfo(memory, "MemTotal");
  host.ram_available_bytes = meminfo(memory, "MemAvailable");
  host.swap_bytes = meminfo(memory, "SwapTotal");
  host.numa_nodes = count_list(read_line(root + "/sys/devices/system/node/online"));
  if (const auto balancing = read_number(root + "/proc/sys/kernel/numa_balancing")) {
    host.numa_balancing = *balancing != 0;
  }
  const std::string limits = read_text(root + "/proc/self/limits");
  host.memlock_bytes = soft_limit(limits, "Max locked memory");
  host.address_space_bytes = soft_limit(limits, "Max address space");
  host.open_files = soft_limit(limits, "Max open files");
  host.huge_pages = chosen(read_line(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  host.reserved_huge_pages = read_number(root + "/proc/sys/vm/nr_hugepages");
  host.max_maps = read_number(root + "/proc/sys/vm/max_map_count");
  if (const auto overcommit = read_number(root + "/proc/sys/vm/overcommit_memory")) {
    host.overcommit = static_cast<int>(*overcommit);
  }
  read_memory_limit(root, host);
  return host;
}

driver_install_facts read_install_facts(const std::string& root) {
  driver_install_facts install;
  const std::string version = read_text(root + "/proc/driver/nvidia/version");
  install.kernel_module = module_version(version);
  install.open_module = version.find("Open Kernel Module") != std::string::npos;
  for (const std::string& name : names_in(root + "/dev")) {
    if (is_gpu_node(name) || name == "nvidiactl" || name == "nvidia-uvm") {
      install.device_files.push_back(look_at_device(root, "/dev/" + name));
    }
  }
  for (const char* folder :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
        "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/run/opengl-driver/lib"}) {
    const std::string path = std::string(folder) + "/libcuda.so.1";
    std::error_code failure;
    if (install.library.empty() && files::exists(root + path, failure)) install.library = path;
  }
  const std::string parameters = root + "/sys/module/nvidia_uvm/parameters/";
  for (const std::string& name : names_in(parameters)) {
    const std::string value = read_line(parameters + name);
    if (!value.empty()) install.uvm[name] = value;
  }
  if (const auto disabled = install.uvm.find("uvm_disable_hmm"); disabled != install.uvm.end()) {
    install.hmm = disabled->second == "N" || disabled->second == "0";
  }
  std::error_code failure;
  install.mps_running = files::exists(root + "/tmp/nvidia-mps/control", failure);
  const std::string capabilities = root + "/proc/driver/nvidia/capabilities/";
  for (const std::string& gpu : names_in(capabilities)) {
    std::string instances = capabilities + gpu;
    instances += "/mig";
    for (const std::string& name : names_in(instances)) {
      if (name.starts_with("gi")) ++install.mig_instances;
    }
  }
  return install;
}

}  // namespace millpond
