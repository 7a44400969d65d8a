// An inference server, and what each way of giving it memory does to its latency.
//
//     inference_server                         the first CUDA device, or the simulated GPU where
//     there is none inference_server --gpu sim --seconds 5   the simulated GPU, five virtual
//     seconds a strategy inference_server --gpu 0 --strategy millpond --json
//
// 16 clients send requests of 1 to 4 items and wait for the answers; a dispatcher makes batches of
// up to 32 items and runs them through 8 layers of matrix products on several streams.
// docs/measured/inference.md has the results.
#include <sched.h>
#include <millpond/base/units.hpp>
#include <millpond/memory/memory_resource.hpp>
#include <millpond/sim/simulated_gpu.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "server.hpp"

namespace {

namespace mp = millpond;
using namespace inference;

struct settings {
  std::string gpu = "auto", cublas;
  std::vector<std::string> strategies, peers;
  double seconds = 5;
  unsigned streams = 3;
  unsigned repeats = 1;
  double think_us = 100;
  std::uint64_t seed = 1;
  bool json = false;
  bool modelled = false;
};

struct outcome {
  std::string name, meaning, failure, counted;
  double seconds = 0;
  std::uint64_t requests = 0, items = 0, batches = 0;
  double per_s = 0, p50_us = 0, p99_us = 0, p999_us = 0, mean_us = 0;
  std::uint64_t peak_bytes = 0;
  std::vector<double> all_p99_us, all_mean_us;  // of every turn, in their order: turn n of all
                                                // strategies is one stretch of time
  std::vector<std::pair<std::string, double>>
      calls_a_batch;  // of the driver, by name, while it served; the simulated GPU's alone
};

[[noreturn]] void usage(const std::string& why) {
  if (!why.empty()) std::fprintf(stderr, "inference_server: %s\n", why.c_str());
  std::fprintf(why.empty() ? stdout : stderr,
               "inference_server [--gpu auto|sim|N] [--seconds S] [--strategy NAME]... [--streams "
               "N] [--think-us U]\n"
               "                 [--repeats N] [--peer PLUGIN.so]... [--cublas libcublas.so] "
               "[--modelled] [--seed N] [--json]\n"
               "strategies: per-request, managed, driver-pool, driver-pool-kept, control-managed, "
               "control-pinned, millpond; by name only:\n"
               "  millpond-exact (each activation of its own size), millpond-activations, "
               "millpond-weights, millpond-pinned (one part from\n"
               "  millpond, the rest as control-pinned); a plug-in's\n"
               "--repeats: every strategy in so many turns, each in an order of its own, after one "
               "that is not counted; the medians are shown\n");
  std::exit(why.empty() ? 0 : 2);
}

settings parse(int count, char** words) {
  settings s;
  const auto number = [](const char* option, const char* text, double least, double most) {
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= least && value <= most)) {
      usage(std::string(option) + ": expected a number from " + std::to_string(least) + " to " +
            std::to_string(most) + ", found `" + text + "`");
    }
    return value;
  };
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&]() -> const char* {
      if (i + 1 == count) usage(word + " needs a value");
      return words[++i];
    };
    if (word == "--gpu")
      s.gpu = value();
    else if (word == "--seconds")
      s.seconds = number("--seconds", value(), 0.001, 3600);
    else if (word == "--strategy")
      s.strategies.emplace_back(value());
    else if (word == "--streams")
      s.streams = static_cast<unsigned>(number("--streams", value(), 1, 64));
    else if (word == "--repeats")
      s.repeats = static_cast<unsigned>(number("--repeats", value(), 1, 1000));
    else if (word == "--think-us")
      s.think_us = number("--think-us", value(), 0, 1e6);
    else if (word == "--peer")
      s.peers.emplace_back(value());
    else if (word == "--cublas")
      s.cublas = value();
    else if (word == "--modelled")
      s.modelled = true;
    else if (word == "--seed")
      s.seed = static_cast<std::uint64_t>(number("--seed", value(), 0, 1e15));
    else if (word == "--json")
      s.json = true;
    else if (word == "sim")
      s.gpu = "sim";
    else if (word == "--help" || word == "-h")
      usage("");
    else
      usage("unknown option " + word);
  }
  return s;
}

