// A recorded iteration served from its plan: what an allocation costs, and a free, next to the pool
// that a deviation falls back to. One thread, one stream. Nothing runs on the device: a served
// block asks the driver nothing.
//
// Allocations and frees are timed apart, in waves of 64 blocks that are allocated together and
// freed together, net of one reading of the clock a wave; the layered program, in which they
// alternate as in a network, is timed whole.
#include <array>
#include <cstdio>
#include <vector>

#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"
#include "millpond/planned/planned_resource.hpp"

using namespace millpond;

namespace {

constexpr std::size_t wave = 64;
constexpr std::size_t waves = 16;  // an iteration: 1024 blocks
constexpr std::uint64_t bar_ns = 20;

std::uint64_t bytes_of(std::size_t k) {
  return 4 * KiB + 512 * (k % 7);
}

struct costs {
  std::vector<float> allocate, free;  // ns a block, by wave
  std::vector<float> turn;            // ns of end() and begin(), by iteration
};

// One iteration; `memory` is a per_stream or anything with allocate(bytes) and deallocate(ptr,
// bytes).
template <class Memory>
void run_waves(Memory& memory, double clock_ns, costs& into) {
  std::array<void*, wave> blocks{};
  for (std::size_t w = 0; w < waves; ++w) {
    const std::uint64_t start = bench::now_ns();
    for (std::size_t k = 0; k < wave; ++k) blocks[k] = memory.allocate(bytes_of(k + w));
    const std::uint64_t allocated = bench::now_ns();
    for (std::size_t k = 0; k < wave; ++k) memory.deallocate(blocks[k], bytes_of(k + w));
    const std::uint64_t freed = bench::now_ns();
    const auto each = [&](std::uint64_t ns) {
      return static_cast<float>((static_cast<double>(ns) - clock_ns) / wave);
    };
    into.allocate.push_back(each(allocated - start));
    into.free.push_back(each(freed - allocated));
  }
}

// A layer's output lives until the next layer has read it; each layer has a scratch block. Returns
// the blocks.
template <class Memory>
std::uint64_t run_layers(Memory& memory, std::uint64_t layers) {
  void* before = memory.allocate(4 * KiB);
  std::uint64_t before_bytes = 4 * KiB;
  for (std::uint64_t k = 0; k < layers; ++k) {
    void* const scratch = memory.allocate(64 * KiB);
    void* const output = memory.allocate(bytes_of(k));
    memory.deallocate(scratch, 64 * KiB);
    memory.deallocate(before, before_bytes);
    before = output;
    before_bytes = bytes_of(k);
  }
  memory.deallocate(before, before_bytes);
  return 2 * layers + 1;
}

// The same through the interface that every resource has.
struct through_interface {
  memory_resource& memory;
  stream_handle stream;
  void* allocate(std::uint64_t bytes) { return memory.allocate(bytes, stream); }
  void deallocate(void* ptr, std::uint64_t bytes) { memory.deallocate(ptr, bytes, stream); }
};

bench::value describe(const std::string& name, costs& of) {
  return {{"name", name},
          {"allocate_ns_p50", bench::percentile(of.allocate, 0.5)},
          {"allocate_ns_p99", bench::percentile(of.allocate, 0.99)},
          {"free_ns_p50", bench::percentile(of.free, 0.5)},
          {"free_ns_p99", bench::percentile(of.free, 0.99)},
          {"blocks", of.allocate.size() * wave}};
}

template <class Memory>
double layers_ns(Memory& memory, std::uint64_t times, const std::function<void()>& begin) {
  constexpr std::uint64_t layers = 200;
  std::vector<float> all;
  for (std::uint64_t k = 0; k < times; ++k) {
    const std::uint64_t start = bench::now_ns();
    begin();
    const std::uint64_t blocks = run_layers(memory, layers);
    all.push_back(static_cast<float>(static_cast<double>(bench::now_ns() - start) /
                                     static_cast<double>(blocks)));
  }
  return bench::percentile(all, 0.5);
}

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("planned", count, arguments);
  const std::uint64_t iterations = h.operations(2000);
  std::uint64_t not_as_planned = 0;
  stream_handle stream = nullptr;
  static_cast<void>(h.gpu().stream_create(&stream));
  for (const auto& subject : h.subjects()) {
    std::string why;
    if (!subject->start(why)) {
      h.add({{"name", subject->name()}, {"failed", why}});
      continue;
    }
    {
      const auto s = subject->open(stream);
      costs of;
      for (std::uint64_t k = 0; k <= iterations; ++k) {
        if (k == 1) of = {};  // the first warms
        run_waves(*s, h.clock_ns(), of);
      }
      auto row = describe(subject->name(), of);
      row["layers_pair_ns_p50"] = layers_ns(*s, iterations, [] {});
      h.add(std::move(row));
    }
    static_cast<void>(h.gpu().stream_synchronize(stream));
    if (subject->name() == "millpond") {
      // No capture runs here.
      planned_resource memory(*subject->millpond_pool(), {.asks_each_block = false});
      planned_stream per_stream = memory.on_stream(stream);
      costs by_stream;
      for (std::uint64_t k = 0; k <= iterations; ++k) {
        const std::uint64_t start = bench::now_ns();
        per_stream.end();
        per_stream.begin(1);
        const std::uint64_t begun = bench::now_ns();
        if (k == 2) by_stream = {};  // the first is recorded, the second gets its arena
        by_stream.turn.push_back(
            static_cast<float>(static_cast<double>(begun - start) - h.clock_ns()));
        run_waves(per_stream, h.clock_ns(), by_stream);
      }
      auto row = describe("planned stream", by_stream);
      row["begin_and_end_ns_p50"] = bench::percentile(by_stream.turn, 0.5);
      row["blocks_an_iteration"] = wave * waves;
      row["layers_pair_ns_p50"] = layers_ns(per_stream, iterations, [&] { per_stream.begin(2); });
      const double allocate_ns = row["allocate_ns_p50"].number();
      row["bar_allocate_ns"] = bar_ns;
      row["met"] = allocate_ns <= static_cast<double>(bar_ns);
      const planned_counters counted = per_stream.counters();
      row["served"] = counted.served;
      row["deviations"] = counted.deviations + counted.late_frees + counted.skipped;
      h.add(std::move(row));
      // Every iteration after the two that are recorded.
      const std::uint64_t blocks = wave * waves * iterations + 401 * (iterations - 1);
      not_as_planned += counted.served == blocks ? 0 : 1;

      through_interface plain{memory, stream};
      costs by_interface;
      for (std::uint64_t k = 0; k <= iterations; ++k) {
        per_stream.begin(1);
        if (k == 1) by_interface = {};
        run_waves(plain, h.clock_ns(), by_interface);
      }
      row = describe("planned resource through memory_resource", by_interface);
      row["layers_pair_ns_p50"] = layers_ns(plain, iterations, [&] { per_stream.begin(2); });
      h.add(std::move(row));
      per_stream.end();
    }
    static_cast<void>(h.gpu().stream_synchronize(stream));
    subject->stop();
  }
  static_cast<void>(h.gpu().stream_destroy(stream));
  if (not_as_planned == 0) return 0;
  std::fprintf(stderr, "planned: not every block was served from the plan\n");
  return 1;
}
