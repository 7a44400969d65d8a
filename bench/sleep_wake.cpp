// Sleep and wake of a pool with 16 GiB of live blocks (or --scale of it), against the bandwidth of
// plain pinned copies of the same bytes measured in the same run. The host memory is pinned
// beforehand, and its time reported apart. Contents are checked after every wake.
#include <algorithm>

#include "base/bits.hpp"
#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pool/sleep.hpp"

using namespace millpond;

namespace {

template <class Answer>
auto must(Answer answer) {
  return bench::need(std::move(answer), "sleep_wake");
}
double gb_per_s(std::uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

}  // namespace

int main(int count, char** arguments) try {
  bench::harness h("sleep_wake", count, arguments);
  driver& gpu = h.gpu();
  const auto now_ns = [&] { return h.gpu_time_ns(); };
  const auto seconds_since = [&](std::uint64_t start) {
    return static_cast<double>(now_ns() - start) / 1e9;
  };
  // --scale 0.25 is 4 GiB.
  const std::uint64_t bytes = align_up(
      static_cast<std::uint64_t>(16.0 * static_cast<double>(GiB) * h.settings().scale), 64 * MiB);
  const std::uint64_t block_bytes = 64 * MiB;
  stream_handle s = nullptr;
  must(gpu.stream_create(&s));
  {
    std::uint64_t start = now_ns();
    const auto store = must(pinned_store::create(h.shared_gpu(), bytes));
    const double pin_s = seconds_since(start);
    h.add({{"name", "pinned_store"},
           {"bytes", bytes},
           {"seconds", pin_s},
           {"GB_per_s", gb_per_s(bytes, pin_s)}});

    // The bandwidth to be compared with: one plain copy of all bytes each way, on memory that is
    // there.
    double to_host_s = 1e9, to_device_s = 1e9;
    {
      device_address flat = 0;
      must(gpu.memory_allocate(&flat, bytes));
      must(gpu.set_async(flat, 1, bytes, s));
      must(gpu.stream_synchronize(s));
      const auto host = reinterpret_cast<device_address>(store->data());
      for (int i = 0; i < 3; ++i) {
        start = now_ns();
        must(gpu.copy_async(host, flat, bytes, s));
        must(gpu.stream_synchronize(s));
        to_host_s = std::min(to_host_s, seconds_since(start));
        start = now_ns();
        must(gpu.copy_async(flat, host, bytes, s));
        must(gpu.stream_synchronize(s));
        to_device_s = std::min(to_device_s, seconds_since(start));
      }
      must(gpu.memory_free(flat));
    }
    h.add({{"name", "plain pinned copies"},
           {"bytes", bytes},
           {"to_host_s", to_host_s},
           {"to_device_s", to_device_s},
           {"to_host_GB_per_s", gb_per_s(bytes, to_host_s)},
           {"to_device_GB_per_s", gb_per_s(bytes, to_device_s)}});

    pool_options options;
    options.name = "model";
    const auto p = must(pool::create(h.shared_gpu(), options));
    std::vector<identity_block> blocks;
    for (std::uint64_t at = 0; at < bytes; at += block_bytes) {
      const std::uint64_t size = std::min(block_bytes, bytes - at);
      blocks.push_back(
          {reinterpret_cast<device_address>(p->allocate(size, s)), size, blocks.size() + 1});
    }
    void* report_memory = nullptr;
    must(gpu.host_allocate(&report_memory, sizeof(identity_report), driver::host_flags::none));
    auto* const report = new (report_memory) identity_report;
    const auto each = [&](auto&& call) {
      for (std::size_t i = 0; i < blocks.size(); i += max_identity_blocks) {
        call(std::span<const identity_block>(blocks).subspan(
            i, std::min(max_identity_blocks, blocks.size() - i)));
      }
      must(gpu.stream_synchronize(s));
    };
    each([&](auto part) { must(gpu.identity_write(part, s)); });
    for (int round = 0; round < 4; ++round) {
      std::uint64_t free_awake = 0, free_asleep = 0, total = 0;
      must(gpu.memory_info(&free_awake, &total));
      start = now_ns();
      const sleep_outcome slept = must(p->sleep({.host = store}));
      const double sleep_s = seconds_since(start);
      must(gpu.memory_info(&free_asleep, &total));
      start = now_ns();
      const wake_outcome woke = must(p->wake());
      const double wake_s = seconds_since(start);
      *report = {};
      each([&](auto part) { must(gpu.identity_check(part, report, s)); });
      h.add({{"name", "sleep and wake"},
             {"round", round},
             {"kept_bytes", slept.kept_bytes},
             {"released_bytes", slept.released_bytes},
             {"device_free_gained_bytes", free_asleep - free_awake},
             {"restored_bytes", woke.restored_bytes},
             {"sleep_s", sleep_s},
             {"wake_s", wake_s},
             {"share_of_copy_bandwidth", (to_host_s + to_device_s) / (sleep_s + wake_s)},
             {"sleep_share", to_host_s / sleep_s},
             {"wake_share", to_device_s / wake_s},
             {"mismatches", report->mismatches}});
      if (report->mismatches != 0)
        throw memory_error(
            {error_code::driver_failure, "contents were not what they were before sleep"});
    }
    for (const identity_block& b : blocks)
      p->deallocate(reinterpret_cast<void*>(b.address), b.bytes, s);
    must(gpu.host_free(report_memory));
  }
  must(gpu.stream_destroy(s));
  return 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "sleep_wake: %s\n", why.what());
  return 4;
}