std::shared_ptr<mp::driver> open_gpu(const settings& s) {
  if (s.gpu != "sim") {
    auto card = mp::open_cuda_driver(s.gpu == "auto" ? 0 : std::atoi(s.gpu.c_str()));
    if (card) return *card;
    if (s.gpu != "auto") {
      std::fprintf(stderr, "inference_server: %s\n", card.error().message.c_str());
      std::exit(4);
    }
    std::fprintf(stderr, "No card is used: %s\n", card.error().message.c_str());
  }
  mp::simulated_gpu_options options;
  options.seed = s.seed;
  options.check = mp::simulated_gpu_options::checker::off;  // several thousand batches of one
                                                            // program: its order is plain
  auto made = mp::simulated_gpu::create(options);
  if (!made) throw mp::memory_error(made.error());
  return *made;
}

// A client's next request: when it comes, after the answer to the one before, and how large it is.
class client {
 public:
  client(std::uint64_t seed, double think_us, std::uint64_t largest)
      : numbers_(seed), think_(think_us), items_(1, largest) {}
  std::uint64_t think_ns() {
    if (think_ <= 0) return 0;
    return static_cast<std::uint64_t>(std::exponential_distribution<double>(1 / think_)(numbers_) *
                                      1e3);
  }
  std::uint64_t items() { return items_(numbers_); }

 private:
  std::mt19937_64 numbers_;
  double think_;
  std::uniform_int_distribution<std::uint64_t> items_;
};

double percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

// The dispatcher has a processor of its own while a trial runs, as in a server that means it, and
// the clients have the others: else the tail is the scheduler's. Where there are fewer than four
// nothing is bound.
class own_processor {
 public:
  own_processor() {
    known_ = sched_getaffinity(0, sizeof all_, &all_) == 0 && CPU_COUNT(&all_) >= 4;
    if (!known_) return;
    cpu_set_t others = all_;
    for (int i = CPU_SETSIZE - 1; i >= 0; --i) {
      if (!CPU_ISSET(i, &all_)) continue;
      last_ = i;
      break;
    }
    CPU_CLR(last_, &others);
    static_cast<void>(sched_setaffinity(0, sizeof others, &others));  // threads made now inherit it
  }
  void take() const {
    if (!known_) return;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(last_, &own);
    static_cast<void>(sched_setaffinity(0, sizeof own, &own));
  }
  ~own_processor() {
    if (known_) static_cast<void>(sched_setaffinity(0, sizeof all_, &all_));
  }
  own_processor(const own_processor&) = delete;
  own_processor& operator=(const own_processor&) = delete;

 private:
  cpu_set_t all_{};
  int last_ = 0;
  bool known_ = false;
};

// One strategy on one GPU: prepared, run for the time, and its latencies.
class trial {
 public:
  trial(const settings& s, const server_options& options, const network_shape& shape)
      : settings_(s), options_(options), shape_(shape) {
    for (unsigned i = 0; i < options.clients; ++i)
      clients_.emplace_back(s.seed * 1000 + i, s.think_us, options.largest_request);
  }

  outcome run(strategy& memory, const std::shared_ptr<mp::driver>& gpu) {
    outcome made;
    made.name = memory.name();
    made.meaning = memory.meaning();
    surroundings where{gpu, {}, options_.largest_batch * shape_.item_bytes(), shape_.layers + 1};
    where.most_bytes = settings_.streams * where.activations * where.largest_bytes +
                       shape_.layers * shape_.weights_bytes();
    for (unsigned i = 0; i < settings_.streams; ++i) {
      mp::stream_handle stream = nullptr;
      if (!gpu->stream_create(&stream).ok()) return failed(made, "no stream");
      where.streams.push_back(stream);
    }
    std::uint64_t free_before = 0, total = 0;
    static_cast<void>(gpu->memory_info(&free_before, &total));
    std::string why;
    auto layers = gpu->simulated() || settings_.modelled
                      ? make_modelled_network(shape_, *gpu, where.streams)
                      : make_cublas_network(shape_, settings_.cublas, where.streams, why);
    if (layers == nullptr)
      return failed(
          made, "cuBLAS is not to be had (" + why + "): name it with --cublas, or use --modelled");
    network_name = layers->name();
    made.failure = memory.begin(where);
    if (made.failure.empty()) {
      server serving(where, memory, *layers, shape_, options_);
      made.failure = serving.prepare();
      if (made.failure.empty()) {
        if (auto* simulated = dynamic_cast<mp::simulated_gpu*>(gpu.get())) {
          in_virtual_time(serving, *simulated, made);
        } else {
          in_real_time(serving, *gpu, free_before, made);
        }
        made.failure = serving.failure();
        made.batches = serving.counts().batches;
        made.items = serving.counts().items;
        made.peak_bytes += serving.counts().peak_managed_bytes * (gpu->simulated() ? 1 : 0);
        made.counted = memory.counted();
      }
      serving.end();
      memory.end();
    } else {
      memory.end();
    }
    layers.reset();
    for (const mp::stream_handle each : where.streams) static_cast<void>(gpu->stream_destroy(each));
    std::ranges::sort(latencies_);
    made.requests = latencies_.size();
    made.p50_us = percentile(latencies_, 0.5);
    made.p99_us = percentile(latencies_, 0.99);
    made.p999_us = percentile(latencies_, 0.999);
    for (const double each : latencies_)
      made.mean_us += each / static_cast<double>(latencies_.size());
    made.per_s = made.seconds > 0 ? static_cast<double>(made.requests) / made.seconds : 0;
    made.all_p99_us = {made.p99_us};
    made.all_mean_us = {made.mean_us};
    return made;
  }

