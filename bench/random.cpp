// Random sizes from 256 bytes to 64 MiB, log-uniform, under 3 GiB live, one thread: every call
// timed by itself, net of the clock's own cost.
#include "base/random.hpp"
#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

int main(int count, char** arguments) {
  bench::harness h("random", count, arguments);
  const std::uint64_t operations = h.operations(100'000);
  stream_handle stream = nullptr;
  static_cast<void>(h.gpu().stream_create(&stream));
  for (const auto& subject : h.subjects()) {
    if (subject->name() == "cudaMalloc") continue;
    std::string why;
    if (!subject->start(why)) {
      h.add({{"name", subject->name()}, {"failed", why}});
      continue;
    }
    std::vector<float> allocate;
    std::vector<float> deallocate;
    std::uint64_t failures = 0;
    std::uint64_t peak = 0;
    nlohmann::json
        paths;  // how the measured round's allocations were served, where it is our own pool
    {
      const auto s = subject->open(stream);
      // Two rounds of the same choices: the first warms, the second is measured.
      for (int round = 0; round < 2; ++round) {
        millpond::random pick(h.settings().seed);
        struct held {
          void* ptr;
          std::uint64_t bytes;
        };
        std::vector<held> live;
        std::uint64_t live_bytes = 0;
        allocate.clear();
        deallocate.clear();
        pool* const own = subject->millpond_pool();
        const pool_statistics before = own != nullptr ? own->statistics() : pool_statistics{};
        for (std::uint64_t i = 0; i < operations; ++i) {
          const std::uint64_t bytes = pick.log_uniform(256, 64 * MiB);
          const bool room = live_bytes + bytes < 3 * GiB;
          if (live.empty() || (room && pick.chance(0.55))) {
            const std::uint64_t start = bench::now_ns();
            void* const p = s->allocate(bytes);
            allocate.push_back(static_cast<float>(bench::now_ns() - start));
            if (p == nullptr) {
              ++failures;
              continue;
            }
            live.push_back({p, bytes});
            live_bytes += bytes;
            peak = std::max(peak, live_bytes);
          } else {
            const std::size_t at = pick.below(live.size());
            const held out = live[at];
            live[at] = live.back();
            live.pop_back();
            live_bytes -= out.bytes;
            const std::uint64_t start = bench::now_ns();
            s->deallocate(out.ptr, out.bytes);
            deallocate.push_back(static_cast<float>(bench::now_ns() - start));
          }
        }
        if (own != nullptr) {
          const pool_statistics now = own->statistics();
          paths = {
              {"allocations", now.allocations - before.allocations},
              {"thread_cache_hits", now.thread_cache_hits - before.thread_cache_hits},
              {"stream_cache_hits", now.stream_cache_hits - before.stream_cache_hits},
              {"heap_hits", now.heap_hits - before.heap_hits},
              {"growths", now.growths - before.growths},
              {"stitches", now.stitches - before.stitches},
              {"stitch_reuses", now.stitch_reuses - before.stitch_reuses},
              {"thread_caches_flushed", now.thread_caches_flushed - before.thread_caches_flushed}};
        }
        for (const held& each : live) s->deallocate(each.ptr, each.bytes);
      }
    }
    const auto net = [&](std::vector<float>& of, double share) {
      return std::max(0.0, bench::percentile(of, share) - h.clock_ns());
    };
    h.add({{"name", subject->name()},
           {"allocate_ns",
            {{"p50", net(allocate, 0.5)},
             {"p99", net(allocate, 0.99)},
             {"p50_raw", bench::percentile(allocate, 0.5)},
             {"p99_raw", bench::percentile(allocate, 0.99)}}},
           {"free_ns",
            {{"p50", net(deallocate, 0.5)},
             {"p99", net(deallocate, 0.99)},
             {"p50_raw", bench::percentile(deallocate, 0.5)},
             {"p99_raw", bench::percentile(deallocate, 0.99)}}},
           {"reserved_ratio", static_cast<double>(subject->reserved()) / static_cast<double>(peak)},
           {"paths", paths},
           {"failures", failures}});
    subject->stop();
  }
  static_cast<void>(h.gpu().stream_destroy(stream));
}
