// Whether an allocator chains streams. Stream A is busy for 10 ms behind its free; stream B
// allocates the same size and runs a short kernel: B should not wait. Then four streams with four
// kernels each, freeing and allocating between them, should take the time of the longest stream.
#include <thread>

#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

int main(int count, char** arguments) {
  bench::harness h("overlap", count, arguments);
  driver& gpu = h.gpu();
  constexpr std::uint64_t bytes = 32 * MiB;
  constexpr std::uint64_t kernel_ns = 2'000'000;
  for (const auto& subject : h.subjects()) {
    if (subject->name() == "cudaMalloc") continue;
    std::string why;
    if (!subject->start(why)) {
      h.add({{"name", subject->name()}, {"failed", why}});
      continue;
    }
    std::vector<stream_handle> streams(4);
    for (auto& s : streams) static_cast<void>(gpu.stream_create(&s));
    {
      std::vector<std::unique_ptr<bench::session>> sessions;
      for (auto& s : streams) sessions.push_back(subject->open(s));
      // Warm: every stream has had a block of this size and given it back.
      for (auto& s : sessions) s->deallocate(s->allocate(bytes), bytes);
      for (auto& s : streams) static_cast<void>(gpu.stream_synchronize(s));

      void* const a = sessions[0]->allocate(bytes);
      static_cast<void>(gpu.spin(10'000'000, streams[0]));
      sessions[0]->deallocate(a, bytes);
      const std::uint64_t start = bench::now_ns();
      void* const b = sessions[1]->allocate(bytes);
      const double allocate_us = static_cast<double>(bench::now_ns() - start) / 1e3;
      static_cast<void>(gpu.spin(100'000, streams[1]));
      static_cast<void>(gpu.stream_synchronize(streams[1]));
      const double done_us = static_cast<double>(bench::now_ns() - start) / 1e3;
      sessions[1]->deallocate(b, bytes);
      static_cast<void>(gpu.context_synchronize());

      const std::uint64_t all = bench::now_ns();
      for (int kernel = 0; kernel < 4; ++kernel) {
        for (std::size_t s = 0; s < streams.size(); ++s) {
          void* const p = sessions[s]->allocate(bytes);
          static_cast<void>(gpu.spin(kernel_ns, streams[s]));
          sessions[s]->deallocate(p, bytes);
        }
      }
      static_cast<void>(gpu.context_synchronize());
      const double together_us = static_cast<double>(bench::now_ns() - all) / 1e3;
      const std::uint64_t one = bench::now_ns();
      for (int kernel = 0; kernel < 4; ++kernel) static_cast<void>(gpu.spin(kernel_ns, streams[0]));
      static_cast<void>(gpu.context_synchronize());
      const double alone_us = static_cast<double>(bench::now_ns() - one) / 1e3;
      h.add({{"name", subject->name()},
             {"b_allocate_us", allocate_us},
             {"b_kernel_done_us", done_us},
             {"four_streams_us", together_us},
             {"longest_stream_us", alone_us},
             {"ratio", together_us / alone_us},
             {"reserved", subject->reserved()}});
    }
    for (auto& s : streams) static_cast<void>(gpu.stream_destroy(s));
    subject->stop();
  }
}
