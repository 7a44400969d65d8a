// What managed memory does on the card, case by case, beside what the page machine predicts. The
// cases are lines of a CSV file (data/managed); the result is the same lines with the least and the
// largest time of the repetitions.
//
//     managed data/managed/cases.csv --out managed_h200.csv
//     managed data/managed/cases.csv --gpu sim          the prediction alone
//
// Hosts differ by what their CPUs take for a fault: with --calibrated four rates of this machine
// are measured first, as `millpond calibrate` does, and the prediction is made for them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/bits.hpp"
#include "bench/support/card_kernels.hpp"
#include "bench/support/measure.hpp"
#include "bench/support/result_file.hpp"
#include "driver/sim/pages/cases.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;
namespace pages = millpond::sim::pages;

namespace {

constexpr const char* ptx_text =
#include "bench/kernels/touch_ptx.inc"
    ;

using bench::need;

// Of a kernel that reads and writes everything: as many threads as run at once, which loop, or one
// for each word of four bytes.
enum class grid : std::uint8_t { that_fits, of_every_word };

class measurer {
 public:
  measurer(driver& gpu, bench::card_kernels& kernels, int multiprocessors, grid threads)
      : gpu_(gpu),
        kernels_(kernels),
        processors_(static_cast<unsigned>(multiprocessors)),
        threads_(threads) {
    need(gpu_.stream_create(&stream_), "making a stream");
    void* sink = nullptr;
    need(gpu_.host_allocate(&sink, 4096, driver::host_flags::none), "pinning 4 KiB");
    sink_ = static_cast<std::uint32_t*>(sink);
  }
  ~measurer() {
    static_cast<void>(gpu_.host_free(sink_));
    static_cast<void>(gpu_.stream_destroy(stream_));
  }

  // Of the cases that have rounds: each round's milliseconds, since it was emptied.
  std::vector<double> last_rounds;

  // Milliseconds of one repetition; of ping-pong the share of the rounds that the case asks for.
  double once(const pages::page_case& one) {
    device_address at = 0;
    const pages::run_options& o = one.what;
    need(gpu_.managed_allocate(&at, o.bytes), "allocating managed memory");
    for (const pages::advice_given& each : o.advice)
      need(gpu_.advise(at, o.bytes, each.what, each.location), "advising");
    auto* const memory = reinterpret_cast<unsigned char*>(at);
    if (o.start != pages::start_location::untouched) std::memset(memory, 1, o.bytes);
    if (o.start == pages::start_location::device) prefetch(at, o.bytes, memory_location::device);
    double ms = 0;
    switch (one.part) {
      case pages::measured::kernel: ms = timed([&] { round(at, o); }); break;
      case pages::measured::second_kernel:
        round(at, o);
        ms = timed([&] { round(at, o); });
        break;
      case pages::measured::fault_back:
        prefetch(at, o.bytes, memory_location::device);
        ms = timed([&] { touch_by_host(memory, o.bytes); });
        break;
      case pages::measured::prefetch_back:
        prefetch(at, o.bytes, memory_location::device);
        ms = timed([&] { prefetch(at, o.bytes, memory_location::host); });
        break;
      case pages::measured::round_p50:
      case pages::measured::round_p99: {
        std::vector<float> rounds;
        for (std::uint64_t i = 0; i < o.rounds; ++i) {
          rounds.push_back(static_cast<float>(timed([&] {
            touch_by_host(memory, o.bytes);
            round(at, o);
            touch_by_host(memory, o.bytes);
          })));
        }
        for (const float each : rounds) last_rounds.push_back(each);
        ms = bench::percentile(rounds, one.part == pages::measured::round_p50 ? 0.5 : 0.99);
        break;
      }
    }
    need(gpu_.memory_free(at), "freeing managed memory");
    return ms;
  }

 private:
  template <class Call>
  double timed(Call&& call) {
    const std::uint64_t start = bench::now_ns();
    call();
    return bench::ms_since(start);
  }
  void prefetch(device_address at, std::uint64_t bytes, memory_location to) {
    need(gpu_.prefetch_async(at, bytes, to, stream_), "prefetching");
    need(gpu_.stream_synchronize(stream_), "waiting for a prefetch");
  }
  static void touch_by_host(unsigned char* memory, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; i += 4096) {
      volatile unsigned char* const byte = memory + i;
      *byte = static_cast<unsigned char>(*byte + 1);
    }
  }

