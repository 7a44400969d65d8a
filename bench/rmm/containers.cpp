// RMM's containers over RMM's own resources and over millpond's pool: what a program gains by
// changing its resource.
//
//     rmm_containers --out rmm_containers.json [--scratch]
//
// Each thread has a stream and makes, resizes and drops rmm::device_uvectors of random sizes, as a
// dataframe query does with its columns: a few hundred live, 4 KiB to 32 MiB. The contents are
// written by a memset and one byte of each column is read back at its end, so that a wrong reuse
// shows. Seeded: every resource gets the same requests.
#include "millpond/bindings/cuda_mr.hpp"

#include <rmm/cuda_stream.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/support/result_file.hpp"
#include "millpond/pool/pool.hpp"

namespace {

using millpond::bench::value;

using resource_ref = rmm::device_async_resource_ref;

struct column {
  rmm::device_uvector<unsigned char> bytes;
  unsigned char mark;
};

struct outcome {
  double ns_an_operation = 0;
  std::uint64_t wrong = 0;
  std::uint64_t peak_live = 0;  // bytes, the threads' peaks added up
};

void check(cudaError_t answer, const char* doing) {
  if (answer != cudaSuccess)
    throw std::runtime_error(std::string(doing) + ": " + cudaGetErrorString(answer));
}

// One thread's columns; answers the nanoseconds that making, resizing and dropping took, without
// the copies' own.
void churn(resource_ref memory, unsigned seed, int operations, std::atomic<std::uint64_t>& spent_ns,
           outcome& out) {
  rmm::cuda_stream stream;
  std::mt19937_64 random(seed);
  std::vector<column> columns;
  std::uint64_t live = 0;
  std::uint64_t ns = 0;
  std::uint64_t peak = 0;
  std::uint64_t wrong = 0;
  const auto timed = [&](auto&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    ns += static_cast<std::uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  };
  const auto size = [&] {
    const double exponent = 12.0 + 13.0 * (static_cast<double>(random() >> 11) * 0x1p-53);
    return static_cast<std::size_t>(std::exp2(exponent));
  };
  const auto verify = [&](const column& c) {
    unsigned char found = 0;
    check(cudaMemcpyAsync(&found, c.bytes.data() + random() % c.bytes.size(), 1,
                          cudaMemcpyDeviceToHost, stream.value()),
          "a copy back");
    stream.synchronize();
    wrong += found != c.mark;
  };
  for (int n = 0; n < operations; ++n) {
    const auto what = random() % 10;
    if (columns.size() < 20 || (what < 4 && columns.size() < 200)) {
      const std::size_t bytes = size();
      const auto mark = static_cast<unsigned char>(random());
      timed([&] {
        columns.push_back({rmm::device_uvector<unsigned char>(bytes, stream, memory), mark});
      });
      check(cudaMemsetAsync(columns.back().bytes.data(), mark, bytes, stream.value()), "a memset");
      live += bytes;
    } else if (what < 6) {
      column& c = columns[random() % columns.size()];
      live -= c.bytes.size();
      const std::size_t bytes = size();
      timed([&] { c.bytes.resize(bytes, stream); });
      check(cudaMemsetAsync(c.bytes.data(), c.mark, bytes, stream.value()), "a memset");
      live += bytes;
    } else {
      std::swap(columns[random() % columns.size()], columns.back());
      if (n % 50 == 0) verify(columns.back());
      live -= columns.back().bytes.size();
      timed([&] { columns.pop_back(); });
    }
    peak = std::max(peak, live);
  }
  for (const column& c : columns) verify(c);
  columns.clear();
  stream.synchronize();
  spent_ns += ns;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  out.wrong += wrong;
  out.peak_live += peak;
}

outcome run(resource_ref memory, int threads, int operations) {
  outcome out;
  std::atomic<std::uint64_t> spent{0};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back(
        [&, t] { churn(memory, static_cast<unsigned>(t) + 1, operations, spent, out); });
  }
  for (std::thread& t : all) t.join();
  out.ns_an_operation =
      static_cast<double>(spent.load()) / (static_cast<double>(threads) * operations);
  return out;
}

