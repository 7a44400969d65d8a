// What an allocator's own paths cost on this host, with a driver that does nothing below it: the
// numbers that a profile of the simulated GPU has under [allocator.path_ns].
//
//   bench/path_costs --out path_costs.json TRACE...
//
// Each call of the recorded workloads is timed and put to the path that the pool's counters say it
// took. A path that comes together with others (a growth, a moved handle, a seal) is what those
// calls take beyond the rest.
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "bench/support/measure.hpp"
#include "bench/support/result_file.hpp"
#include "driver/null/null_driver.hpp"
#include "millpond/pool/pool.hpp"
#include "replay/strategy.hpp"
#include "replay/workload.hpp"
#include "trace/source.hpp"

using namespace millpond;

namespace {

using bench::now_ns;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The mean without the largest hundredth, where the host's interrupts are.
double trimmed_mean(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  values.resize(std::max<std::size_t>(1, values.size() * 99 / 100));
  double sum = 0;
  for (const double each : values) sum += each;
  return sum / static_cast<double>(values.size());
}

struct samples {
  std::map<std::string, std::vector<double>> by_path;
  double clock_ns = 0;
  bool counted_as_heap = false;  // the pool counts a growing allocation as one from the heap too

  template <class Call>
  double time(Call&& call) const {
    const std::uint64_t before = now_ns();
    call();
    return std::max(0.0, static_cast<double>(now_ns() - before) - clock_ns);
  }
};

replay::workload load(const std::string& path) {
  auto data = trace::load_trace(path);
  auto work = data ? replay::lower(*data) : result<replay::workload>(data.error());
  if (work) return std::move(*work);
  bench::stop_with(3, work.error().message);
}

std::vector<stream_handle> make_streams(driver& gpu, std::size_t count) {
  std::vector<stream_handle> made(count);
  for (stream_handle& each : made) static_cast<void>(gpu.stream_create(&each));
  return made;
}

void measure_pool(const replay::workload& work, samples& into) {
  auto gpu =
      std::make_shared<null_driver>(null_driver::settings{.memory_bytes = std::uint64_t{1} << 40});
  const auto streams = make_streams(*gpu, work.streams.size());
  auto made = pool::create(gpu, {});
  if (!made) bench::stop_with(4, made.error().message);
  pool& memory = **made;
  for (int round = 0; round < 3; ++round) {
    std::vector<void*> at(work.blocks.size());
    pool_statistics before = memory.statistics();
    for (const replay::op& each : work.ops) {
      if (each.what != replay::op_kind::allocate && each.what != replay::op_kind::free) continue;
      const std::uint64_t bytes = work.blocks[each.block].bytes;
      if (bytes == 0) continue;
      const bool allocates = each.what == replay::op_kind::allocate;
      const double taken = into.time([&] {
        if (allocates) {
          at[each.block] = memory.allocate(bytes, streams[each.stream]);
        } else {
          memory.deallocate(at[each.block], bytes, streams[each.stream]);
        }
      });
      if (!allocates) at[each.block] = nullptr;
      const pool_statistics after = memory.statistics();
      const std::uint64_t growths = after.growths - before.growths,
                          stitches = after.stitches - before.stitches;
      const std::uint64_t seals = after.seals - before.seals;
      std::string path;
      double share = taken;
      if (!allocates) {
        path = seals == 0 ? "deallocation" : "deallocation+seal";
      } else if (growths + stitches > 0) {
        path = stitches == 0 ? "growth" : "move";
        into.counted_as_heap |= after.heap_hits > before.heap_hits;
        share = taken / static_cast<double>(growths + stitches);
      } else if (after.thread_cache_hits > before.thread_cache_hits) {
        path = "thread_cache_hit";
      } else if (after.stream_cache_hits > before.stream_cache_hits) {
        path = "stream_cache_hit";
      } else {
        path = "heap_hit";
      }
      into.by_path[path].push_back(share);
      before = after;
    }
    for (std::uint32_t block = 0; block < at.size(); ++block) {
      if (at[block] != nullptr)
        memory.deallocate(at[block], work.blocks[block].bytes, streams[work.blocks[block].stream]);
    }
  }
}

void measure_arena(const replay::workload& work, samples& into) {
  auto gpu =
      std::make_shared<null_driver>(null_driver::settings{.memory_bytes = std::uint64_t{1} << 40});
  const auto streams = make_streams(*gpu, work.streams.size());
  auto arena = replay::find_strategy("fixed-arena")->make();
  replay::strategy_setting setting;
  setting.gpu = gpu;
  setting.streams = streams;
  setting.work = &work;
  if (!arena->prepare(setting)) return;
  std::vector<device_address> at(work.blocks.size());
  for (const replay::op& each : work.ops) {
    const bool allocates = each.what == replay::op_kind::allocate;
    if (!allocates && each.what != replay::op_kind::free) continue;
    const std::uint64_t bytes = work.blocks[each.block].bytes;
    if (bytes == 0) continue;
    bool right = true;
    const double taken = into.time([&] {
      if (allocates) {
        auto answer = arena->allocate(bytes, each.stream);
        right = answer.has_value();
        if (right) at[each.block] = *answer;
      } else {
        right = arena->free(at[each.block], bytes, each.stream, {}).has_value();
      }
    });
    if (right)
      into.by_path[allocates ? "fixed_arena_allocate" : "fixed_arena_free"].push_back(taken);
  }
  static_cast<void>(arena->finish());
}

// What the do-nothing driver itself takes for the two questions of a plain allocation.
double measure_questions() {
  null_driver gpu;
  const auto streams = make_streams(gpu, 1);
  constexpr int calls = 1'000'000;
  const std::uint64_t before = now_ns();
  for (int i = 0; i < calls; ++i) {
    std::uint64_t id = 0;
    capture_info info;
    static_cast<void>(static_cast<driver&>(gpu).stream_id(streams[0], &id));
    static_cast<void>(static_cast<driver&>(gpu).stream_capture(streams[0], &info));
  }
  return static_cast<double>(now_ns() - before) / calls;
}

std::string host_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

int main(int count, char** arguments) {
  bench::command_line line("path_costs");
  bench::result_options kept;
  std::vector<std::string> traces;
  kept.add_to(line);
  line.words(traces, bench::command_line::inputs::at_least_one, "recorded traces");
  line.read(count, arguments);
  bench::check_may_write(kept);
  samples all;
  std::vector<double> clock(10'001);
  for (double& each : clock) {
    const std::uint64_t before = now_ns();
    each = static_cast<double>(now_ns() - before);
  }
  all.clock_ns = median(clock);
  const double questions_ns = measure_questions();
  for (const std::string& trace : traces) {
    const replay::workload work = load(trace);
    measure_pool(work, all);
    measure_arena(work, all);
  }
  std::map<std::string, double> mean;
  bench::value raw;
  for (auto& [path, values] : all.by_path) {
    mean[path] = trimmed_mean(values);
    raw[path] = {{"count", values.size()}, {"mean_ns", mean[path]}, {"median_ns", median(values)}};
  }
  bench::value costs;
  const auto net = [&](const char* path) { return std::max(0.0, mean[path] - questions_ns); };
  for (const char* path : {"thread_cache_hit", "stream_cache_hit", "heap_hit"})
    costs[path] = net(path);
  for (const char* path : {"growth", "move"}) {
    const double whole = mean.contains(path) ? net(path) : 0.0;
    costs[path] = std::max(0.0, whole - (all.counted_as_heap ? net("heap_hit") : 0.0));
  }
  costs["deallocation"] = mean["deallocation"];
  costs["seal"] = mean.contains("deallocation+seal")
                      ? std::max(0.0, mean["deallocation+seal"] - mean["deallocation"])
                      : 0.0;
  for (const char* path : {"fixed_arena_allocate", "fixed_arena_free"}) costs[path] = mean[path];
  bench::value made = bench::result_of("path_costs", kept);
  made["host"] = host_name();
  made["clock_ns"] = all.clock_ns;
  made["driver_questions_ns"] = questions_ns;
  made["path_ns"] = costs;
  made["samples"] = raw;
  made["traces"] = bench::value::list({traces.begin(), traces.end()});
  std::printf("%s\n", made.json(2).c_str());
  bench::write_result(made, kept);
  return 0;
}
