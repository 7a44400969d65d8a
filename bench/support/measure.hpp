// The small things that nearly every benchmark does: looks at the clock, sorts what it saw, stops
// where a call fails.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "millpond/driver/driver.hpp"

namespace millpond::bench {

// Of the host's steady clock.
[[nodiscard]] std::uint64_t now_ns() noexcept;
[[nodiscard]] inline double us_since(std::uint64_t start) noexcept {
  return static_cast<double>(now_ns() - start) / 1e3;
}
[[nodiscard]] inline double ms_since(std::uint64_t start) noexcept {
  return static_cast<double>(now_ns() - start) / 1e6;
}
[[nodiscard]] inline double seconds_since(std::uint64_t start) noexcept {
  return static_cast<double>(now_ns() - start) / 1e9;
}

// The value at a share (0..1) of the sorted numbers; puts them into another order.
[[nodiscard]] double percentile(std::vector<float>& values, double share);
[[nodiscard]] double median(std::vector<float> values);

// What this process took so far: its own processor time, and the most memory that it ever had.
[[nodiscard]] double processor_seconds() noexcept;
[[nodiscard]] std::uint64_t peak_memory_bytes() noexcept;

// Ends the program and says why.
[[noreturn]] void stop_with(int status, const std::string& why);
// Ends it with 4 where something that the benchmark cannot do without has failed.
void need(bool ok, const char* what);
void need(call_result answer, const char* what);
template <class T>
[[nodiscard]] T need(result<T> answer, const char* what) {
  if (!answer) stop_with(4, std::string(what) + ": " + answer.error().message);
  return std::move(answer).value();
}

}  // namespace millpond::bench
