#include "bench/support/harness.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "bench/support/subjects.hpp"
#include "driver/null/null_driver.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::bench {
namespace {

std::shared_ptr<driver> opened(const std::string& name) {
  if (name == "sim") return need(simulated_gpu::create(), "the simulated GPU");
  if (name == "null") return std::make_shared<null_driver>();
  return need(open_cuda_driver(std::atoi(name.c_str())), "the device");
}

double cost_of_the_clock() {
  std::vector<float> cost;
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t a = now_ns();
    const std::uint64_t b = now_ns();
    cost.push_back(static_cast<float>(b - a));
  }
  return percentile(cost, 0.5);
}

}  // namespace

harness::harness(const char* name, int count, char** arguments) {
  command_line line(name);
  line.option("--peer", options_.peer_files,
              "plug-in with peers (peer_cuda.so, peer_rmm.so, peer_torch.so)");
  line.option("--only", options_.only, "only allocators whose name holds this");
  options_.result.add_to(line);
  line.option("--gpu", options_.gpu,
              "device number, sim, or null (calls that answer at once: the pool's own cost)");
  line.option("--seed", options_.seed, "of random choices");
  line.option("--scale", options_.scale, "share of the full number of operations");
  line.option("--seconds", options_.seconds, "how long, where the benchmark runs for a time");
  line.flag("--paced", options_.paced,
            "recordings keep their pauses, and a kernel writes each block on its stream");
  line.words(options_.inputs, command_line::inputs::some,
             "input files, where the benchmark takes some");
  line.read(count, arguments);
  check_may_write(options_.result);
  gpu_ = opened(options_.gpu);
  simulated_ = dynamic_cast<const simulated_gpu*>(gpu_.get());
  if (!gpu_->bind_thread().ok()) stop_with(4, "cannot bind the device");
  add_millpond(subjects_, gpu_);
  for (const std::string& file : options_.peer_files) add_peers(subjects_, file);
  std::erase_if(subjects_, [this](const auto& s) {
    return s->name().find(options_.only) == std::string::npos;
  });
  clock_ns_ = cost_of_the_clock();
  result_ = result_of(name, options_.result);
  result_["gpu"] = {{"name", gpu_->info().name}, {"simulated", gpu_->simulated()}};
  result_["driver"] = gpu_->info().driver_version;
  result_["seed"] = options_.seed;
  result_["scale"] = options_.scale;
  result_["paced"] = options_.paced;
  result_["host_threads"] = std::thread::hardware_concurrency();
  result_["clock_ns"] = clock_ns_;
  result_["rows"] = value::list();
  if (gpu_->simulated())
    std::printf(
        "no card: the times below are of this host and of the simulator or the null driver\n");
  std::printf("%s on %s, commit %s, one reading of the clock %.1f ns\n", name,
              gpu_->info().name.c_str(), own_commit(), clock_ns_);
}

harness::~harness() {
  write_result(result_, options_.result);
}

std::uint64_t harness::operations(std::uint64_t full) const {
  return std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(static_cast<double>(full) * options_.scale));
}

std::uint64_t harness::gpu_time_ns() const {
  return simulated_ != nullptr ? simulated_->now_ns() : now_ns();
}

bool harness::start(subject& of, value with) {
  std::string why;
  if (of.start(why)) return true;
  with["name"] = of.name();
  with["failed"] = why;
  add(std::move(with));
  return false;
}

void harness::each_subject(std::initializer_list<std::string_view> left_out,
                           const std::function<void(subject&)>& measure, const value& with) {
  for (const auto& of : subjects_) {
    if (std::ranges::find(left_out, of->name()) != left_out.end() || !start(*of, with)) continue;
    measure(*of);
    of->stop();
  }
}

// Written after each row, so that a peer that ends the process takes nothing with it.
void harness::add(value row) {
  std::string line;
  for (std::size_t i = 0; i < row.names().size(); ++i) {
    const value& each = row.items()[i];
    line += row.names()[i] + " " + (each.what() == value::kind::text ? each.text() : each.json()) +
            "  ";
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  result_["rows"].push_back(std::move(row));
  write_result(result_, options_.result);
}

stream_set::stream_set(driver& gpu, std::size_t count) : gpu_(gpu), all_(count) {
  for (stream_handle& each : all_) need(gpu_.stream_create(&each), "making a stream");
}
stream_set::~stream_set() {
  for (const stream_handle each : all_) {
    static_cast<void>(gpu_.stream_synchronize(each));
    static_cast<void>(gpu_.stream_destroy(each));
  }
}
void stream_set::synchronize() {
  for (const stream_handle each : all_) need(gpu_.stream_synchronize(each), "waiting for a stream");
}
std::vector<std::unique_ptr<session>> stream_set::open(subject& of) const {
  std::vector<std::unique_ptr<session>> out;
  out.reserve(all_.size());
  for (const stream_handle each : all_) out.push_back(of.open(each));
  return out;
}

std::uint64_t share_of(const subject& of, std::uint64_t full, std::uint64_t slower) {
  return of.name().starts_with("millpond") ? full : full / slower;
}

value paths_of(const pool_statistics& now, const pool_statistics& before) {
  return {{"allocations", now.allocations - before.allocations},
          {"thread_cache_hits", now.thread_cache_hits - before.thread_cache_hits},
          {"stream_cache_hits", now.stream_cache_hits - before.stream_cache_hits},
          {"heap_hits", now.heap_hits - before.heap_hits},
          {"growths", now.growths - before.growths},
          {"stitches", now.stitches - before.stitches},
          {"stitch_reuses", now.stitch_reuses - before.stitch_reuses},
          {"seals", now.seals - before.seals},
          {"fence_queries", now.fence_queries - before.fence_queries},
          {"thread_caches_flushed", now.thread_caches_flushed - before.thread_caches_flushed},
          {"lock_waits", now.lock_waits - before.lock_waits}};
}

void on_threads(driver& gpu, unsigned threads, const std::function<void(unsigned)>& work) {
  std::vector<std::thread> all;
  for (unsigned t = 0; t < threads; ++t) {
    all.emplace_back([&gpu, &work, t] {
      static_cast<void>(gpu.bind_thread());
      work(t);
    });
  }
  for (std::thread& t : all) t.join();
}

}  // namespace millpond::bench
