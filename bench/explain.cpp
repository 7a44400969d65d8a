// How long `millpond explain` takes for a long trace: N events (10 million unless reported) of a
// busy server, with kernels and their blocks on four streams, are written to a file and explained.
// Prints one JSON document; the file is removed.
//   bench/explain [EVENTS]
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "advise/explain.hpp"
#include "base/random.hpp"
#include "bench/support/measure.hpp"
#include "bench/support/result_file.hpp"
#include "trace/source.hpp"
#include "trace/writer.hpp"

namespace {

using namespace millpond;

// Three tenths allocations, three frees, three kernels with two blocks each, the rest waits; some
// hundred blocks live.
void write_trace(const std::string& path, std::uint64_t events) {
  auto file = trace::make_file_sink(path);
  if (!file) std::exit(1);
  trace::trace_writer to(std::move(*file), {});
  const char* const names[] = {"cudaMallocAsync", "cudaFreeAsync", "step"};
  for (std::uint32_t id = 1; id <= 3; ++id) static_cast<void>(to.add_string(id, names[id - 1]));
  millpond::random numbers(1);
  struct block {
    std::uint64_t address, stream;
  };
  std::vector<block> live;
  std::vector<std::uint64_t> spare;
  std::uint64_t next = 0x7f00'0000'0000, number = 0;
  const auto add = [&](trace::event& each) {
    each.sequence = number;
    each.time_ns = number++ * 1000;
    static_cast<void>(to.add(each));
  };
  while (number < events) {
    trace::event each;
    each.stream = 1 + numbers.below(4);
    const std::uint64_t what = numbers.below(10);
    if (what < 3 || live.size() < 100) {
      each.what = trace::action::allocate;
      each.bytes = 512 * (1 + numbers.below(100));
      if (spare.size() > 1000 && numbers.chance(0.9)) {
        std::swap(spare[numbers.below(spare.size())], spare.back());
        each.address = spare.back();
        spare.pop_back();
      } else {
        each.address = next;
        next += 65536;
      }
      each.object = 1;
      each.of = trace::kind::driver_pool;
      live.push_back({each.address, each.stream});
      add(each);
    } else if (what < 6) {
      std::swap(live[numbers.below(live.size())], live.back());
      each.what = trace::action::free;
      each.address = live.back().address;
      each.stream = live.back().stream;
      each.object = 2;
      each.of = trace::kind::driver_pool;
      spare.push_back(each.address);
      live.pop_back();
      add(each);
    } else if (what < 9) {
      each.what = trace::action::kernel;
      each.object = 3;
      each.other = 2;
      add(each);
      for (int n = 0; n < 2; ++n) {
        trace::event use;
        use.what = trace::action::use;
        use.stream = each.stream;
        use.address = live[numbers.below(live.size())].address;
        add(use);
      }
    } else {
      each.what = trace::action::stream_synchronize;
      add(each);
    }
  }
  static_cast<void>(to.close());
}

}  // namespace

int main(int count, char** arguments) {
  const std::uint64_t events = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 10'000'000;
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("millpond_explain" + std::to_string(getpid()) + ".mpt"))
                               .string();
  write_trace(path, events);
  const std::uint64_t start = bench::now_ns();
  const double before = bench::processor_seconds();
  auto source = trace::open_trace(path);
  if (!source) return 1;
  const auto made = advise::explain(*source);
  if (!made) return 1;
  bench::value out = bench::result_of("explain", {});
  out["events"] = made->what.events;
  out["blocks"] = made->what.allocations;
  out["file_bytes"] = std::filesystem::file_size(path);
  out["seconds"] = bench::seconds_since(start);
  out["processor_seconds"] = bench::processor_seconds() - before;
  out["peak_memory_bytes"] = bench::peak_memory_bytes();
  out["findings"] = made->findings.size();
  std::cout << out.json(2) << '\n';
  std::filesystem::remove(path);
  return 0;
}
