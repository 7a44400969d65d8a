// How fast traces are written, read and understood: N events (10 million unless reported) through
// the .mpt writer, the reader, the lifetimes, a load of all of it, and the CSV importer on a
// recorded trace. Prints one JSON document. The file goes to the path given, or to the temporary
// folder, and is removed.
//   bench/trace_reader [EVENTS] [FILE]
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "base/random.hpp"
#include "bench/support/measure.hpp"
#include "bench/support/result_file.hpp"
#include "trace/lifetimes.hpp"
#include "trace/source.hpp"
#include "trace/writer.hpp"

namespace {

using namespace millpond;
using namespace millpond::trace;

using bench::peak_memory_bytes, bench::seconds_since;

// Allocations and frees as a busy server's: some thousands live, addresses reused, times and sizes
// varied.
class event_maker {
 public:
  event next() {
    event made;
    made.sequence = sequence_++;
    time_ns_ += 200 + numbers_.below(5000);
    made.time_ns = time_ns_;
    made.duration_ns = static_cast<std::uint32_t>(100 + numbers_.below(400));
    made.stack = static_cast<std::uint32_t>(1 + numbers_.below(300));
    made.thread = static_cast<std::uint32_t>(numbers_.below(8));
    const std::uint64_t slot = numbers_.below(8192);
    made.address = 0x7f00'0000'0000 + slot * (4 * MiB);
    made.stream = made.thread;
    if (bytes_[slot] == 0) {
      made.what = action::allocate;
      made.bytes = bytes_[slot] = numbers_.log_uniform(256, 4 * MiB - 1);
    } else {
      made.what = action::free;
      made.bytes = bytes_[slot];
      bytes_[slot] = 0;
    }
    return made;
  }

 private:
  millpond::random numbers_{1};
  std::vector<std::uint64_t> bytes_ = std::vector<std::uint64_t>(8192);
  std::uint64_t sequence_ = 0;
  std::uint64_t time_ns_ = 0;
};

[[noreturn]] void stop(const error& why) {
  bench::stop_with(1, why.message);
}

bench::value speed(std::uint64_t events, double seconds) {
  return {{"seconds", seconds}, {"ns_per_event", seconds * 1e9 / static_cast<double>(events)}};
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t events = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000'000;
  const std::string path =
      argc > 2 ? argv[2]
               : (std::filesystem::temp_directory_path() / "millpond_trace_reader.mpt").string();
  bench::value out = bench::result_of("trace_reader", {});
  out["events"] = events;

  auto file = make_file_sink(path);
  if (!file) stop(file.error());
  trace_writer writer(std::move(*file), {.program = "bench/trace_reader"});
  event_maker maker;
  std::uint64_t start = bench::now_ns();
  for (std::uint64_t i = 0; i < events; ++i) {
    if (auto done = writer.add(maker.next()); !done) stop(done.error());
  }
  if (auto done = writer.close(); !done) stop(done.error());
  out["write_with_making"] = speed(events, seconds_since(start));
  out["file_bytes"] = writer.written_bytes();
  out["file_bytes_per_event"] =
      static_cast<double>(writer.written_bytes()) / static_cast<double>(events);

  start = bench::now_ns();
  auto source = open_trace(path);
  if (!source) stop(source.error());
  std::uint64_t sum = 0, count = 0;
  auto done = source->for_each([&](const event& each) {
    sum += each.bytes;
    ++count;
  });
  if (!done) stop(done.error());
  out["read"] = speed(events, seconds_since(start));
  out["read_events"] = count;
  out["bytes_sum"] = sum;
  out["peak_memory_bytes_after_read"] = peak_memory_bytes();

  {
    start = bench::now_ns();
    auto again = open_trace(path);
    if (!again) stop(again.error());
    lifetime_builder builder(path);
    done = again->for_each([&](const event& each) {
      if (auto added = builder.add(each); !added) stop(added.error());
    });
    if (!done) stop(done.error());
    const lifetimes found = builder.finish();
    out["read_and_lifetimes"] = speed(events, seconds_since(start));
    out["blocks"] = found.blocks.size();
    out["peak_live_bytes"] = found.peak_live_bytes;
    out["peak_memory_bytes_after_lifetimes"] = peak_memory_bytes();
  }
  {
    start = bench::now_ns();
    auto loaded = load_trace(path);
    if (!loaded) stop(loaded.error());
    out["load_all_in_memory"] = speed(events, seconds_since(start));
    out["peak_memory_bytes_after_load"] = peak_memory_bytes();
  }
  std::filesystem::remove(path);

  const std::string recorded = "data/traces/gpt2_generate.csv.gz";
  if (std::filesystem::exists(recorded)) {
    start = bench::now_ns();
    auto loaded = load_trace(recorded);
    if (!loaded) stop(loaded.error());
    out["csv_gz"] = speed(loaded->events.size(), seconds_since(start));
    out["csv_gz"]["events"] = loaded->events.size();
  }
  std::cout << out.json(2) << '\n';
  return 0;
}