  std::string network_name;

 private:
  static outcome failed(outcome made, std::string why) {
    made.failure = std::move(why);
    return made;
  }

  // Everything on one thread, on the simulator's clock: what the card's threads do, in the order of
  // their times.
  void in_virtual_time(server& serving, mp::simulated_gpu& gpu, outcome& made) {
    const auto begin = gpu.now_ns();
    const auto warm = begin + static_cast<std::uint64_t>(settings_.seconds * 0.1e9);
    const auto end = warm + static_cast<std::uint64_t>(settings_.seconds * 1e9);
    constexpr std::uint64_t never = ~std::uint64_t{0};
    std::vector<std::uint64_t> next(clients_.size());
    for (std::size_t i = 0; i < next.size(); ++i) next[i] = begin + clients_[i].think_ns();
    gpu.reset_counters();
    const auto answered = [&](const request& r) {
      const std::uint64_t now = gpu.now_ns();
      if (r.arrived_ns >= warm) latencies_.push_back(static_cast<double>(now - r.arrived_ns) / 1e3);
      if (managed_)
        gpu.touch_managed(reinterpret_cast<mp::device_address>(serving.buffer(r.client)),
                          r.items * shape_.item_bytes(), mp::access_kind::read);
      next[r.client] = now + clients_[r.client].think_ns();
    };
    managed_ = made.name == "managed";
    while (gpu.now_ns() < end && serving.failure().empty()) {
      for (unsigned i = 0; i < clients_.size(); ++i) {
        if (next[i] > gpu.now_ns()) continue;
        const std::uint64_t items = clients_[i].items();
        if (managed_)
          gpu.touch_managed(reinterpret_cast<mp::device_address>(serving.buffer(i)),
                            items * shape_.item_bytes());
        serving.submit({i, items, next[i]});
        next[i] = never;
      }
      if (serving.step(gpu.now_ns(), answered)) continue;
      const std::uint64_t now = gpu.now_ns();
      std::uint64_t until = std::min(serving.due_ns(), *std::ranges::min_element(next));
      if (serving.busy()) until = std::min(until, now + 1000);
      gpu.advance(until > now && until != never ? until - now : 500);
    }
    made.seconds = static_cast<double>(gpu.now_ns() - warm) / 1e9;
    made.peak_bytes = gpu.physical_peak();
    for (const mp::call_count& each : gpu.call_table()) {
      made.calls_a_batch.emplace_back(
          each.call, static_cast<double>(each.count) /
                         static_cast<double>(std::max<std::uint64_t>(1, serving.counts().batches)));
    }
  }

