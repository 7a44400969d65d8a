// One thread that goes round many streams: a pair on each. The state that an allocator keeps a
// stream is what costs here.
#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

int main(int count, char** arguments) {
  bench::harness h("many_streams", count, arguments);
  for (const std::uint64_t streams : {1ull, 16ull, 256ull, 1024ull, 4096ull}) {
    const bench::stream_set all(h.gpu(), streams);
    h.each_subject({"cudaMalloc", "CUB caching"}, [&](bench::subject& of) {
      const auto sessions = all.open(of);
      const std::uint64_t rounds =
          std::max<std::uint64_t>(2, bench::share_of(of, h.operations(200'000), 20) / streams);
      const auto go_round = [&](std::uint64_t n) {
        for (std::uint64_t i = 0; i < n; ++i) {
          for (const auto& s : sessions) s->deallocate(s->allocate(64 * KiB), 64 * KiB);
        }
      };
      go_round(1);
      const std::uint64_t start = bench::now_ns();
      go_round(rounds);
      const double ns =
          static_cast<double>(bench::now_ns() - start) / static_cast<double>(rounds * streams);
      h.add({{"name", of.name()},
             {"streams", streams},
             {"ns_a_pair", ns},
             {"reserved", of.reserved()}});
    });
  }
}
