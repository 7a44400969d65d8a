// What slack buys: reserved over peak, total time in the allocator and the warm 99th percentile for
// a row of slacks, each workload. The streams really run: every block is written by a kernel and
// checked before its free.
//   bench/fragmentation [--gpu N|sim] [--slack A,B,...] [--rounds N] [--pace PACE]
//   [--no-context-fences] [--out FILE] INPUT...
// INPUT: a recording, or shape:NAME[:SEED] (trace/synthetic/shapes.hpp). A recording of several
// streams is paced by its own pauses, since what one stream freed serves another when its fence has
// passed. On one stream nothing depends on the pace, so that it runs flat out (--pace recorded
// paces it too); a shape's times are made up, so it always does. Peers' points come from
// bench/traces.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "bench/support/measure.hpp"
#include "bench/support/result_file.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "replay/run.hpp"
#include "trace/source.hpp"
#include "trace/synthetic/shapes.hpp"

using namespace millpond;

namespace {

// What the library does by default, but for the slack; keeps what the report needs.
class measured_pool final : public replay::strategy {
 public:
  struct findings {
    std::vector<pool_statistics> rounds;  // at the end of each
    std::vector<float> allocate_ns;       // of all rounds, in order
    std::uint64_t allocations_a_round = 0;
  };
  measured_pool(double slack, context_fences fences, findings& to)
      : slack_(slack), fences_(fences), to_(to) {}

  result<void> prepare(const replay::strategy_setting& setting) override {
    streams_.assign(setting.streams.begin(), setting.streams.end());
    clock_ = setting.clock;
    pool_options options;
    options.clock = setting.clock;
    options.slack = slack_;
    options.fences = fences_;
    auto made = pool::create(setting.gpu, options);
    if (!made) return made.error();
    pool_ = std::move(*made);
    return {};
  }
  result<device_address> allocate(std::uint64_t bytes, std::uint16_t stream) override {
    if (!to_.allocate_ns.empty() && to_.allocate_ns.size() % to_.allocations_a_round == 0)
      to_.rounds.push_back(pool_->statistics());
    const std::uint64_t before = clock_();
    auto answer = pool_->try_allocate(bytes, default_alignment, streams_[stream]);
    to_.allocate_ns.push_back(static_cast<float>(clock_() - before));
    if (!answer) return answer.error();
    return reinterpret_cast<device_address>(*answer);
  }
  result<void> use(device_address at, std::uint16_t stream) override {
    return pool_->record_use(reinterpret_cast<void*>(at), streams_[stream]);
  }
  result<void> free(device_address at, std::uint64_t bytes, std::uint16_t stream,
                    std::span<const std::uint16_t>) override {
    return pool_->try_deallocate(reinterpret_cast<void*>(at), bytes, streams_[stream]);
  }
  result<void> finish() override {
    to_.rounds.push_back(pool_->statistics());
    pool_.reset();
    return {};
  }

 private:
  double slack_;
  context_fences fences_;
  findings& to_;
  std::function<std::uint64_t()> clock_;
  std::shared_ptr<pool> pool_;
  std::vector<stream_handle> streams_;
};

[[noreturn]] void stop(const std::string& why) {
  bench::stop_with(3, why);
}

result<trace::trace_data> load(const std::string& input) {
  if (input.rfind("shape:", 0) != 0) return trace::load_trace(input);
  const std::size_t colon = input.find(':', 6);
  const std::uint64_t seed =
      colon == std::string::npos ? 1 : std::strtoull(input.c_str() + colon + 1, nullptr, 10);
  return trace::make_shape(input.substr(6, colon == std::string::npos ? colon : colon - 6), seed);
}

result<std::shared_ptr<driver>> open(const std::string& name) {
  if (name != "sim") return open_cuda_driver(std::atoi(name.c_str()));
  auto made = simulated_gpu::create();
  if (!made) return made.error();
  return std::shared_ptr<driver>(*made);
}

}  // namespace

