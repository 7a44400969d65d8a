// An inference server whose activations are planned, a plan a batch size, against the same server
// on the pool.
//
//     planned_inference          the first CUDA device, or the simulated GPU where there is none
//     planned_inference sim      the simulated GPU
//
// Requests of batch 1 to 32 run through 8 layers on one stream. The first request of each batch
// size is served by the pool and recorded; from then on its blocks are places in one arena that all
// 32 plans share. Every layer's output is written by the GPU and checked before it is freed, so two
// blocks that shared a live byte would be seen.
#include <millpond/millpond.hpp>
#include <millpond/planned/planned_resource.hpp>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string_view>

namespace mp = millpond;

namespace {

constexpr std::uint64_t layers = 8;
constexpr std::uint64_t largest_batch = 32;
constexpr std::uint64_t requests = 320;
constexpr std::uint64_t item_bytes = 256 * mp::KiB;  // of one item's activations in one layer

std::shared_ptr<mp::driver> open_gpu(bool want_simulated) {
  if (!want_simulated) {
    auto card = mp::open_cuda_driver(0);
    if (card) return *card;
    std::printf("No card is used: %s\n", card.error().message.c_str());
  }
  auto simulated = mp::simulated_gpu::create();
  if (!simulated) throw mp::memory_error(simulated.error());
  return *simulated;
}

void must(mp::call_result answer) {
  if (!answer.ok()) throw mp::memory_error(mp::to_error(answer, "planned_inference"));
}

// How a server gets its activations.
struct memory {
  std::function<void(std::uint64_t batch)> begin;
  std::function<void*(std::uint64_t bytes)> allocate;
  std::function<void(void* ptr, std::uint64_t bytes)> deallocate;
  std::function<void()> end;
};

class server {
 public:
  server(mp::driver& gpu, mp::stream_handle stream, mp::buffer<mp::identity_report>& report)
      : gpu_(gpu), stream_(stream), report_(report) {}

  // A forward pass. `odd_bytes` more than planned in the fourth layer: a request that is not as the
  // others were.
  void request(memory& from, std::uint64_t batch, std::uint64_t odd_bytes) {
    from.begin(batch);
    block input = take(from, batch * item_bytes);
    for (std::uint64_t layer = 0; layer < layers; ++layer) {
      block scratch =
          take(from, batch * item_bytes / 4 * (1 + layer % 3) + (layer == 3 ? odd_bytes : 0));
      block output = take(from, batch * item_bytes * (1 + layer % 2));
      check(input);
      check(scratch);
      give(from, scratch);
      give(from, input);
      input = output;
    }
    check(input);
    give(from, input);
    from.end();
    must(gpu_.stream_synchronize(stream_));  // the answer goes out
  }
  [[nodiscard]] double ns_a_block() const {
    return static_cast<double>(ns_) / static_cast<double>(blocks_);
  }
  void forget_times() { ns_ = blocks_ = 0; }

 private:
  struct block {
    void* ptr;
    std::uint64_t bytes, identity;
  };
  static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                      std::chrono::nanoseconds(1));
  }
  block take(memory& from, std::uint64_t bytes) {
    const std::uint64_t start = now_ns();
    void* const ptr = from.allocate(bytes);
    ns_ += now_ns() - start;
    ++blocks_;
    const block made{ptr, bytes, ++identity_};
    const mp::identity_block write{reinterpret_cast<mp::device_address>(ptr), bytes, made.identity};
    must(gpu_.identity_write({&write, 1}, stream_));
    return made;
  }
  void check(const block& of) {
    const mp::identity_block read{reinterpret_cast<mp::device_address>(of.ptr), of.bytes,
                                  of.identity};
    must(gpu_.identity_check({&read, 1}, report_.data(), stream_));
  }
  void give(memory& to, const block& of) {
    const std::uint64_t start = now_ns();
    to.deallocate(of.ptr, of.bytes);
    ns_ += now_ns() - start;
  }

  mp::driver& gpu_;
  mp::stream_handle stream_;
  mp::buffer<mp::identity_report>& report_;
  std::uint64_t identity_ = 0, ns_ = 0, blocks_ = 0;
};

std::uint64_t batch_of(std::uint64_t request) {
  return 1 + request * 13 % largest_batch;
}  // each batch in turn, not in order

