// Measurements of managed memory as lines of a CSV file: what was done, what it took, and what the
// page machine predicts of it. bench/managed.cpp measures such lines on a card; tests and
// docs/measured/managed_memory.md compare them.
#pragma once
#include <string>
#include <vector>

#include "driver/sim/pages/machine.hpp"
#include "millpond/base/result.hpp"

namespace millpond::sim::pages {

// What of a case is timed.
enum class measured : std::uint8_t {
  kernel,  // prefetch, where asked for, and the first kernel
  second_kernel,
  fault_back,     // the CPU touches every page after the kernel
  prefetch_back,  // cudaMemPrefetchAsync to the host after the kernel
  round_p50,      // of ping-pong
  round_p99,
};

struct page_case {
  std::string name;
  run_options what;
  measured part = measured::kernel;
  double low_ms = 0, high_ms = 0;  // 0: not measured yet
  [[nodiscard]] double middle_ms() const noexcept { return (low_ms + high_ms) / 2; }
};

// The columns, in order: the first line of a file.
inline constexpr const char* case_columns =
    "name,bytes,pattern,stride,access,start,advice,prefetch,rounds,measured,low_ms,high_ms";

// Lines that start with # are remarks. Errors: bad_input with file and line, what was expected and
// what was there.
[[nodiscard]] result<std::vector<page_case>> read_cases(const std::string& path);
// The rates of the machine that a file's rows were measured on, from the remark that `managed
// --calibrated` writes. False, and nothing changed, where there is none.
bool read_rates(const std::string& path, gpu_profile& into);
[[nodiscard]] std::string case_line(const page_case& one);
// A row of the table in docs/measured/managed_memory.md: name, size, measured, predicted, error
// against the middle.
[[nodiscard]] std::string table_line(const page_case& one, const page_costs& costs);
[[nodiscard]] double predict_ms(const page_case& one, const page_costs& costs);

}  // namespace millpond::sim::pages
