#include "bench/support/measure.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace millpond::bench {

std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

double percentile(std::vector<float>& values, double share) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return static_cast<double>(values[at]);
}

double median(std::vector<float> values) {
  return percentile(values, 0.5);
}

double processor_seconds() noexcept {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec) / 1e6;
}

std::uint64_t peak_memory_bytes() noexcept {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<std::uint64_t>(used.ru_maxrss) * 1024;
}

void stop_with(int status, const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(status);
}

void need(bool ok, const char* what) {
  if (!ok) stop_with(4, std::string(what) + " failed");
}

void need(call_result answer, const char* what) {
  if (!answer.ok()) stop_with(4, std::string(what) + ": " + to_string(answer));
}

}  // namespace millpond::bench
