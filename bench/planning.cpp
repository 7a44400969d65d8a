// The planner over the published instances, its own generated ones, and the traces' iterations.
// Each is measured in a process of its own, so that its peak of memory is its own.
//
//     planning [--data FOLDER] [--seconds 60] [--out FILE] [--note TEXT] [--only NAME]
//
// Wall seconds, and processor seconds of the one thread, which say what an idle core would take.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <thread>

#include "bench/support/measure.hpp"
#include "bench/support/result_file.hpp"

#include "plan/csv.hpp"
#include "plan/generate.hpp"
#include "plan/iteration.hpp"
#include "plan/solve.hpp"
#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

using namespace millpond;
using bench::value;

namespace {

double now_s() {
  return static_cast<double>(bench::now_ns()) / 1e9;
}

value measure(const std::string& name, const plan::problem& of, double limit_s) {
  const double start = now_s();
  double best_at = 0;
  plan::solve_options options;
  options.stop = [&] { return now_s() - start > limit_s; };
  options.progress = [&](std::uint64_t, std::uint64_t) { best_at = now_s() - start; };
  const auto solved = plan::solve(of, options);
  value out{{"name", name}, {"buffers", of.buffers.size()}};
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

value measure_trace(const std::string& path, double limit_s) {
  value out{{"name", std::filesystem::path(path).filename().string()}};
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
  out["groups"] = found.groups.size();
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
value alone(const std::function<value()>& measurement) {
  int ends[2];
  if (pipe(ends) != 0) return {{"error", "pipe"}};
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const std::string text = measurement().json();
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
  value out = value::from_json(text);
  out["processor_seconds"] =
      static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
      static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  out["peak_memory_bytes"] = static_cast<std::uint64_t>(used.ru_maxrss) * 1024;
  std::cerr << out.json() << '\n';
  return out;
}

value measure_file(const std::string& path, const std::string& name,
                   std::optional<std::uint64_t> capacity, double limit_s) {
  return alone([&]() -> value {
    auto file = plan::read_csv(path);
    if (!file) return {{"name", name}, {"error", file.error().message}};
    file->instance.capacity = capacity;
    return measure(name, file->instance, limit_s);
  });
}

double number_of(const value& row, const char* name) {
  const value* const found = row.find(name);
  return found != nullptr ? found->number() : 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::string data = "data";
  std::string note;
  std::string only;
  double limit_s = 60;
  bench::command_line line("planning");
  bench::result_options kept;
  line.option("--data", data, "the repository's data folder");
  line.option("--seconds", limit_s, "time limit of each instance");
  kept.add_to(line);
  line.option("--note", note, "about this run, for the result file");
  line.option("--only", only, "only what has this in its name");
  line.read(count, arguments);
  bench::check_may_write(kept);
  const auto wanted = [&](const std::string& name) { return name.find(only) != std::string::npos; };

  value capacity = value::list();
  value smallest = value::list();
  value traces = value::list();
  double wall = 0;
  double processor = 0;
  for (const char* name : {"A", "B", "D", "E", "G", "I", "J"}) {
    if (!wanted(name)) continue;
    capacity.push_back(
        measure_file(data + "/planning/" + name + ".1048576.csv", name, 1048576, limit_s));
    wall += number_of(capacity.items().back(), "seconds");
    processor += number_of(capacity.items().back(), "processor_seconds");
  }
  for (const char* name : {"G_1.csv", "pangu_2.6B.csv", "D.1048576.csv", "J.1048576.csv"})
    if (wanted(name))
      smallest.push_back(measure_file(data + "/planning/" + name, name, std::nullopt, limit_s));
  const plan::generate_options large{
      .seed = 1, .buffers = 100'000, .steps = 100'000, .capacity = 100'000'000};
  const auto generated = [&](value& into, const std::string& name,
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
  value result = bench::result_of("planning", kept);
  result["host_threads"] = std::thread::hardware_concurrency();
  result["seed"] = 1;
  result["limit_s"] = limit_s;
  result["note"] = note;
  result["published_capacity_seconds"] = wall;
  result["published_capacity_processor_seconds"] = processor;
  result["capacity"] = capacity;
  result["smallest"] = smallest;
  result["traces"] = traces;
  bool failed = false;
  for (const value* rows : {&capacity, &smallest, &traces})
    for (const value& row : rows->items()) failed |= row.find("error") != nullptr;
  if (kept.out.empty()) std::cout << result.json(1) << '\n';
  bench::write_result(result, kept);
  return failed ? 1 : 0;
}
