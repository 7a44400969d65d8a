// Copies between pageable and device memory: plain, from pinned memory, and staged; GB/s, and the share of the pinned rate.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "bench/support/harness.hpp"
#include "millpond/pinned_pool.hpp"
#include "millpond/staging.hpp"
#include "millpond/units.hpp"

using namespace millpond;

namespace {

void need(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "staging: %s failed\n", what);
  std::exit(4);
}

// Between two calls nothing, or long enough that idle threads sleep.
enum class gap : std::uint8_t { none, asleep };

template <class Call>
double rate(std::uint64_t bytes, Call&& call, gap between = gap::none) {
  std::vector<float> times;
  call();
  for (int i = 0; i < 9; ++i) {
    if (between == gap::asleep) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::uint64_t start = bench::now_ns();
    call();
    times.push_back(static_cast<float>(bench::now_ns() - start));
  }
  return static_cast<double>(bytes) / bench::percentile(times, 0.5);
}

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("staging", count, arguments);
  driver& gpu = h.gpu();
  const std::shared_ptr<driver> shared(&gpu, [](driver*) {});
  auto pool = make_pinned_pool(shared, {.pinning = {.budget_bytes = 4 * GiB}, .initial_bytes = 64 * MiB});
  need(pool.has_value(), "the pinned pool");
  stream_handle stream = nullptr;
  need(gpu.stream_create(&stream).ok(), "a stream");
  const auto wait = [&] { need(gpu.stream_synchronize(stream).ok(), "waiting"); };
  for (const std::uint64_t bytes : {MiB, 2 * MiB, 4 * MiB, 8 * MiB, 16 * MiB, 32 * MiB, 64 * MiB, 256 * MiB, GiB}) {
    if (bytes > h.operations(GiB)) continue;
    device_address device = 0;
    need(gpu.memory_allocate(&device, bytes).ok(), "device memory");
    const std::unique_ptr<unsigned char[]> pageable(new unsigned char[bytes]);
    std::memset(pageable.get(), 1, bytes);
    const auto host = reinterpret_cast<device_address>(pageable.get());
    auto pinned = (*pool)->try_allocate(bytes, default_alignment, stream);
    need(pinned.has_value(), "pinned memory");
    const auto fixed = reinterpret_cast<device_address>(*pinned);
    const auto copy = [&](device_address to, device_address from) {
      return rate(bytes, [&] {
        need(gpu.copy_async(to, from, bytes, stream).ok(), "a copy");
        wait();
      });
    };
    const double pinned_in = copy(device, fixed), pinned_out = copy(fixed, device);
    h.add({{"name", "pinned"}, {"bytes", bytes}, {"to_device_gb_s", pinned_in}, {"to_host_gb_s", pinned_out}});
    h.add({{"name", "pageable"}, {"bytes", bytes}, {"to_device_gb_s", copy(device, host)}, {"to_host_gb_s", copy(host, device)}});
    (*pool)->deallocate(*pinned, bytes, stream);
    const auto measure = [&](const char* name, staging_options options, gap between) {
      auto made = staging::create(shared, **pool, options);
      need(made.has_value(), "staging");
      const double in = rate(bytes, [&] {
        need((*made)->to_device(device, pageable.get(), bytes, stream).has_value(), "staging to the device");
        wait();
      }, between);
      const double out = rate(bytes, [&] { need((*made)->to_host(pageable.get(), device, bytes, stream).has_value(), "staging back"); }, between);
      const staging_statistics done = (*made)->statistics();
      h.add({{"name", name}, {"bytes", bytes}, {"threads", options.threads}, {"chunk_bytes", options.chunk_bytes},
             {"to_device_gb_s", in}, {"to_host_gb_s", out}, {"to_device_share", in / pinned_in}, {"to_host_share", out / pinned_out},
             {"chunks", done.chunks}, {"chunks_of_caller", done.chunks_of_caller}});
    };
    // With no least size: what staging makes of sizes that it would copy plainly is told too.
    measure("staging, default", {.least_bytes = 0}, gap::none);
    measure("staging, threads asleep", {.least_bytes = 0}, gap::asleep);
    if (bytes == MiB || bytes == 16 * MiB || bytes >= 256 * MiB) {
      for (const unsigned threads : {2u, 4u, 8u, 12u, 15u}) {
        for (const std::uint64_t chunk : {512 * KiB, 2 * MiB, 4 * MiB}) {
          measure("staging", {.threads = threads, .chunk_bytes = chunk, .least_bytes = 0}, gap::none);
        }
      }
    }
    static_cast<void>(gpu.memory_free(device));
  }
  static_cast<void>(gpu.stream_destroy(stream));
}
