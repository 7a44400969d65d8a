// Whether an allocator chains streams. Stream A is busy for 10 ms behind its free; stream B
// allocates the same size and runs a short kernel: B should not wait. Then four streams with four
// kernels each, freeing and allocating between them, should take the time of the longest stream.
#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

int main(int count, char** arguments) {
  bench::harness h("overlap", count, arguments);
  driver& gpu = h.gpu();
  constexpr std::uint64_t bytes = 32 * MiB;
  constexpr std::uint64_t kernel_ns = 2'000'000;
  constexpr std::size_t count_of_streams = 4;
  h.each_subject({"cudaMalloc"}, [&](bench::subject& of) {
    bench::stream_set streams(gpu, count_of_streams);
    const auto sessions = streams.open(of);
    // Warm: every stream has had a block of this size and given it back.
    for (const auto& s : sessions) s->deallocate(s->allocate(bytes), bytes);
    streams.synchronize();

    void* const a = sessions[0]->allocate(bytes);
    static_cast<void>(gpu.spin(10'000'000, streams[0]));
    sessions[0]->deallocate(a, bytes);
    const std::uint64_t start = bench::now_ns();
    void* const b = sessions[1]->allocate(bytes);
    const double allocate_us = bench::us_since(start);
    static_cast<void>(gpu.spin(100'000, streams[1]));
    static_cast<void>(gpu.stream_synchronize(streams[1]));
    const double done_us = bench::us_since(start);
    sessions[1]->deallocate(b, bytes);
    static_cast<void>(gpu.context_synchronize());

    const std::uint64_t all = bench::now_ns();
    for (int kernel = 0; kernel < 4; ++kernel) {
      for (std::size_t s = 0; s < count_of_streams; ++s) {
        void* const p = sessions[s]->allocate(bytes);
        static_cast<void>(gpu.spin(kernel_ns, streams[s]));
        sessions[s]->deallocate(p, bytes);
      }
    }
    static_cast<void>(gpu.context_synchronize());
    const double together_us = bench::us_since(all);
    const std::uint64_t one = bench::now_ns();
    for (int kernel = 0; kernel < 4; ++kernel) static_cast<void>(gpu.spin(kernel_ns, streams[0]));
    static_cast<void>(gpu.context_synchronize());
    const double alone_us = bench::us_since(one);
    h.add({{"name", of.name()},
           {"b_allocate_us", allocate_us},
           {"b_kernel_done_us", done_us},
           {"four_streams_us", together_us},
           {"longest_stream_us", alone_us},
           {"ratio", together_us / alone_us},
           {"reserved", of.reserved()}});
  });
}
