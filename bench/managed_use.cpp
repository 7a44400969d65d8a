// Managed memory with its use stated, beside explicit copies from pinned memory: a kernel that
// reads new data each round, one that reads the same data again, and a control block that both
// sides write.
#include <algorithm>
#include <cstring>

#include "bench/support/card_kernels.hpp"
#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"
#include "millpond/managed/managed_buffer.hpp"
#include "millpond/pinned/pinned_pool.hpp"

using namespace millpond;

namespace {

constexpr const char* ptx_text =
#include "bench/kernels/touch_ptx.inc"
    ;

using bench::need;

struct card {
  driver& gpu;
  bench::card_kernels kernels;
  stream_handle stream = nullptr;
  std::uint32_t* sink = nullptr;

  // Reads, or reads and writes, all of it.
  void pass(const char* name, device_address at, std::uint64_t bytes) {
    if (gpu.simulated()) {
      const identity_block block{at, bytes, 1};
      need(gpu.identity_write({&block, 1}, stream).ok(), "a kernel");
      return;
    }
    std::uint64_t count = std::max<std::uint64_t>(1, bytes / 16);
    void* parameters[] = {&at, &count, &sink};
    const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>(
        (count + 255) / 256, 1, 8 * static_cast<unsigned>(gpu.info().multiprocessors)));
    need(kernels.launch(kernels.find(name), blocks, 256, parameters, stream).ok(), "a launch");
  }
  void wait() { need(gpu.stream_synchronize(stream).ok(), "waiting"); }
};

template <class Before, class Call>
bench::value times(int rounds, Before&& before, Call&& call) {
  std::vector<float> ms;
  for (int i = 0; i < rounds + 1; ++i) {
    before();
    const std::uint64_t start = bench::now_ns();
    call();
    if (i > 0) ms.push_back(static_cast<float>(static_cast<double>(bench::now_ns() - start) / 1e6));
  }
  std::vector<float> copy = ms;
  return {{"p50_ms", bench::percentile(copy, 0.5)},
          {"min_ms", *std::ranges::min_element(ms)},
          {"max_ms", *std::ranges::max_element(ms)}};
}

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("managed_use", count, arguments);
  card on{h.gpu(), {}, nullptr, nullptr};
  const std::shared_ptr<driver>& shared = h.shared_gpu();
  std::string why;
  if (!h.gpu().simulated()) need(on.kernels.load(ptx_text, why), why.c_str());
  need(h.gpu().stream_create(&on.stream).ok(), "a stream");
  auto pinned = make_pinned_pool(shared, {.pinning = {.budget_bytes = 4 * GiB}});
  need(pinned.has_value(), "the pinned pool");
  on.sink = static_cast<std::uint32_t*>((*pinned)->allocate(4096, on.stream));
  using enum managed_intent;
  for (const std::uint64_t full : {16 * MiB, 256 * MiB}) {
    const std::uint64_t bytes = h.operations(full) / 16 * 16;
    device_address device = 0;
    need(h.gpu().memory_allocate(&device, bytes).ok(), "device memory");
    auto* const source = static_cast<unsigned char*>((*pinned)->allocate(bytes, on.stream));
    const auto row = [&](const char* name, bench::value measured) {
      measured["name"] = name;
      measured["bytes"] = bytes;
      h.add(measured);
    };
    row("pinned copy and kernel",
        times(
            9, [&] { std::memset(source, 1, bytes); },
            [&] {
              need(h.gpu()
                       .copy_async(device, reinterpret_cast<device_address>(source), bytes,
                                   on.stream)
                       .ok(),
                   "a copy");
              on.pass("touch_read", device, bytes);
              on.wait();
            }));
    const auto managed = [&](managed_use use, const char* name, bool fresh) {
      managed_resource memory(shared, nullptr, use);
      auto buffer = managed_buffer<unsigned char>::create(bytes, memory, on.stream).value();
      const auto fill = [&] {
        auto view = buffer.host_view().value();
        std::memset(view.data(), 1, bytes);
      };
      fill();
      row(name, times(
                    9,
                    [&] {
                      if (fresh) fill();
                    },
                    [&] {
                      auto view = buffer.device_view_to_read(on.stream).value();
                      on.pass("touch_read", view.address(), bytes);
                      on.wait();
                    }));
    };
    managed({streaming, memory_side::host, memory_side::device}, "managed, streaming", true);
    managed({read_mostly, memory_side::host, memory_side::both},
            "managed, read-mostly, written each round", true);
    managed({read_mostly, memory_side::host, memory_side::both}, "managed, read-mostly, read again",
            false);
    managed({}, "managed, no use stated", true);
    row("device memory, read again", times(
                                         9, [] {},
                                         [&] {
                                           on.pass("touch_read", device, bytes);
                                           on.wait();
                                         }));
    (*pinned)->deallocate(source, bytes, on.stream);
    static_cast<void>(h.gpu().memory_free(device));
  }
  const auto control = [&](const char* name, std::uint64_t* block) {
    std::vector<float> us;
    const std::uint64_t rounds = h.operations(20'000);
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < rounds; ++i) {
      const std::uint64_t start = bench::now_ns();
      *static_cast<volatile std::uint64_t*>(block) = i;
      on.pass("touch_stream", reinterpret_cast<device_address>(block), 16);
      on.wait();
      sum += *static_cast<volatile std::uint64_t*>(block);
      us.push_back(static_cast<float>(static_cast<double>(bench::now_ns() - start) / 1e3));
    }
    std::vector<float> copy = us;
    const double p50 = bench::percentile(copy, 0.5), p99 = bench::percentile(copy, 0.99),
                 p999 = bench::percentile(copy, 0.999);
    const auto slow = std::ranges::count_if(us, [](float each) { return each > 100; });
    h.add({{"name", name},
           {"rounds", rounds},
           {"p50_us", p50},
           {"p99_us", p99},
           {"p999_us", p999},
           {"over_100_us", slow},
           {"sum", sum}});
  };
  {
    control_block<std::uint64_t> block(**pinned, on.stream);
    control("control block, pinned pool", reinterpret_cast<std::uint64_t*>(block.address()));
  }
  device_address managed_block = 0;
  need(h.gpu().managed_allocate(&managed_block, 4096).ok(), "managed memory");
  std::memset(reinterpret_cast<void*>(managed_block), 0, 4096);
  control("control block, managed", reinterpret_cast<std::uint64_t*>(managed_block));
  static_cast<void>(h.gpu().memory_free(managed_block));
  (*pinned)->deallocate(on.sink, 4096, on.stream);
  static_cast<void>(h.gpu().stream_destroy(on.stream));
}