  void in_real_time(server& serving, mp::driver& gpu, std::uint64_t free_before, outcome& made) {
    using clock = std::chrono::steady_clock;
    const auto now_ns = [] {
      return static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch())
              .count());
    };
    const std::uint64_t warm = now_ns() + static_cast<std::uint64_t>(settings_.seconds * 0.1e9);
    const std::uint64_t end = warm + static_cast<std::uint64_t>(settings_.seconds * 1e9);
    struct alignas(128) answer_box {
      std::atomic<std::uint32_t> answers{0};  // release: the answer is in the client's buffer
      std::vector<double> latencies;
    };
    std::vector<answer_box> boxes(clients_.size());
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    const own_processor processor;
    for (unsigned i = 0; i < clients_.size(); ++i) {
      threads.emplace_back([&, i] {
        unsigned char* const buffer = serving.buffer(i);
        std::uint32_t seen = 0;
        while (!stop.load(std::memory_order_relaxed)) {
          std::this_thread::sleep_for(std::chrono::nanoseconds(clients_[i].think_ns()));
          const std::uint64_t items = clients_[i].items();
          const std::uint64_t bytes = items * shape_.item_bytes();
          for (std::uint64_t at = 0; at < bytes; at += 4096)
            buffer[at] = static_cast<unsigned char>(at >> 12);
          const std::uint64_t sent = now_ns();
          serving.submit({i, items, sent});
          boxes[i].answers.wait(seen, std::memory_order_acquire);
          ++seen;
          if (sent >= warm)
            boxes[i].latencies.push_back(static_cast<double>(now_ns() - sent) / 1e3);
          volatile unsigned char sum = 0;
          for (std::uint64_t at = 0; at < bytes; at += 4096)
            sum = static_cast<unsigned char>(sum + buffer[at]);
        }
      });
    }
    const auto answered = [&](const request& r) {
      boxes[r.client].answers.fetch_add(1, std::memory_order_release);
      boxes[r.client].answers.notify_one();
    };
    processor.take();
    std::uint64_t least_free = free_before, looked = 0;
    while (now_ns() < end && serving.failure().empty()) {
      if (!serving.step(now_ns(), answered)) {
        std::this_thread::yield();
      } else if (++looked % 64 == 0) {
        std::uint64_t free = 0, total = 0;
        if (gpu.memory_info(&free, &total).ok()) least_free = std::min(least_free, free);
      }
    }
    stop.store(true);
    // Whoever waits is answered still; then the queue is empty and the clients end.
    std::atomic<unsigned> ended{0};
    std::thread joiner([&] {
      for (std::thread& each : threads) each.join();
      ended.store(1);
    });
    while (ended.load() == 0) {
      if (serving.failure().empty()) {
        static_cast<void>(serving.step(~std::uint64_t{0} >> 1, answered));
      } else {
        for (unsigned i = 0; i < clients_.size(); ++i) answered({i, 0, 0});
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    joiner.join();
    made.seconds = static_cast<double>(now_ns() - warm) / 1e9;
    made.peak_bytes = free_before - least_free;
    for (const answer_box& each : boxes)
      latencies_.insert(latencies_.end(), each.latencies.begin(), each.latencies.end());
  }

  const settings& settings_;
  server_options options_;
  network_shape shape_;
  std::vector<client> clients_;
  std::vector<double> latencies_;
  bool managed_ = false;
};

// Medians of one strategy's repetitions, each number by itself; the largest peak; counts of them
// all.
outcome together(const std::vector<outcome>& runs) {
  outcome made = runs.front();
  for (const outcome& each : runs) {
    if (!each.failure.empty()) return each;
  }
  const auto median = [&](double outcome::* field) {
    std::vector<double> values;
    for (const outcome& each : runs) values.push_back(each.*field);
    std::ranges::sort(values);
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  };
  for (double outcome::* field :
       {&outcome::per_s, &outcome::mean_us, &outcome::p50_us, &outcome::p99_us, &outcome::p999_us})
    made.*field = median(field);
  made.counted = runs.back().counted;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    made.requests += runs[i].requests;
    made.batches += runs[i].batches;
    made.items += runs[i].items;
    made.peak_bytes = std::max(made.peak_bytes, runs[i].peak_bytes);
    made.all_p99_us.push_back(runs[i].p99_us);
    made.all_mean_us.push_back(runs[i].mean_us);
  }
  return made;
}

void print_table(const std::vector<outcome>& all) {
  std::printf("%-18s %10s %9s %9s %9s %9s %9s %11s\n", "strategy", "requests/s", "mean us",
              "p50 us", "p99 us", "p99.9 us", "batch", "peak memory");
  for (const outcome& o : all) {
    if (!o.failure.empty()) {
      std::printf("%-18s left out: %s\n", o.name.c_str(), o.failure.c_str());
      continue;
    }
    std::printf(
        "%-18s %10.0f %9.0f %9.0f %9.0f %9.0f %9.1f %11s\n", o.name.c_str(), o.per_s, o.mean_us,
        o.p50_us, o.p99_us, o.p999_us,
        static_cast<double>(o.items) / static_cast<double>(std::max<std::uint64_t>(1, o.batches)),
        mp::format_bytes(o.peak_bytes).c_str());
  }
}

std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') made += '\\';
    made += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return made + '"';
}