std::shared_ptr<mp::pool> make_pool(const std::shared_ptr<mp::driver>& gpu) {
  auto made = mp::pool::create(gpu, {});
  if (!made) throw mp::memory_error(made.error());
  return *made;
}

}  // namespace

int main(int count, char** arguments) try {
  const auto gpu = open_gpu(count > 1 && std::string_view(arguments[count - 1]) == "sim");
  must(gpu->bind_thread());
  std::printf("GPU: %s\n%llu requests of batch 1 to %llu, %llu layers each, one stream\n\n",
              gpu->info().name.c_str(), static_cast<unsigned long long>(requests),
              static_cast<unsigned long long>(largest_batch),
              static_cast<unsigned long long>(layers));
  mp::stream_handle stream = nullptr;
  must(gpu->stream_create(&stream));
  std::uint64_t wrong = 0;
  {
    mp::pinned_resource pinned(gpu);
    mp::buffer<mp::identity_report> report(1, pinned, stream);
    report.host_span()[0] = {};

    std::printf("%-8s %14s %20s %22s\n", "", "reserved", "blocks by the pool",
                "ns a block (this host)");
    const auto print = [](const char* name, std::uint64_t reserved, std::uint64_t by_pool,
                          double ns) {
      std::printf("%-8s %14s %20llu %22.1f\n", name, mp::format_bytes(reserved).c_str(),
                  static_cast<unsigned long long>(by_pool), ns);
    };
    {
      const auto pool = make_pool(gpu);
      auto cache = pool->cache(stream);
      memory plain{[](std::uint64_t) {}, [&](std::uint64_t bytes) { return cache.allocate(bytes); },
                   [&](void* ptr, std::uint64_t bytes) { cache.deallocate(ptr, bytes); }, [] {}};
      server one(*gpu, stream, report);
      for (std::uint64_t r = 0; r < largest_batch; ++r) one.request(plain, batch_of(r), 0);
      one.forget_times();
      for (std::uint64_t r = 0; r < requests; ++r) one.request(plain, batch_of(r), 0);
      print("pool", pool->statistics().reserved_bytes, requests * (2 * layers + 1),
            one.ns_a_block());
    }
    {
      const auto pool = make_pool(gpu);
      mp::planned_resource planned(*pool);
      mp::planned_stream planned_on = planned.on_stream(stream);
      memory by_plan{[&](std::uint64_t batch) { planned_on.begin(batch); },
                     [&](std::uint64_t bytes) { return planned_on.allocate(bytes); },
                     [&](void* ptr, std::uint64_t bytes) { planned_on.deallocate(ptr, bytes); },
                     [&] { planned_on.end(); }};
      server one(*gpu, stream, report);
      for (std::uint64_t r = 0; r < largest_batch; ++r)
        one.request(by_plan, batch_of(r), 0);  // recorded, and planned
      pool->trim(0);
      one.forget_times();
      const mp::planned_counters before = planned_on.counters();
      for (std::uint64_t r = 0; r < requests; ++r) one.request(by_plan, batch_of(r), 0);
      const mp::planned_counters after = planned_on.counters();
      print("planned", pool->statistics().reserved_bytes,
            requests * (2 * layers + 1) - (after.served - before.served), one.ns_a_block());
      std::printf("\none arena of %s for %llu plans; the largest plan's lower bound is %s\n",
                  mp::format_bytes(after.arena_bytes).c_str(),
                  static_cast<unsigned long long>(after.recorded),
                  mp::format_bytes(after.lower_bound_bytes).c_str());

      one.request(by_plan, 7, 4096);
      const mp::planned_counters odd = planned_on.counters();
      std::printf(
          "a request that asks for 4 KiB more in its fourth layer: %llu of %llu blocks by the "
          "pool, no error\n",
          static_cast<unsigned long long>(odd.deviations - after.deviations),
          static_cast<unsigned long long>(2 * layers + 1));
    }
    wrong = report.host_span()[0].mismatches;
    std::printf("words that another block had overwritten: %llu\n",
                static_cast<unsigned long long>(wrong));
  }
  must(gpu->stream_destroy(stream));
  return wrong == 0 ? 0 : 1;
} catch (const std::exception& why) {
  std::fprintf(stderr, "planned_inference: %s\n", why.what());
  return 4;
}
