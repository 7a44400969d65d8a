// Time for callbacks at the price of one instruction: the processor's time-stamp counter where it
// runs evenly in every core, and else the system's monotonic clock. The thread in the background
// turns ticks into nanoseconds; it looks at both clocks again and again, so that no frequency need
// be known beforehand.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#include <time.h>

namespace millpond::record {

[[nodiscard]] inline std::uint64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// ticks() from any thread; look() and to_ns() from one.
class tick_clock {
 public:
  // Takes a tenth of a millisecond, to know the rate from the start.
  tick_clock() noexcept : counter_(counter_is_even()), first_(both()) {
    while (counter_ && rate_ == 0) look();
  }

  [[nodiscard]] std::uint64_t ticks() const noexcept {
#if defined(__x86_64__)
    if (counter_) return __rdtsc();
#endif
    return monotonic_ns();
  }
  // Sets the rate by the whole time since the start: a reading is off by some 50 ns, which no long
  // baseline feels.
  void look() noexcept {
    if (!counter_) return;
    const pair now = both();
    if (now.ticks <= first_.ticks || now.ns - first_.ns < least_baseline_ns) return;
    rate_ = static_cast<double>(now.ns - first_.ns) / static_cast<double>(now.ticks - first_.ticks);
  }
  // Nanoseconds of the monotonic clock since this clock was made; what lay before is 0.
  [[nodiscard]] std::uint64_t to_ns(std::uint64_t ticks) const noexcept {
    return ticks <= first_.ticks ? 0 : span_ns(ticks - first_.ticks);
  }
  [[nodiscard]] std::uint64_t span_ns(std::uint64_t ticks) const noexcept {
    return counter_ ? static_cast<std::uint64_t>(static_cast<double>(ticks) * rate_) : ticks;
  }
  [[nodiscard]] std::uint64_t start_ns() const noexcept { return first_.ns; }
  [[nodiscard]] bool is_counter() const noexcept { return counter_; }

 private:
  struct pair {
    std::uint64_t ticks = 0, ns = 0;
  };
  static constexpr std::uint64_t least_baseline_ns = 100'000;

  static bool counter_is_even() noexcept {
#if defined(__x86_64__)
    // A kernel that tells the time by the counter has tested it, whatever a virtual machine's
    // processor says of itself.
    char name[32] = {};
    if (std::FILE* file =
            std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r")) {
      if (std::fgets(name, sizeof name, file) == nullptr) name[0] = '\0';
      std::fclose(file);
    }
    const auto is = [&](const char* clock) {
      const std::size_t length = std::strlen(clock);
      return std::strncmp(name, clock, length) == 0 &&
             (name[length] == '\n' || name[length] == '\0');
    };
    if (is("tsc")) return true;
    // Otherwise both must stand for it: "invariant TSC", and a clock that reads the counter too, or
    // none that is named.
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(0x80000007, &a, &b, &c, &d) == 0 || (d & (1u << 8)) == 0) return false;
    return name[0] == '\0' || is("kvm-clock") || is("hyperv_clocksource_tsc_page");
#else
    return false;
#endif
  }
  // Both clocks at one moment: the closest of a few tries, since a thread may be put aside between
  // them.
  [[nodiscard]] pair both() const noexcept {
    pair best;
    std::uint64_t closest = UINT64_MAX;
    for (int n = 0; n < 4; ++n) {
      const std::uint64_t before = ticks(), ns = monotonic_ns(), after = ticks();
      if (after - before >= closest) continue;
      closest = after - before;
      best = {before + (after - before) / 2, ns};
    }
    return best;
  }

  bool counter_;
  pair first_;
  double rate_ = 0;  // nanoseconds a tick
};

}  // namespace millpond::record
