// Random sizes from 256 bytes to 64 MiB, log-uniform, under 3 GiB live, one thread: every call
// timed by itself, net of the clock's own cost.
#include <algorithm>
#include <vector>

#include "base/random.hpp"
#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

namespace {

struct outcome {
  std::vector<float> allocate, deallocate;
  std::uint64_t failures = 0, peak = 0;
  bench::value paths;  // how the round's allocations were served, where it is our own pool
};

outcome run_round(bench::session& of, pool* own, std::uint64_t operations, std::uint64_t seed) {
  struct held {
    void* ptr;
    std::uint64_t bytes;
  };
  outcome out;
  millpond::random pick(seed);
  std::vector<held> live;
  std::uint64_t live_bytes = 0;
  const pool_statistics before = own != nullptr ? own->statistics() : pool_statistics{};
  for (std::uint64_t i = 0; i < operations; ++i) {
    const std::uint64_t bytes = pick.log_uniform(256, 64 * MiB);
    const bool room = live_bytes + bytes < 3 * GiB;
    if (live.empty() || (room && pick.chance(0.55))) {
      const std::uint64_t start = bench::now_ns();
      void* const p = of.allocate(bytes);
      out.allocate.push_back(static_cast<float>(bench::now_ns() - start));
      if (p == nullptr) {
        ++out.failures;
        continue;
      }
      live.push_back({p, bytes});
      live_bytes += bytes;
      out.peak = std::max(out.peak, live_bytes);
    } else {
      const std::size_t at = pick.below(live.size());
      const held gone = live[at];
      live[at] = live.back();
      live.pop_back();
      live_bytes -= gone.bytes;
      const std::uint64_t start = bench::now_ns();
      of.deallocate(gone.ptr, gone.bytes);
      out.deallocate.push_back(static_cast<float>(bench::now_ns() - start));
    }
  }
  if (own != nullptr) out.paths = bench::paths_of(own->statistics(), before);
  for (const held& each : live) of.deallocate(each.ptr, each.bytes);
  return out;
}

bench::value times(std::vector<float>& of, double clock_ns) {
  const double p50 = bench::percentile(of, 0.5), p99 = bench::percentile(of, 0.99);
  return {{"p50", std::max(0.0, p50 - clock_ns)},
          {"p99", std::max(0.0, p99 - clock_ns)},
          {"p50_raw", p50},
          {"p99_raw", p99}};
}

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("random", count, arguments);
  const bench::stream_set stream(h.gpu(), 1);
  h.each_subject({"cudaMalloc"}, [&](bench::subject& of) {
    outcome first, second;
    {
      // Two rounds of the same choices: the first warms, the second is measured.
      const auto s = of.open(stream[0]);
      for (outcome* each : {&first, &second})
        *each = run_round(*s, of.millpond_pool(), h.operations(100'000), h.settings().seed);
    }
    h.add(
        {{"name", of.name()},
         {"allocate_ns", times(second.allocate, h.clock_ns())},
         {"free_ns", times(second.deallocate, h.clock_ns())},
         {"reserved_ratio", static_cast<double>(of.reserved()) / static_cast<double>(second.peak)},
         {"paths", second.paths},
         {"failures", first.failures + second.failures}});
  });
}