  void round(device_address at, const pages::run_options& o) {
    if (o.each_kernel == pages::run_options::before::prefetch) {
      need(gpu_.prefetch_async(at, o.bytes, memory_location::device, stream_), "prefetching");
    }
    launch(at, o);
    need(gpu_.stream_synchronize(stream_), "waiting for a kernel");
  }
  void launch(device_address at, const pages::run_options& o) {
    std::uint64_t count = o.bytes / 16;
    if (o.pattern == pages::pattern_kind::stride) {
      count = divide_up(o.bytes, o.stride);
      std::uint64_t stride = o.stride;
      void* parameters[] = {&at, &stride, &count};
      start("touch_stride", static_cast<unsigned>(divide_up(count, 1024)), 1024, parameters);
      return;
    }
    if (o.pattern == pages::pattern_kind::random) {
      std::uint64_t all = o.bytes / 4096;
      count = o.touches != 0 ? o.touches : all;
      void* parameters[] = {&at, &all, &count};
      start("touch_random", static_cast<unsigned>(divide_up(count, 1024)), 1024, parameters);
      return;
    }
    if (o.pattern == pages::pattern_kind::blocked) {
      void* parameters[] = {&at, &count};
      start("touch_blocked", processors_, 1024, parameters);
      return;
    }
    if (threads_ == grid::of_every_word && o.access == access_kind::read_write) {
      std::uint64_t words = o.bytes / 4;
      void* parameters[] = {&at, &words};
      start("touch_each", static_cast<unsigned>(divide_up(words, 256)), 256, parameters);
      return;
    }
    void* parameters[] = {&at, &count, &sink_};
    // Eight blocks of 256 threads fill a multiprocessor.
    const auto blocks =
        static_cast<unsigned>(std::clamp<std::uint64_t>(divide_up(count, 256), 1, processors_ * 8));
    start(o.access == access_kind::read    ? "touch_read"
          : o.access == access_kind::write ? "touch_write"
                                           : "touch_stream",
          blocks, 256, parameters);
  }
  void start(const char* name, unsigned blocks, unsigned threads, void** parameters) {
    const cuda::function_handle kernel = kernels_.find(name);
    if (kernel == nullptr) bench::stop_with(4, std::string("no kernel ") + name);
    need(kernels_.launch(kernel, blocks, threads, parameters, stream_), name);
  }

  driver& gpu_;
  bench::card_kernels& kernels_;
  unsigned processors_;
  grid threads_;
  stream_handle stream_ = nullptr;
  std::uint32_t* sink_ = nullptr;
};

struct machine_rates {
  double fault_in = 0, fault_back = 0, prefetch = 0,
         prefetch_back = 0;  // bytes a second of 256 MiB
  void into(gpu_profile& profile) const {
    profile.managed_fault_in_bytes_per_s = fault_in;
    profile.managed_fault_back_bytes_per_s = fault_back;
    profile.managed_prefetch_bytes_per_s = prefetch;
    profile.managed_prefetch_back_bytes_per_s = prefetch_back;
  }
};

// Medians of three, the kernel's own time taken off where there is one.
machine_rates rates_of(measurer& on) {
  constexpr std::uint64_t bytes = 256 * MiB;
  const auto rate = [&](pages::measured part, pages::start_location start,
                        pages::run_options::before before, double kernel_ms) {
    pages::page_case one;
    one.what.bytes = bytes;
    one.what.access = access_kind::read_write;
    one.what.start = start;
    one.what.each_kernel = before;
    one.part = part;
    std::vector<float> ms;
    for (int i = 0; i < 4; ++i) {
      const double took = on.once(one);
      if (i > 0) ms.push_back(static_cast<float>(took));
    }
    return bench::percentile(ms, 0.5) - kernel_ms;
  };
  using before = pages::run_options::before;
  const double kernel =
      rate(pages::measured::kernel, pages::start_location::device, before::nothing, 0);
  const auto per_s = [](double ms) { return static_cast<double>(bytes) / ms * 1e3; };
  return {
      per_s(rate(pages::measured::kernel, pages::start_location::host, before::nothing, kernel)),
      per_s(rate(pages::measured::fault_back, pages::start_location::host, before::nothing, 0)),
      per_s(rate(pages::measured::kernel, pages::start_location::host, before::prefetch, kernel)),
      per_s(rate(pages::measured::prefetch_back, pages::start_location::host, before::nothing, 0))};
}

}  // namespace

