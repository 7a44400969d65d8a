// One thread that goes round many streams: a pair on each. The state that an allocator keeps a
// stream is what costs here.
#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

int main(int count, char** arguments) {
  bench::harness h("many_streams", count, arguments);
  for (const std::uint64_t streams : {1ull, 16ull, 256ull, 1024ull, 4096ull}) {
    std::vector<stream_handle> all(streams);
    for (auto& s : all) static_cast<void>(h.gpu().stream_create(&s));
    for (const auto& subject : h.subjects()) {
      if (subject->name() == "cudaMalloc" || subject->name() == "CUB caching") continue;
      std::string why;
      if (!subject->start(why)) {
        h.add({{"name", subject->name()}, {"failed", why}});
        continue;
      }
      {
        std::vector<std::unique_ptr<bench::session>> sessions;
        for (auto& s : all) sessions.push_back(subject->open(s));
        const std::uint64_t slow = subject->name().find("millpond") == 0 ? 1 : 20;
        const std::uint64_t rounds =
            std::max<std::uint64_t>(2, h.operations(200'000) / slow / streams);
        const auto go_round = [&](std::uint64_t n) {
          for (std::uint64_t i = 0; i < n; ++i) {
            for (auto& s : sessions) {
              void* const p = s->allocate(64 * KiB);
              s->deallocate(p, 64 * KiB);
            }
          }
        };
        go_round(1);
        const std::uint64_t start = bench::now_ns();
        go_round(rounds);
        const double ns =
            static_cast<double>(bench::now_ns() - start) / static_cast<double>(rounds * streams);
        h.add({{"name", subject->name()},
               {"streams", streams},
               {"ns_a_pair", ns},
               {"reserved", subject->reserved()}});
      }
      subject->stop();
    }
    for (auto& s : all) {
      static_cast<void>(h.gpu().stream_synchronize(s));
      static_cast<void>(h.gpu().stream_destroy(s));
    }
  }
}
