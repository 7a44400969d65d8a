// Pairs of allocate and free, T threads, a stream each, sizes going round 4 KiB, 64 KiB, 1 MiB and
// 3 MiB: what an inference server with a thread a request does all day.
#include <array>

#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

int main(int count, char** arguments) {
  bench::harness h("pairs", count, arguments);
  constexpr std::array<std::uint64_t, 4> sizes{4 * KiB, 64 * KiB, 1 * MiB, 3 * MiB};
  for (const auto& subject : h.subjects()) {
    // A peer that takes 500 us a pair need not be asked as often as one that takes 20 ns.
    const std::uint64_t slow = subject->name().find("millpond") == 0 ? 1 : 50;
    if (subject->name() == "cudaMalloc") continue;
    for (const unsigned threads : {1u, 2u, 4u, 8u, 16u}) {
      std::string why;
      if (!subject->start(why)) {
        h.add({{"name", subject->name()}, {"failed", why}});
        break;
      }
      const std::uint64_t pairs =
          h.operations(2'000'000 / slow / (subject->millpond_pool() == nullptr ? threads : 1));
      std::vector<double> ns(threads);
      std::atomic<std::uint64_t> failures{0};
      bench::start_line line(threads);
      bench::on_threads(h.gpu(), threads, [&](unsigned t) {
        stream_handle stream = nullptr;
        static_cast<void>(h.gpu().stream_create(&stream));
        {
          const auto s = subject->open(stream);
          const auto run = [&](std::uint64_t n) {
            for (std::uint64_t i = 0; i < n; ++i) {
              const std::uint64_t bytes = sizes[i & 3];
              void* const p = s->allocate(bytes);
              if (p == nullptr) failures.fetch_add(1);
              s->deallocate(p, bytes);
            }
          };
          run(std::min<std::uint64_t>(pairs, 2000));
          line.wait();
          const std::uint64_t start = bench::now_ns();
          run(pairs);
          ns[t] = static_cast<double>(bench::now_ns() - start) / static_cast<double>(pairs);
        }
        static_cast<void>(h.gpu().stream_synchronize(stream));
        static_cast<void>(h.gpu().stream_destroy(stream));
      });
      double sum = 0;
      double worst = 0;
      for (const double each : ns) {
        sum += each;
        worst = std::max(worst, each);
      }
      h.add({{"name", subject->name()},
             {"threads", threads},
             {"ns_a_pair", sum / threads},
             {"worst_thread_ns", worst},
             {"pairs_a_thread", pairs},
             {"failures", failures.load()}});
      subject->stop();
    }
  }
}
