#include "cli/memory_limit.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "machine/machine_facts.hpp"
#include "millpond/base/units.hpp"

namespace millpond::cli {
namespace {

// What the process has by now; a sanitizer has mapped more than any machine has.
std::uint64_t data_bytes_now() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) return std::strtoull(line.c_str() + 7, nullptr, 10) * KiB;
  }
  return 0;
}

// Of the machine, or of the control group where that has less.
std::uint64_t memory_to_take() {
  const host_facts host = read_host_facts("");
  std::uint64_t most = host.ram_available_bytes.value_or(unlimited_bytes);
  if (host.memory_limit_bytes) most = std::min(most, *host.memory_limit_bytes);
  return most == unlimited_bytes ? most : most / 8 * 7;
}

}  // namespace

void bound_memory_of_process() {
  const std::uint64_t most = memory_to_take();
  rlimit limit{};
  if (most == unlimited_bytes || getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_cur, data_bytes_now() + most);
  static_cast<void>(setrlimit(RLIMIT_DATA, &limit));
}

std::uint64_t memory_left_to_process() {
  std::uint64_t left = memory_to_take();
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const std::uint64_t now = data_bytes_now();
    left = std::min<std::uint64_t>(left, limit.rlim_cur > now ? limit.rlim_cur - now : 0);
  }
  return left;
}

}  // namespace millpond::cli
