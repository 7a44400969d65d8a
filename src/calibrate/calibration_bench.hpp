// The tools of a calibration: a clock net of its own cost, samples, and quantiles.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "calibrate/calibrate.hpp"

namespace millpond::calibration {

// Thrown by need() and caught in calibrate(): measuring goes through many small steps.
struct failed_call {
  call_result answer;
  std::string doing;
};

// Runs when the scope ends, so that a failure half-way gives everything back.
template <class Action>
class at_end {
 public:
  explicit at_end(Action action) : action_(std::move(action)) {}
  ~at_end() { action_(); }
  at_end(const at_end&) = delete;
  at_end& operator=(const at_end&) = delete;

 private:
  Action action_;
};

class bench {
 public:
  bench(driver& measured, const calibration_options& options) : gpu(measured), options_(options) {
    std::vector<double> times;
    for (int i = 0; i < 1001; ++i) {
      const std::uint64_t start = options_.now_ns();
      times.push_back(static_cast<double>(options_.now_ns() - start));
    }
    std::nth_element(times.begin(), times.begin() + 500, times.end());
    clock_ns_ = times[500];
    need(gpu.stream_create(&stream), "making a stream");
  }
  ~bench() {
    static_cast<void>(gpu.stream_synchronize(stream));
    static_cast<void>(gpu.stream_destroy(stream));
  }
  bench(const bench&) = delete;
  bench& operator=(const bench&) = delete;

  void need(call_result answer, const char* doing) const {
    if (!answer) throw failed_call{answer, std::string("calibrating: ") + doing};
  }
  void need(call_result answer) const { need(answer, stage_.c_str()); }
  void stage(std::string_view what, double share) {
    stage_ = what;
    if (options_.progress) options_.progress(what, share);
  }
  void wait() const { need(gpu.stream_synchronize(stream)); }

  [[nodiscard]] std::uint64_t now() const { return options_.now_ns(); }
  // Nanoseconds of one call, net of the clock.
  template <class Call>
  double time(Call&& call) const {
    const std::uint64_t start = now();
    const call_result answer = call();
    const std::uint64_t end = now();
    need(answer);
    return std::max(0.0, static_cast<double>(end - start) - clock_ns_);
  }
  // Runs a body until there are samples enough or the row's time is spent. The first run is not
  // counted: it pays what is paid once.
  template <class Body>
  void repeat(Body&& body, const std::vector<std::vector<double>*>& series) const {
    body();
    for (std::vector<double>* each : series) each->clear();
    const std::uint64_t start = now();
    for (unsigned i = 0; i < options_.samples; ++i) {
      if (i >= 3 && now() - start > options_.row_budget_ns) break;
      body();
    }
  }

  [[nodiscard]] static cost_point point(std::uint64_t bytes, std::vector<double> times) {
    std::sort(times.begin(), times.end());
    const std::size_t last = times.size() - 1;
    return {bytes, times[times.size() / 2], times[std::min(last, times.size() * 99 / 100)]};
  }
  [[nodiscard]] static double median(std::vector<double> times) {
    return point(0, std::move(times)).p50_ns;
  }

  // A call of less than a microsecond or so: its median from batches, in which the clock does not
  // count, its 99th percentile from single calls.
  template <class Call>
  cost_table quick(Call&& call) const {
    constexpr int batches = 41, in_batch = 50, singles = 1000;
    for (int i = 0; i < in_batch; ++i) need(call());
    std::vector<double> means;
    means.reserve(batches);
    for (int batch = 0; batch < batches; ++batch) {
      const std::uint64_t start = now();
      call_result answer;
      for (int i = 0; i < in_batch && answer; ++i) answer = call();
      const std::uint64_t end = now();
      need(answer);
      means.push_back(std::max(0.0, static_cast<double>(end - start) - clock_ns_) / in_batch);
    }
    std::vector<double> times;
    times.reserve(singles);
    for (int i = 0; i < singles; ++i) times.push_back(time(call));
    cost_point made = point(0, std::move(means));
    made.p99_ns = std::max(made.p50_ns, point(0, std::move(times)).p99_ns);
    return {{made}};
  }

  driver& gpu;
  stream_handle stream = nullptr;

 private:
  const calibration_options& options_;
  double clock_ns_ = 0;
  std::string stage_ = "starting";
};

// Each fills its part of the profile. `largest` bounds single blocks.
void measure_plain_calls(bench& on, gpu_profile& into, std::uint64_t largest);
void measure_pools(bench& on, gpu_profile& into, std::uint64_t largest);
void measure_virtual_memory(bench& on, gpu_profile& into, std::uint64_t largest);
void measure_streams(bench& on, gpu_profile& into);
void measure_graphs(bench& on, gpu_profile& into);
void measure_work(bench& on, gpu_profile& into, std::uint64_t largest,
                  const calibration_options& options);

}  // namespace millpond::calibration