void print_json(const settings& s, const mp::driver& gpu, const std::string& network,
                const std::vector<outcome>& all) {
  std::printf(
      "{\n \"example\": \"inference_server\",\n \"gpu\": {\"name\": %s, \"simulated\": %s},\n "
      "\"network\": %s,\n"
      " \"seconds\": %g, \"repeats\": %u, \"streams\": %u, \"clients\": 16, \"think_us\": %g, "
      "\"seed\": %llu,\n \"strategies\": [",
      quoted(gpu.info().name).c_str(), gpu.simulated() ? "true" : "false", quoted(network).c_str(),
      s.seconds, s.repeats, s.streams, s.think_us, static_cast<unsigned long long>(s.seed));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const outcome& o = all[i];
    std::printf(
        "%s\n  {\"name\": %s, \"meaning\": %s, \"failure\": %s, \"requests\": %llu, "
        "\"requests_per_s\": %.1f, \"mean_us\": %.1f, "
        "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"batches\": %llu, \"items\": "
        "%llu, \"peak_bytes\": %llu, \"counted\": %s, \"all_p99_us\": [",
        i == 0 ? "" : ",", quoted(o.name).c_str(), quoted(o.meaning).c_str(),
        quoted(o.failure).c_str(), static_cast<unsigned long long>(o.requests), o.per_s, o.mean_us,
        o.p50_us, o.p99_us, o.p999_us, static_cast<unsigned long long>(o.batches),
        static_cast<unsigned long long>(o.items), static_cast<unsigned long long>(o.peak_bytes),
        quoted(o.counted).c_str());
    for (std::size_t r = 0; r < o.all_p99_us.size(); ++r)
      std::printf("%s%.1f", r == 0 ? "" : ", ", o.all_p99_us[r]);
    std::printf("], \"all_mean_us\": [");
    for (std::size_t r = 0; r < o.all_mean_us.size(); ++r)
      std::printf("%s%.1f", r == 0 ? "" : ", ", o.all_mean_us[r]);
    std::printf("]");
    if (!o.calls_a_batch.empty()) {
      std::printf(", \"calls_a_batch\": {");
      for (std::size_t c = 0; c < o.calls_a_batch.size(); ++c) {
        std::printf("%s%s: %.3f", c == 0 ? "" : ", ", quoted(o.calls_a_batch[c].first).c_str(),
                    o.calls_a_batch[c].second);
      }
      std::printf("}");
    }
    std::printf("}");
  }
  std::printf("\n ]\n}\n");
}

}  // namespace

int main(int count, char** words) try {
  const settings s = parse(count, words);
  auto strategies = own_strategies();
  for (const std::string& file : s.peers) {
    std::string why;
    if (!add_peers(file, strategies, why))
      std::fprintf(stderr, "peer left out: %s: %s\n", file.c_str(), why.c_str());
  }
  for (const std::string& wanted : s.strategies) {
    if (std::ranges::none_of(strategies, [&](const auto& each) { return each->name() == wanted; }))
      usage("no strategy " + wanted);
  }
  const auto gpu = open_gpu(s);
  if (!gpu->bind_thread().ok())
    throw std::runtime_error("the device cannot be used by this thread");
  if (!s.json) {
    std::printf("GPU: %s%s\n", gpu->info().name.c_str(),
                gpu->simulated() ? " (simulated: times are virtual)" : "");
  }
  std::string network;
  std::vector<strategy*> chosen;
  for (const auto& each : strategies) {
    const bool named = std::ranges::find(s.strategies, each->name()) != s.strategies.end();
    if (named || (s.strategies.empty() && !each->by_name_only())) chosen.push_back(each.get());
  }
  // In turns, so that a slow minute of the machine falls on all of them, and in another order each
  // time, so that nobody always follows the one that leaves the machine worst. The first turn of
  // several is the machine's own warming.
  std::vector<std::vector<outcome>> runs(chosen.size());
  std::vector<std::size_t> order(chosen.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 shuffling(s.seed);
  const unsigned uncounted = s.repeats > 1 ? 1 : 0;
  for (unsigned r = 0; r < s.repeats + uncounted; ++r) {
    if (s.repeats > 1) std::ranges::shuffle(order, shuffling);
    for (const std::size_t i : order) {
      std::fprintf(stderr, "%s ...\n", chosen[i]->name().c_str());
      trial one(s, {}, {});
      // Each strategy has a simulated GPU of its own, so that none finds another's leavings.
      outcome made = one.run(*chosen[i], gpu->simulated() ? open_gpu(s) : gpu);
      if (r >= uncounted) runs[i].push_back(std::move(made));
      if (!one.network_name.empty()) network = one.network_name;
    }
  }
  std::vector<outcome> all;
  for (const auto& each : runs) all.push_back(together(each));
  if (s.json) {
    print_json(s, *gpu, network, all);
  } else {
    std::printf("network: %s; 16 clients, batches of 1 to 32, %u streams, %g s a strategy%s\n\n",
                network.c_str(), s.streams, s.seconds,
                s.repeats == 1 ? "" : (", medians of " + std::to_string(s.repeats)).c_str());
    print_table(all);
  }
  const bool none = std::ranges::all_of(all, [](const outcome& o) { return !o.failure.empty(); });
  return none ? 4 : 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "inference_server: %s\n", why.what());
  return 4;
}
