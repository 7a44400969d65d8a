// Growing a buffer of 1 GiB by 32 MiB: in place by mapping (growable_buffer) against allocate, copy
// and free. Then the same while a kernel runs: whether the growth waits for it, and whether the
// kernel notices.
#include <algorithm>
#include <functional>

#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"
#include "millpond/growable/growable_buffer.hpp"

using namespace millpond;

namespace {

constexpr std::uint64_t whole = GiB;
constexpr std::uint64_t step = 32 * MiB;

void must(call_result answer) {
  bench::need(answer, "growable");
}

// One way to grow: ready at 1 GiB, grown by a step, then back to 1 GiB; only the growth is timed.
struct way {
  std::string name;
  std::function<void()> grow;
  std::function<void()> back;
};

}  // namespace

int main(int count, char** arguments) try {
  bench::harness h("growable", count, arguments);
  driver& gpu = h.gpu();
  const auto now_ns = [&] { return h.gpu_time_ns(); };
  const auto us_since = [&](std::uint64_t start) {
    return static_cast<double>(now_ns() - start) / 1e3;
  };
  stream_handle s = nullptr, busy = nullptr;
  must(gpu.stream_create(&s));
  must(gpu.stream_create(&busy));
  const auto rounds = std::max<std::uint64_t>(h.operations(200), 5);
  {
    growable_buffer<std::byte> grows(h.shared_gpu(), 4 * whole, s,
                                     {.step_bytes = step, .largest_handle_bytes = step});
    grows.resize(whole);
    device_address block = 0, next = 0;
    must(gpu.memory_allocate(&block, whole));
    std::vector<way> ways;
    ways.push_back({"growable_buffer", [&] { grows.resize(whole + step); },
                    [&] {
                      grows.resize(whole);
                      grows.shrink_to_fit();
                      must(gpu.stream_synchronize(s));
                      static_cast<void>(grows.memory().give_back());
                    }});
    ways.push_back({"cudaMalloc, copy, cudaFree",
                    [&] {
                      must(gpu.memory_allocate(&next, whole + step));
                      must(gpu.copy_async(next, block, whole, s));
                      must(gpu.stream_synchronize(s));
                      must(gpu.memory_free(block));
                    },
                    [&] {
                      must(gpu.memory_free(next));
                      must(gpu.memory_allocate(&block, whole));
                    }});
    for (const way& w : ways) {
      std::vector<float> times;
      for (std::uint64_t i = 0; i < rounds + 3; ++i) {
        const std::uint64_t start = now_ns();
        w.grow();
        if (i >= 3) times.push_back(static_cast<float>(us_since(start)));
        w.back();
      }
      // While a kernel of 20 ms runs elsewhere: host time of the growth, and how long the kernel
      // took in all.
      constexpr std::uint64_t kernel_ns = 20'000'000;
      const std::uint64_t alone = now_ns();
      must(gpu.spin(kernel_ns, busy));
      must(gpu.stream_synchronize(busy));
      const double alone_us = us_since(alone);
      const std::uint64_t together = now_ns();
      must(gpu.spin(kernel_ns, busy));
      const std::uint64_t start = now_ns();
      w.grow();
      const double busy_grow_us = us_since(start);
      must(gpu.stream_synchronize(busy));
      const double together_us = us_since(together);
      w.back();
      h.add({{"name", w.name},
             {"from_bytes", whole},
             {"by_bytes", step},
             {"rounds", rounds},
             {"grow_us_p50", bench::percentile(times, 0.5)},
             {"grow_us_p99", bench::percentile(times, 0.99)},
             {"grow_us_max", bench::percentile(times, 1)},
             {"while_a_kernel_runs_us", busy_grow_us},
             {"kernel_alone_us", alone_us},
             {"kernel_with_growth_us", together_us}});
    }
    must(gpu.memory_free(block));
  }
  must(gpu.stream_destroy(s));
  must(gpu.stream_destroy(busy));
  return 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "growable: %s\n", why.what());
  return 4;
}