int main(int count, char** arguments) {
  using bench::command_line;
  command_line line("managed memory, measured and predicted");
  std::vector<std::string> inputs;
  std::string gpu_name = "0", rounds_out;
  bench::result_options kept;
  std::uint64_t repeats = 5;
  bool table = false, calibrated = false, every_word = false;
  line.words(inputs, command_line::inputs::at_least_one, "CSV files of cases");
  kept.add_to(line);
  line.option("--gpu", gpu_name, "device number, or sim: the prediction alone");
  line.option("--repeats", repeats, "of each case that takes less than a second");
  line.flag("--table", table, "with --gpu sim: the rows of the document on managed memory");
  line.flag("--calibrated", calibrated, "measure this machine's rates first, and predict for them");
  line.flag("--each", every_word,
            "kernels of a thread for each four bytes, instead of threads that loop over sixteen");
  line.option("--rounds", rounds_out,
              "each round's milliseconds of the cases that have rounds (CSV)");
  line.read(count, arguments);
  bench::check_may_write(kept);

  std::vector<pages::page_case> cases;
  for (const std::string& path : inputs) {
    auto read = pages::read_cases(path);
    if (!read) bench::stop_with(3, read.error().message);
    cases.insert(cases.end(), read->begin(), read->end());
  }
  gpu_profile machine = gpu_profile::h200();
  // A table is of rows that were measured: predicted for the machine that they were measured on,
  // where the file tells its rates.
  if (table) static_cast<void>(pages::read_rates(inputs.front(), machine));
  pages::page_costs costs = pages::page_costs::from(machine);
  std::shared_ptr<driver> gpu;
  bench::card_kernels kernels;
  if (gpu_name != "sim") {
    gpu = need(open_cuda_driver(std::atoi(gpu_name.c_str())), "the device");
    need(gpu->bind_thread(), "binding the device");
    std::string why;
    if (!kernels.load(ptx_text, why)) bench::stop_with(4, why);
  }
  std::unique_ptr<measurer> on;
  if (gpu)
    on = std::make_unique<measurer>(*gpu, kernels, gpu->info().multiprocessors,
                                    every_word ? grid::of_every_word : grid::that_fits);
  std::ofstream file, rounds_file;
  if (!kept.out.empty()) {
    file.open(kept.out);
    file << "# " << (gpu ? gpu->info().name : std::string("predicted")) << ", driver "
         << (gpu ? gpu->info().driver_version : 0) << ", commit " << bench::own_commit()
         << (kept.scratch ? ", scratch" : "") << "; least and largest of " << repeats
         << " runs after one more\n";
  }
  if (!rounds_out.empty()) rounds_file.open(rounds_out);
  if (calibrated && on) {
    const machine_rates rates = rates_of(*on);
    gpu_profile profile = gpu_profile::h200();
    rates.into(profile);
    costs = pages::page_costs::from(profile);
    const std::string rates_line = fmt::format(
        "# rates of this machine in GB/s: fault_in={:.4g} fault_back={:.4g} prefetch={:.4g} "
        "prefetch_back={:.4g}",
        rates.fault_in / 1e9, rates.fault_back / 1e9, rates.prefetch / 1e9,
        rates.prefetch_back / 1e9);
    std::printf("%s\n", rates_line.c_str());
    if (file) file << rates_line << '\n';
  }
  if (file) file << pages::case_columns << '\n';
  if (table) {
    for (const auto& row : cases) std::printf("%s\n", pages::table_line(row, costs).c_str());
    return 0;
  }
  std::printf("%-62s %9s %22s %11s %8s %10s\n", "case", "size", "measured ms", "predicted", "error",
              "first run");
  for (pages::page_case& one : cases) {
    const double predicted = pages::predict_ms(one, costs);
    double first = 0;  // the run before those that count: the driver has no memory at hand yet
    if (on) {
      std::vector<double> times;
      on->last_rounds.clear();
      first = on->once(one);  // alone where it is long
      if (first > 1000) times.push_back(first);
      for (std::uint64_t i = 0; times.empty() || (i < repeats && first <= 1000); ++i)
        times.push_back(on->once(one));
      one.low_ms = std::ranges::min(times);
      one.high_ms = std::ranges::max(times);
    }
    const double middle = one.middle_ms();
    std::printf("%-62s %9s %10.4g to %8.4g %11.4g %+7.0f%% %10.4g\n", one.name.c_str(),
                format_bytes(one.what.bytes).c_str(), one.low_ms, one.high_ms, predicted,
                middle > 0 ? 100 * (predicted / middle - 1) : 0, first);
    std::fflush(stdout);
    if (file) file << pages::case_line(one) << '\n';
    if (rounds_file && on && !on->last_rounds.empty()) {
      rounds_file << one.name << ',' << one.what.bytes;
      for (const double each : on->last_rounds) rounds_file << ',' << each;
      rounds_file << '\n';
    }
  }
  return 0;
}
