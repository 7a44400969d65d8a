// The planner over the published instances, its own generated ones, and the traces' iterations.
// Each is measured in a process of its own, so that its peak of memory is its own.
//
//     planning [--data FOLDER] [--seconds 60] [--out FILE] [--note TEXT] [--only NAME]
//
// Wall seconds, and processor seconds of the one thread, which say what an idle core would take.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "millpond_commit.hpp"

#include "plan/csv.hpp"
#include "plan/generate.hpp"
#include "plan/iteration.hpp"
#include "plan/solve.hpp"
#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

using namespace millpond;
using nlohmann::ordered_json;

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
  out["over_bound"] =
      static_cast<double>(solved->peak) / static_cast<double>(solved->lower_bound) - 1;
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
  const auto read =
      source->for_each([&](const trace::event& e) { static_cast<void>(builder.add(e)); });
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
  out["caches"] = found.groups.size();
  out["planned_bytes"] = planned->planned_bytes;
  out["lower_bound_bytes"] = planned->lower_bound;
  for (std::size_t f = 0; f < plan::fate_count; ++f)
    out[std::string(to_string(static_cast<plan::block_fate>(f))) + "_blocks"] =
        found.totals[f].blocks;
  out["seconds"] = now_s() - start;
  return out;
}

// Runs the measurement in a child and adds what it took: memory of the whole process, and processor
// time.
ordered_json alone(const std::function<ordered_json()>& measurement) {
  int ends[2];
  if (pipe(ends) != 0) return {{"error", "pipe"}};
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const std::string text = measurement().dump();
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t wrote = write(ends[1], text.data() + at, text.size() - at);
      if (wrote <= 0) _exit(1);
      at += static_cast<std::size_t>(wrote);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char chunk[4096];
  for (ssize_t got = 0; (got = read(ends[0], chunk, sizeof chunk)) > 0;)
    text.append(chunk, static_cast<std::size_t>(got));
  close(ends[0]);
  rusage used{};
  int status = 0;
  if (wait4(child, &status, 0, &used) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return {{"error", "the child failed"}};
  ordered_json out = ordered_json::parse(text);
  out["processor_seconds"] =
      static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
      static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  out["peak_memory_bytes"] = static_cast<std::uint64_t>(used.ru_maxrss) * 1024;
  std::cerr << out.dump() << '\n';
  return out;
}

ordered_json measure_file(const std::string& path, const std::string& name,
                          std::optional<std::uint64_t> capacity, double limit_s) {
  return alone([&]() -> ordered_json {
    auto file = plan::read_csv(path);
    if (!file) return {{"name", name}, {"error", file.error().message}};
    file->instance.capacity = capacity;
    return measure(name, file->instance, limit_s);
  });
}

}  // namespace

int main(int count, char** arguments) {
  std::string data = "data";
  std::string out_file;
  std::string note;
  std::string only;
  double limit_s = 60;
  CLI::App app("millpond benchmark: planning");
  app.add_option("--data", data, "the repository's data folder")->capture_default_str();
  app.add_option("--seconds", limit_s, "time limit of each instance")->capture_default_str();
  app.add_option("--out", out_file, "result file (JSON); the standard output without it");
  app.add_option("--note", note, "about this run, for the result file");
  app.add_option("--only", only, "only what has this in its name");
  CLI11_PARSE(app, count, arguments);
  const auto wanted = [&](const std::string& name) { return name.find(only) != std::string::npos; };

  ordered_json capacity = ordered_json::array();
  ordered_json smallest = ordered_json::array();
  ordered_json traces = ordered_json::array();
  double wall = 0;
  double processor = 0;
  for (const char* name : {"A", "B", "D", "E", "G", "I", "J"}) {
    if (!wanted(name)) continue;
    capacity.push_back(
        measure_file(data + "/planning/" + name + ".1048576.csv", name, 1048576, limit_s));
    wall += capacity.back().value("seconds", 0.0);
    processor += capacity.back().value("processor_seconds", 0.0);
  }
  for (const char* name : {"G_1.csv", "pangu_2.6B.csv", "D.1048576.csv", "J.1048576.csv"})
    if (wanted(name))
      smallest.push_back(measure_file(data + "/planning/" + name, name, std::nullopt, limit_s));
  const plan::generate_options large{
      .seed = 1, .buffers = 100'000, .steps = 100'000, .capacity = 100'000'000};
  const auto generated = [&](ordered_json& into, const std::string& name,
                             const std::function<plan::problem()>& make) {
    if (wanted(name)) into.push_back(alone([&] { return measure(name, make(), limit_s); }));
  };
  generated(smallest, "generated random, 100,000 buffers",
            [&] { return plan::generate_random(large); });
  generated(smallest, "generated training step, 100,000 buffers",
            [&] { return plan::generate_training(large); });
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    generated(capacity, "generated perfect, seed " + std::to_string(seed),
              [&] { return plan::generate_perfect({.seed = seed, .buffers = 150, .steps = 80}); });
  for (const char* name :
       {"resnet_serving", "bert_varlen", "gpt2_generate", "llama_train", "multistream_serving"})
    if (wanted(name))
      traces.push_back(
          alone([&] { return measure_trace(data + "/traces/" + name + ".csv.gz", limit_s); }));
  const ordered_json result{{"benchmark", "planning"},
                            {"commit", MILLPOND_COMMIT},
                            {"compiler", MILLPOND_COMPILER},
                            {"host_threads", std::thread::hardware_concurrency()},
                            {"seed", 1},
                            {"limit_s", limit_s},
                            {"note", note},
                            {"published_capacity_seconds", wall},
                            {"published_capacity_processor_seconds", processor},
                            {"capacity", capacity},
                            {"smallest", smallest},
                            {"traces", traces}};
  bool failed = false;
  for (const ordered_json* rows : {&capacity, &smallest, &traces})
    for (const ordered_json& row : *rows) failed |= row.contains("error");
  if (out_file.empty()) return std::cout << result.dump(1) << '\n', failed ? 1 : 0;
  std::ofstream file(out_file);
  file << result.dump(1) << '\n';
  if (file.flush()) return failed ? 1 : 0;
  std::cerr << out_file << ": cannot be written\n";
  return 3;
}