int main(int count, char** arguments) {
  std::string gpu_name = "0";
  bench::result_options kept;
  std::vector<std::string> inputs;
  std::vector<double> slacks{0, 0.02, 0.04, 0.08, 0.16};
  std::uint64_t rounds = 3;
  std::string pace = "streams";
  bool no_context_fences = false;
  using bench::command_line;
  command_line line("fragmentation");
  line.option("--gpu", gpu_name, "device number, or sim");
  line.option("--slack", slacks, "slacks, parted by commas");
  line.option("--rounds", rounds,
              "the workload so many times; the first is cold, the last is warm");
  line.one_of("--pace", pace, {"streams", "recorded", "flat-out"},
              "recorded pauses: of recordings of several streams, of all recordings, or none");
  line.flag("--no-context-fences", no_context_fences,
            "as a program that captures graphs of its own would set it");
  kept.add_to(line);
  line.words(inputs, command_line::inputs::at_least_one, "recordings, and shape:NAME[:SEED]");
  line.read(count, arguments);
  bench::check_may_write(kept);
  const context_fences fences =
      no_context_fences ? context_fences::never : context_fences::when_no_known_capture;
  bench::value result = bench::result_of("fragmentation", kept);
  result["rounds"] = rounds;
  result["rows"] = bench::value::list();
  std::printf("%-28s %6s %8s %8s %6s %9s %9s %9s %7s %6s %7s %6s %6s\n", "workload", "slack",
              "cold", "after all", "steady", "cold ms", "warm ms", "p99 us", "made", "moved",
              "made", "moved", "again");
  std::printf("%-28s %6s %8s %8s %6s %9s %9s %9s %7s %6s %7s %6s %6s\n", "", "", "", "", "", "", "",
              "", "cold", "cold", "later", "later", "later");
  for (const std::string& input : inputs) {
    auto loaded = load(input);
    if (!loaded) stop(loaded.error().message);
    const auto work = replay::lower(*loaded, {});
    if (!work) stop(work.error().message);
    const std::string name = std::filesystem::path(input).filename().string();
    const bool recorded = input.rfind("shape:", 0) != 0;
    const bool paced =
        recorded && (pace == "recorded" || (pace == "streams" && work->streams.size() > 1));
    for (const double slack : slacks) {
      bench::value row{{"workload", name}, {"slack", slack}, {"paced", paced}};
      auto gpu = open(gpu_name);
      if (!gpu) stop(gpu.error().message);
      result["gpu"] = {{"name", (*gpu)->info().name}, {"simulated", (*gpu)->simulated()}};
      measured_pool::findings found;
      for (const replay::op& each : work->ops) {
        found.allocations_a_round +=
            each.what == replay::op_kind::allocate && work->blocks[each.block].bytes > 0;
      }
      replay::run_options options;
      options.clock = bench::now_ns;
      options.rounds = rounds;
      options.pace = paced ? replay::pacing::recorded : replay::pacing::flat_out;
      options.make = [&] { return std::make_unique<measured_pool>(slack, fences, found); };
      const auto outcome =
          replay::run(*work, *replay::find_strategy("millpond-pool"), *gpu, options);
      if (!outcome) stop(outcome.error().message);
      const double peak = static_cast<double>(outcome->peak_live_bytes);
      const auto ratio_after = [&](const pool_statistics& s) {
        return static_cast<double>(s.peak_reserved_bytes) / peak;
      };
      const pool_statistics& first = found.rounds.front();
      const pool_statistics& last = found.rounds.back();
      // The first round after which no more was reserved.
      std::uint64_t settled = 0;
      while (found.rounds[settled].peak_reserved_bytes < last.peak_reserved_bytes) ++settled;
      if (found.allocate_ns.size() > found.allocations_a_round) {
        found.allocate_ns.erase(
            found.allocate_ns.begin(),
            found.allocate_ns.end() - static_cast<std::ptrdiff_t>(found.allocations_a_round));
      }
      row["cold_ratio"] = ratio_after(first);
      row["ratio"] = ratio_after(last);
      row["settled_after_round"] = settled + 1;
      row["round_ms"] = bench::value::list();
      for (const double ns : outcome->round_allocator_ns) row["round_ms"].push_back(ns / 1e6);
      row["cold_ms"] = outcome->round_allocator_ns.front() / 1e6;
      row["warm_ms"] = outcome->round_allocator_ns.back() / 1e6;
      row["warm_allocate_p99_us"] = bench::percentile(found.allocate_ns, 0.99) / 1e3;
      row["cold_growths"] = first.growths;
      row["cold_stitches"] = first.stitches;
      row["growths"] = last.growths;
      row["stitches"] = last.stitches;
      row["stitch_reuses"] = last.stitch_reuses;
      row["thread_caches_flushed"] = last.thread_caches_flushed;
      row["host_waits"] = last.host_waits;
      row["metadata_share"] =
          static_cast<double>(last.metadata_bytes) / static_cast<double>(last.peak_reserved_bytes);
      row["failures"] = outcome->failures;
      row["findings"] = outcome->violation_count;
      std::printf("%-28s %6.3f %8.4f %8.4f %6lu %9.2f %9.2f %9.2f %7lu %6lu %7lu %6lu %6lu\n",
                  name.c_str(), slack, ratio_after(first), ratio_after(last), settled + 1,
                  row["cold_ms"].number(), row["warm_ms"].number(),
                  row["warm_allocate_p99_us"].number(), first.growths, first.stitches,
                  last.growths - first.growths, last.stitches - first.stitches,
                  last.stitch_reuses - first.stitch_reuses);
      std::fflush(stdout);
      result["rows"].push_back(std::move(row));
    }
  }
  bench::write_result(result, kept);
  return 0;
}
