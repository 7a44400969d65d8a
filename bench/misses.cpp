// Threads that all miss their caches at once: pairs as in bench/pairs, of sizes that no cache
// keeps, so that every call goes to the heap and its one lock. How often the lock was found taken
// is counted.
#include <array>

#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

int main(int count, char** arguments) {
  bench::harness h("misses", count, arguments);
  constexpr std::array<std::uint64_t, 4> sizes{5 * MiB, 9 * MiB, 17 * MiB, 33 * MiB};
  for (const auto& subject : h.subjects()) {
    const std::uint64_t slow = subject->name().find("millpond") == 0 ? 1 : 20;
    if (subject->name() == "cudaMalloc") continue;
    for (const unsigned threads : {1u, 2u, 4u, 8u, 16u}) {
      std::string why;
      if (!subject->start(why)) {
        h.add({{"name", subject->name()}, {"failed", why}});
        break;
      }
      const std::uint64_t rounds =
          h.operations(50'000 / slow / (subject->millpond_pool() == nullptr ? threads : 1));
      std::vector<double> ns(threads);
      std::atomic<std::uint64_t> failures{0};
      bench::start_line line(threads);
      std::atomic<std::uint64_t> waits_before{0};
      pool* const own = subject->millpond_pool();
      bench::on_threads(h.gpu(), threads, [&](unsigned t) {
        stream_handle stream = nullptr;
        static_cast<void>(h.gpu().stream_create(&stream));
        {
          const auto s = subject->open(stream);
          // All four sizes live at once, then all freed: the heap carves and joins.
          const auto run = [&](std::uint64_t n) {
            std::array<void*, sizes.size()> live{};
            for (std::uint64_t i = 0; i < n; ++i) {
              for (std::size_t k = 0; k < sizes.size(); ++k) {
                live[k] = s->allocate(sizes[k]);
                if (live[k] == nullptr) failures.fetch_add(1);
              }
              for (std::size_t k = 0; k < sizes.size(); ++k) s->deallocate(live[k], sizes[k]);
            }
          };
          run(std::min<std::uint64_t>(rounds, 100));
          if (own != nullptr && t == 0) waits_before = own->statistics().lock_waits;
          line.wait();
          const std::uint64_t start = bench::now_ns();
          run(rounds);
          ns[t] = static_cast<double>(bench::now_ns() - start) /
                  static_cast<double>(rounds * sizes.size());
        }
        static_cast<void>(h.gpu().stream_synchronize(stream));
        static_cast<void>(h.gpu().stream_destroy(stream));
      });
      double sum = 0;
      for (const double each : ns) sum += each;
      nlohmann::json row{{"name", subject->name()},
                         {"threads", threads},
                         {"ns_a_pair", sum / threads},
                         {"failures", failures.load()}};
      if (own != nullptr) {
        const pool_statistics s = own->statistics();
        row["lock_waits_a_pair"] = static_cast<double>(s.lock_waits - waits_before) /
                                   static_cast<double>(rounds * sizes.size() * threads);
        row["paths"] = {{"heap_hits", s.heap_hits},
                        {"growths", s.growths},
                        {"stitches", s.stitches},
                        {"stitch_reuses", s.stitch_reuses},
                        {"seals", s.seals},
                        {"fence_queries", s.fence_queries},
                        {"thread_caches_flushed", s.thread_caches_flushed}};
      }
      h.add(std::move(row));
      subject->stop();
    }
  }
}
