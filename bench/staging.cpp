// Copies between pageable and device memory: plain, from pinned memory, and staged; GB/s, and the
// share of the pinned rate.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pinned/pinned_pool.hpp"
#include "millpond/pinned/staging.hpp"

using namespace millpond;

namespace {

using bench::need;

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

// How pinned memory is written.
enum class stores : std::uint8_t { cached, past_caches, demoted };
constexpr const char* name_of(stores how) {
  return how == stores::cached    ? "pinned, just written"
         : how == stores::demoted ? "pinned, just written and demoted"
                                  : "pinned, just written past the caches";
}

void write_by(stores how, unsigned char* to, const unsigned char* from, std::uint64_t bytes) {
#if defined(__x86_64__)
  if (how == stores::past_caches) {
    for (std::uint64_t at = 0; at + 16 <= bytes; at += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
    }
    _mm_sfence();
    return;
  }
#endif
  constexpr std::uint64_t stretch = 8 * KiB;
  for (std::uint64_t at = 0; at < bytes; at += stretch) {
    std::memcpy(to + at, from + at, stretch);
#if defined(__x86_64__)
    for (std::uint64_t line = 0; how == stores::demoted && line < stretch; line += 64) {
      asm volatile(".byte 0x0f, 0x1c, 0x00" : : "a"(to + at + line) : "memory");  // cldemote (%rax)
    }
#endif
  }
}

// The same bytes in several copies of one stream, an event after each, and how long the calls that
// put them there take.
void in_copies(bench::harness& h, stream_handle stream, device_address device,
               device_address pinned, std::uint64_t bytes, std::uint64_t copies) {
  driver& gpu = h.gpu();
  std::vector<event_handle> events(copies);
  for (event_handle& each : events) need(gpu.event_create(&each).ok(), "an event");
  std::uint64_t calls = 0, rounds = 0;
  const auto both_ways = [&](device_address to, device_address from) {
    return rate(bytes, [&] {
      const std::uint64_t start = bench::now_ns();
      for (std::uint64_t n = 0; n < copies; ++n) {
        const std::uint64_t at = n * (bytes / copies);
        need(gpu.copy_async(to + at, from + at, bytes / copies, stream).ok(), "a copy");
        need(gpu.event_record(events[n], stream).ok(), "an event");
      }
      calls += bench::now_ns() - start;
      ++rounds;
      need(gpu.stream_synchronize(stream).ok(), "waiting");
    });
  };
  const double in = both_ways(device, pinned), out = both_ways(pinned, device);
  h.add({{"name", "pinned, in several copies"},
         {"bytes", bytes},
         {"copies", copies},
         {"to_device_gb_s", in},
         {"to_host_gb_s", out},
         {"call_us", static_cast<double>(calls) / 1e3 / static_cast<double>(rounds * copies)}});
  for (const event_handle each : events) need(gpu.event_destroy(each).ok(), "an event's end");
}

// Threads that fill pinned memory from pageable memory in pieces of 128 KiB, and the other way; no
// link.
void filling(bench::harness& h, unsigned char* pinned, unsigned char* pageable, std::uint64_t bytes,
             unsigned threads) {
  constexpr std::uint64_t piece = 128 * KiB;
  const auto way = [&](unsigned char* to, const unsigned char* from, stores how) {
    std::atomic<unsigned> round{0}, ended{0};
    std::atomic<std::uint64_t> next{0};
    std::vector<std::jthread> crew;
    for (unsigned t = 0; t < threads; ++t) {
      crew.emplace_back([&] {
        for (unsigned seen = 0; seen < 10;) {
          if (round.load(std::memory_order_acquire) == seen) continue;
          ++seen;
          for (std::uint64_t at = next.fetch_add(piece); at < bytes; at = next.fetch_add(piece))
            write_by(how, to + at, from + at, piece);
          ended.fetch_add(1, std::memory_order_release);
        }
      });
    }
    return rate(bytes, [&] {
      next.store(0);
      ended.store(0);
      round.fetch_add(1, std::memory_order_release);
      while (ended.load(std::memory_order_acquire) != threads) {
      }
    });
  };
  const double in = way(pinned, pageable, stores::cached),
               past = way(pinned, pageable, stores::past_caches),
               demoted = way(pinned, pageable, stores::demoted),
               out = way(pageable, pinned, stores::cached);
  h.add({{"name", "filling alone"},
         {"past_caches_gb_s", past},
         {"demoted_gb_s", demoted},
         {"bytes", bytes},
         {"threads", threads},
         {"to_device_gb_s", in},
         {"to_host_gb_s", out}});
}

// What the link gives of memory that cores have just written: cached, or past the caches. The time
// of the copy alone.
void after_writing(bench::harness& h, stream_handle stream, device_address device,
                   unsigned char* pinned, const unsigned char* pageable, std::uint64_t bytes) {
  constexpr unsigned threads = 12;
  const auto write = [&](stores how) {
    std::vector<std::jthread> crew;
    for (unsigned t = 0; t < threads; ++t) {
      crew.emplace_back([=] {
        for (std::uint64_t at = t * (128 * KiB); at < bytes; at += threads * 128 * KiB) {
          write_by(how, pinned + at, pageable + at, 128 * KiB);
        }
      });
    }
  };
  for (const stores how : {stores::cached, stores::past_caches, stores::demoted}) {
    std::vector<float> times;
    for (int i = 0; i < 10; ++i) {
      write(how);
      const std::uint64_t start = bench::now_ns();
      need(h.gpu().copy_async(device, reinterpret_cast<device_address>(pinned), bytes, stream).ok(),
           "a copy");
      need(h.gpu().stream_synchronize(stream).ok(), "waiting");
      if (i > 0) times.push_back(static_cast<float>(bench::now_ns() - start));
    }
    h.add({{"name", name_of(how)},
           {"bytes", bytes},
           {"to_device_gb_s", static_cast<double>(bytes) / bench::percentile(times, 0.5)}});
  }
}

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("staging", count, arguments);
  driver& gpu = h.gpu();
  const std::shared_ptr<driver>& shared = h.shared_gpu();
  auto pool =
      make_pinned_pool(shared, {.pinning = {.budget_bytes = 4 * GiB}, .initial_bytes = 64 * MiB});
  need(pool.has_value(), "the pinned pool");
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool known = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1u << 25)) != 0;
  h.add({{"name", "processor"}, {"tells_of_cldemote", known}});
