// The planner over the published instances, its own generated ones, and the traces' iterations: one JSON document.
// usage: planning DATA_FOLDER [SECONDS_EACH]
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "plan/csv.hpp"
#include "plan/generate.hpp"
#include "plan/iteration.hpp"
#include "plan/solve.hpp"
#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

using namespace millpond;
using nlohmann::ordered_json;

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

ordered_json measure(const std::string& name, const plan::problem& of, double limit_s) {
  const double start = now_s();
  double best_at = 0;
  plan::solve_options options;
  options.stop = [&] { return now_s() - start > limit_s; };
  options.progress = [&](std::uint64_t, std::uint64_t) { best_at = now_s() - start; };
  const auto solved = plan::solve(of, options);
  ordered_json out{{"name", name}, {"buffers", of.buffers.size()}};
  if (!solved) {
    out["error"] = solved.error().message;
    return out;
  }
  if (of.capacity) out["capacity_bytes"] = *of.capacity;
  out["outcome"] = to_string(solved->what);
  out["peak_bytes"] = solved->peak;
  out["lower_bound_bytes"] = solved->lower_bound;
  out["over_bound"] = static_cast<double>(solved->peak) / static_cast<double>(solved->lower_bound) - 1;
  out["method"] = solved->stats.method;
  out["nodes"] = solved->stats.nodes;
  out["best_at_s"] = best_at;
  out["seconds"] = now_s() - start;
  return out;
}

ordered_json measure_trace(const std::string& path, double limit_s) {
  ordered_json out{{"name", std::filesystem::path(path).filename().string()}};
  auto source = trace::open_trace(path);
  if (!source) return out["error"] = source.error().message, out;
  trace::lifetime_builder builder(path, {.on_fault = trace::strictness::tolerant});
  const auto read = source->for_each([&](const trace::event& e) { static_cast<void>(builder.add(e)); });
  if (!read) return out["error"] = read.error().message, out;
  const trace::lifetimes lives = builder.finish();
  const double start = now_s();
  const plan::iterations found = plan::find_iterations(lives);
  plan::solve_options options;
  options.stop = [&] { return now_s() - start > limit_s; };
  const auto planned = plan::plan_iterations(found, options);
  if (!planned) return out["error"] = planned.error().message, out;
  out["iterations"] = found.found.size();
  out["shapes"] = found.shapes.size();
  out["lanes"] = found.lanes.size();
  out["planned_bytes"] = planned->planned_bytes;
  out["lower_bound_bytes"] = planned->lower_bound;
  for (std::size_t f = 0; f < plan::fate_count; ++f)
    out[std::string(to_string(static_cast<plan::block_fate>(f))) + "_blocks"] = found.totals[f].blocks;
  out["seconds"] = now_s() - start;
  return out;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string data = count > 1 ? arguments[1] : "data";
  const double limit_s = count > 2 ? std::atof(arguments[2]) : 60;
  ordered_json capacity = ordered_json::array();
  ordered_json smallest = ordered_json::array();
  ordered_json traces = ordered_json::array();
  double sum = 0;
  for (const char* name : {"A", "B", "D", "E", "G", "I", "J"}) {
    auto file = plan::read_csv(data + "/planning/" + name + ".1048576.csv");
    if (!file) return std::cerr << file.error().message << '\n', 3;
    file->instance.capacity = 1048576;
    capacity.push_back(measure(name, file->instance, limit_s));
    sum += capacity.back()["seconds"].get<double>();
  }
  for (const char* name : {"D.1048576.csv", "J.1048576.csv", "G_1.csv", "pangu_2.6B.csv"}) {
    auto file = plan::read_csv(data + "/planning/" + name);
    if (!file) return std::cerr << file.error().message << '\n', 3;
    smallest.push_back(measure(name, file->instance, limit_s));
  }
  const plan::generate_options large{.seed = 1, .buffers = 100'000, .steps = 100'000, .capacity = 100'000'000};
  smallest.push_back(measure("generated random, 100,000 buffers", plan::generate_random(large), limit_s));
  smallest.push_back(measure("generated training step, 100,000 buffers", plan::generate_training(large), limit_s));
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    capacity.push_back(measure("generated perfect, seed " + std::to_string(seed),
                               plan::generate_perfect({.seed = seed, .buffers = 150, .steps = 80}), limit_s));
  for (const char* name : {"resnet_serving", "bert_varlen", "gpt2_generate", "llama_train", "multistream_serving"})
    traces.push_back(measure_trace(data + "/traces/" + name + ".csv.gz", limit_s));
  std::cout << ordered_json{{"limit_s", limit_s}, {"published_capacity_seconds", sum}, {"capacity", capacity},
                            {"smallest", smallest}, {"traces", traces}}.dump(1) << '\n';
}
