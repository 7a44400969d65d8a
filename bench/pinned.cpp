// Pinned memory: what pinning costs by each way, and what a block of the pinned pool costs once it
// is pinned.
#include <algorithm>
#include <cstring>
#include <thread>

#include "base/bits.hpp"
#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pinned/pinned_pool.hpp"

using namespace millpond;

namespace {

using bench::median, bench::ms_since, bench::need;

// A copy to the device from this memory, GB/s.
double copy_rate(driver& gpu, const void* from, std::uint64_t bytes) {
  device_address to = 0;
  stream_handle stream = nullptr;
  need(gpu.memory_allocate(&to, bytes).ok() && gpu.stream_create(&stream).ok(), "device memory");
  std::vector<float> times;
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t start = bench::now_ns();
    need(gpu.copy_async(to, reinterpret_cast<device_address>(from), bytes, stream).ok() &&
             gpu.stream_synchronize(stream).ok(),
         "a copy");
    times.push_back(static_cast<float>(ms_since(start)));
  }
  static_cast<void>(gpu.memory_free(to));
  static_cast<void>(gpu.stream_destroy(stream));
  return static_cast<double>(bytes) / (*std::ranges::min_element(times) * 1e6);
}

// Nanoseconds of an allocate and free pair, the middle of many rounds.
template <class Pair>
double pair_ns(std::uint64_t pairs, Pair&& pair) {
  std::vector<float> rounds;
  for (int round = 0; round < 9; ++round) {
    const std::uint64_t start = bench::now_ns();
    for (std::uint64_t i = 0; i < pairs; ++i) pair();
    rounds.push_back(static_cast<float>(static_cast<double>(bench::now_ns() - start) /
                                        static_cast<double>(pairs)));
  }
  return median(rounds);
}

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("pinned", count, arguments);
  driver& gpu = h.gpu();
  const std::shared_ptr<driver>& shared = h.shared_gpu();
  const std::uint64_t bytes = align_up(h.operations(2 * GiB), 2 * MiB);

  double host_alloc_ms = 0;
  {
    std::vector<float> took, gave;
    double rate = 0;
    for (int i = 0; i < 3; ++i) {
      void* at = nullptr;
      std::uint64_t start = bench::now_ns();
      need(gpu.host_allocate(&at, bytes, driver::host_flags::none).ok(), "cuMemHostAlloc");
      took.push_back(static_cast<float>(ms_since(start)));
      if (i == 0) rate = copy_rate(gpu, at, std::min(bytes, 256 * MiB));
      start = bench::now_ns();
      need(gpu.host_free(at).ok(), "cuMemFreeHost");
      gave.push_back(static_cast<float>(ms_since(start)));
    }
    host_alloc_ms = median(took);
    h.add({{"name", "cuMemHostAlloc"},
           {"bytes", bytes},
           {"pin_ms", host_alloc_ms},
           {"unpin_ms", median(gave)},
           {"copy_gb_s", rate}});
  }
  for (const auto pages :
       {host_pinner_options::huge_pages::advised, host_pinner_options::huge_pages::never}) {
    for (const unsigned threads : {1u, 4u, 8u, 16u}) {
      host_pinner_options options;
      options.threads = threads;
      options.pages = pages;
      options.budget_bytes = 2 * bytes;
      auto pinner = host_pinner::create(shared, options);
      need(pinner.has_value(), "making a pinner");
      std::vector<float> took, gave;
      double rate = 0;
      for (int i = 0; i < 3; ++i) {
        std::uint64_t start = bench::now_ns();
        auto at = (*pinner)->allocate(bytes);
        took.push_back(static_cast<float>(ms_since(start)));
        need(at.has_value(), "pinning");
        if (i == 0) rate = copy_rate(gpu, *at, std::min(bytes, 256 * MiB));
        start = bench::now_ns();
        need((*pinner)->free(*at, bytes).has_value(), "unpinning");
        gave.push_back(static_cast<float>(ms_since(start)));
      }
      h.add({{"name", "host_pinner"},
             {"threads", threads},
             {"huge_pages", pages == host_pinner_options::huge_pages::advised},
             {"bytes", bytes},
             {"pin_ms", median(took)},
             {"unpin_ms", median(gave)},
             {"copy_gb_s", rate},
             {"times_faster", host_alloc_ms / median(took)}});
    }
  }

  stream_handle stream = nullptr;
  need(gpu.stream_create(&stream).ok(), "a stream");
  const std::uint64_t pairs = h.operations(200'000);
  {
    const std::uint64_t start = bench::now_ns();
    auto pool = make_pinned_pool(
        shared, {.pinning = {.budget_bytes = 4 * GiB}, .initial_bytes = h.operations(GiB)});
    need(pool.has_value(), "the pinned pool");
    h.add({{"name", "pinned pool, made"}, {"bytes", h.operations(GiB)}, {"ms", ms_since(start)}});
    for (const std::uint64_t size : {64 * std::uint64_t{1}, 4 * KiB, 64 * KiB, MiB, 3 * MiB}) {
      const double plain = pair_ns(
          pairs, [&] { (*pool)->deallocate((*pool)->allocate(size, stream), size, stream); });
      auto cache = (*pool)->cache(stream);
      const double handle = pair_ns(pairs, [&] { cache.deallocate(cache.allocate(size), size); });
      h.add({{"name", "pinned pool, pair"},
             {"bytes", size},
             {"pair_us", plain / 1e3},
             {"cache_pair_us", handle / 1e3}});
    }
    const auto now = (*pool)->statistics();
    h.add({{"name", "pinned pool, after"},
           {"reserved_bytes", now.reserved_bytes},
           {"growths", now.growths}});
  }
  if (gpu.info().memory_pools) {
    pool_handle driver_pool = nullptr;
    if (gpu.pool_create(&driver_pool, memory_location::host, 0).ok()) {
      static_cast<void>(gpu.pool_set_release_threshold(driver_pool, ~std::uint64_t{0}));
      for (const std::uint64_t size : {4 * KiB, MiB}) {
        const double ns = pair_ns(std::min<std::uint64_t>(pairs, 20'000), [&] {
          device_address at = 0;
          need(gpu.pool_allocate(&at, size, driver_pool, stream).ok() &&
                   gpu.pool_free(at, stream).ok(),
               "the driver's pool");
        });
        static_cast<void>(gpu.stream_synchronize(stream));
        h.add({{"name", "cudaMallocFromPoolAsync, host, pair"},
               {"bytes", size},
               {"pair_us", ns / 1e3}});
      }
      static_cast<void>(gpu.pool_destroy(driver_pool));
    }
  }
  static_cast<void>(gpu.stream_destroy(stream));
}