#endif
  stream_handle stream = nullptr;
  need(gpu.stream_create(&stream).ok(), "a stream");
  const auto wait = [&] { need(gpu.stream_synchronize(stream).ok(), "waiting"); };
  for (const std::uint64_t bytes :
       {MiB, 2 * MiB, 4 * MiB, 8 * MiB, 16 * MiB, 32 * MiB, 64 * MiB, 256 * MiB, GiB}) {
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
    h.add({{"name", "pinned"},
           {"bytes", bytes},
           {"to_device_gb_s", pinned_in},
           {"to_host_gb_s", pinned_out}});
    h.add({{"name", "pageable"},
           {"bytes", bytes},
           {"to_device_gb_s", copy(device, host)},
           {"to_host_gb_s", copy(host, device)}});
    // What the parts take alone: the link with the same bytes in several copies, an event after
    // each; the threads that fill.
    if (bytes == 16 * MiB) {
      for (const std::uint64_t copies : {2u, 4u, 8u, 16u, 32u})
        in_copies(h, stream, device, fixed, bytes, copies);
      after_writing(h, stream, device, static_cast<unsigned char*>(*pinned), pageable.get(), bytes);
    }
    if (bytes == 16 * MiB || bytes == 256 * MiB) {
      for (const unsigned threads : {1u, 4u, 8u, 12u, 15u})
        filling(h, static_cast<unsigned char*>(*pinned), pageable.get(), bytes, threads);
    }
    (*pool)->deallocate(*pinned, bytes, stream);
    const auto measure = [&](const char* name, staging_options options, gap between) {
      auto made = staging::create(shared, **pool, options);
      need(made.has_value(), "staging");
      const double in = rate(
          bytes,
          [&] {
            need((*made)->to_device(device, pageable.get(), bytes, stream).has_value(),
                 "staging to the device");
            wait();
          },
          between);
      const double out = rate(
          bytes,
          [&] {
            need((*made)->to_host(pageable.get(), device, bytes, stream).has_value(),
                 "staging back");
          },
          between);
      const staging_statistics done = (*made)->statistics();
      h.add({{"name", name},
             {"bytes", bytes},
             {"threads", options.threads},
             {"buffer_bytes", options.buffer_bytes},
             {"to_device_gb_s", in},
             {"to_host_gb_s", out},
             {"to_device_share", in / pinned_in},
             {"to_host_share", out / pinned_out},
             {"copies", done.copies},
             {"pieces", done.pieces},
             {"pieces_of_caller", done.pieces_of_caller}});
    };
    // With no least size: what staging makes of sizes that it would copy plainly is reported too.
    measure("staging, default", {.least_bytes = 0}, gap::none);
    measure("staging, threads asleep", {.least_bytes = 0}, gap::asleep);
    for (const auto& [name, writes] :
         {std::pair{"staging, plain writes", buffer_writes::plain},
          {"staging, demoted writes", buffer_writes::demoted},
          {"staging, writes past the caches", buffer_writes::past_caches}}) {
      if (bytes >= 4 * MiB) measure(name, {.least_bytes = 0, .writes = writes}, gap::none);
    }
    if (bytes == 16 * MiB || bytes == 256 * MiB) {
      for (const unsigned threads : {2u, 4u, 8u, 10u, 12u, 14u, 15u})
        measure("staging", {.threads = threads, .least_bytes = 0}, gap::none);
      for (const std::uint64_t buffer : {8 * MiB, 16 * MiB, 64 * MiB})
        measure("staging", {.buffer_bytes = buffer, .least_bytes = 0}, gap::none);
    }
    static_cast<void>(gpu.memory_free(device));
  }
  static_cast<void>(gpu.stream_destroy(stream));
}