// What the pool did between two looks, by name.
value difference(const millpond::pool_statistics& before, const millpond::pool_statistics& after) {
  value out{};
  const auto add = [&](const char* name, std::uint64_t millpond::pool_statistics::* of) {
    out[name] = after.*of - before.*of;
  };
  using all = millpond::pool_statistics;
  add("allocations", &all::allocations);
  add("thread_cache_hits", &all::thread_cache_hits);
  add("stream_cache_hits", &all::stream_cache_hits);
  add("heap_hits", &all::heap_hits);
  add("growths", &all::growths);
  add("stitches", &all::stitches);
  add("stitch_reuses", &all::stitch_reuses);
  add("seals", &all::seals);
  add("fence_queries", &all::fence_queries);
  add("thread_caches_flushed", &all::thread_caches_flushed);
  add("lock_waits", &all::lock_waits);
  return out;
}

std::uint64_t used_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return total - free;
}

}  // namespace

int main(int count, char** arguments) try {
  millpond::bench::result_options kept{.out = "rmm_containers.json"};
  millpond::bench::command_line line("rmm_containers");
  kept.add_to(line);
  line.read(count, arguments);
  check_may_write(kept);
  check(cudaFree(nullptr), "opening the device");
  {
    // What the runtime loads for the first memset and copy would count as the first resource's.
    rmm::mr::cuda_memory_resource upstream;
    static_cast<void>(run(upstream, 16, 50));
  }
  value rows = value::list();
  bool right = true;
  using count =
      std::function<millpond::pool_statistics()>;  // empty where the resource is not millpond's
  const auto measure =
      [&](const char* name,
          const std::function<void(const std::function<void(resource_ref, const count&)>&)>& with) {
        for (const int threads : {1, 4, 16}) {
          check(cudaDeviceSynchronize(), "waiting");
          const std::uint64_t before = used_bytes();
          outcome got;
          outcome again;
          std::uint64_t reserved = 0;
          value counts;
          with([&](resource_ref memory, const count& of_pool) {
            static_cast<void>(run(memory, threads, 500));  // the first touch
            got = run(memory, threads, 5000);
            const millpond::pool_statistics earlier =
                of_pool ? of_pool() : millpond::pool_statistics{};
            again = run(memory, threads, 5000);  // in memory that is there by now
            reserved = used_bytes() - before;
            if (of_pool) counts = difference(earlier, of_pool());
          });
          got.wrong += again.wrong;
          right = right && got.wrong == 0;
          std::printf(
              "%-12s %2d threads: %9.0f ns an operation, %9.0f again, %.2f of peak live reserved, "
              "%llu wrong\n",
              name, threads, got.ns_an_operation, again.ns_an_operation,
              static_cast<double>(reserved) / static_cast<double>(got.peak_live),
              static_cast<unsigned long long>(got.wrong));
          value row{{"resource", name},
                    {"threads", threads},
                    {"ns", std::llround(got.ns_an_operation)},
                    {"ns_again", std::llround(again.ns_an_operation)},
                    {"reserved", reserved},
                    {"peak_live", got.peak_live},
                    {"wrong", got.wrong}};
          if (counts.what() != value::kind::nothing) {
            std::printf("             again: %s\n", counts.json().c_str());
            row["again"] = counts;
          }
          rows.push_back(row);
        }
      };
  measure("millpond", [](const auto& go) {
    auto gpu = millpond::open_cuda_driver(0);
    if (!gpu) throw millpond::memory_error(gpu.error());
    const auto pool = millpond::pool::create(*gpu);
    if (!pool) throw millpond::memory_error(pool.error());
    millpond::cuda_device_resource memory(**pool);
    go(memory, [&] { return (*pool)->statistics(); });
  });
  measure("RMM async", [](const auto& go) {
    rmm::mr::cuda_async_memory_resource memory(std::nullopt, ~std::size_t{0});
    go(memory, {});
  });
  measure("RMM pool", [](const auto& go) {
    rmm::mr::cuda_memory_resource upstream;
    rmm::mr::pool_memory_resource memory(upstream, std::size_t{1} << 28);
    go(memory, {});
  });
  measure("RMM arena", [](const auto& go) {
    rmm::mr::cuda_memory_resource upstream;
    rmm::mr::arena_memory_resource memory(upstream);
    go(memory, {});
  });
  cudaDeviceProp facts{};
  check(cudaGetDeviceProperties(&facts, 0), "asking the device");
  value result = result_of("RMM containers by resource", kept);
  result["gpu"] = std::string(facts.name);
  result["rows"] = rows;
  write_result(result, kept);
  return right ? 0 : 1;
} catch (const std::exception& why) {
  std::fprintf(stderr, "rmm_containers: %s\n", why.what());
  return 4;
}
