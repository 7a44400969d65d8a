// The canary soak: threads churn streams through one pool while kernels write an identity into
// every block after it was handed out and check it before it is given back. Two blocks that share a
// byte, or a block that is reused before its stream's order allows it, change an identity, and the
// check says whose.
//
// One kernel writes or checks up to 64 blocks of one stream; one block in fifty gets launches of
// its own. One block in a hundred is checked on another stream, behind an event, and freed there;
// one in a hundred is reported by record_use. Streams are destroyed with work pending and made
// anew, so that handles come back.
//
// Two threads at a time hand each other blocks of a stream that both use (canary_remote_frees.hpp),
// so that frees travel between caches; and now and then each thread captures graphs that share an
// arena and launches them (canary_graphs.hpp).
#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "base/random.hpp"
#include "bench/support/canary_graphs.hpp"
#include "bench/support/canary_remote_frees.hpp"
#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

namespace {

using canary::block_of;
using canary::held;
using canary::totals;

class churner {
 public:
  churner(driver& gpu, pool& memory, identity_report* report, totals& sums, std::uint64_t seed,
          unsigned streams)
      : gpu_(gpu),
        memory_(memory),
        report_(report),
        sums_(sums),
        pick_(seed),
        identity_(seed << 40),
        of_(streams) {
    for (cache_of& l : of_) static_cast<void>(gpu_.stream_create(&l.stream));
    static_cast<void>(gpu_.event_create(&event_));
  }

  void round() {
    cache_of& l = of_[pick_.below(of_.size())];
    std::vector<identity_block> fresh;
    const std::size_t wanted = pick_.between(8, 64);
    std::uint64_t operations = 0;
    for (std::size_t i = 0; i < wanted && l.live.size() < 160; ++i) {
      const std::uint64_t bytes = pick_.chance(0.02) ? pick_.log_uniform(1 * MiB, 8 * MiB)
                                                     : pick_.log_uniform(256, 96 * KiB);
      auto got = memory_.try_allocate(bytes, default_alignment, l.stream);
      if (!got) {
        sums_.failures.fetch_add(1);
        continue;
      }
      const held h{*got, bytes, ++identity_};
      l.live.push_back(h);
      ++operations;
      if (pick_.chance(0.02)) {
        const identity_block one = block_of(h);
        launch(gpu_.identity_write({&one, 1}, l.stream), true);
      } else {
        fresh.push_back(block_of(h));
      }
    }
    if (!fresh.empty()) launch(gpu_.identity_write(fresh, l.stream), false);
    operations += give_back(l, l.live.size() > 100 ? 64 : pick_.between(8, 64));
    sums_.operations.fetch_add(operations, std::memory_order_relaxed);
    if (pick_.chance(0.002)) renew(l);
  }

  void finish() {
    std::uint64_t operations = 0;
    // All blocks first: one may be freed on another of these streams, and a call on a destroyed
    // one's handle ends the process.
    for (cache_of& l : of_) {
      while (!l.live.empty()) operations += give_back(l, 64);
    }
    for (cache_of& l : of_) {
      static_cast<void>(gpu_.stream_synchronize(l.stream));
      static_cast<void>(gpu_.stream_destroy(l.stream));
    }
    sums_.operations.fetch_add(operations);
    static_cast<void>(gpu_.event_destroy(event_));
  }

 private:
  struct cache_of {
    stream_handle stream = nullptr;
    std::vector<held> live;
  };

  void launch(call_result answer, bool single) {
    if (!answer.ok()) sums_.failures.fetch_add(1);
    (single ? sums_.single_launches : sums_.launches).fetch_add(1, std::memory_order_relaxed);
  }

  std::uint64_t give_back(cache_of& l, std::size_t count) {
    std::vector<held> out;
    for (std::size_t i = 0; i < count && !l.live.empty(); ++i) {
      const std::size_t at = pick_.below(l.live.size());
      out.push_back(l.live[at]);
      l.live[at] = l.live.back();
      l.live.pop_back();
    }
    if (out.empty()) return 0;
    if (of_.size() > 1 && pick_.chance(0.01)) {
      // Checked and freed on another stream, which is put behind this one first.
      cache_of& other = of_[pick_.below(of_.size())];
      static_cast<void>(gpu_.event_record(event_, l.stream));
      static_cast<void>(gpu_.stream_wait_event(other.stream, event_));
      check(out, other.stream);
      for (const held& h : out) memory_.deallocate(h.ptr, h.bytes, other.stream);
      sums_.crossings.fetch_add(out.size(), std::memory_order_relaxed);
      return out.size();
    }
    if (of_.size() > 1 && pick_.chance(0.01)) {
      // Checked on another stream that nothing puts before the free but record_use.
      cache_of& other = of_[pick_.below(of_.size())];
      static_cast<void>(gpu_.event_record(event_, l.stream));
      static_cast<void>(gpu_.stream_wait_event(other.stream, event_));
      static_cast<void>(gpu_.spin(20'000, other.stream));
      check(out, other.stream);
      for (const held& h : out) {
        if (!memory_.record_use(h.ptr, other.stream)) sums_.failures.fetch_add(1);
        memory_.deallocate(h.ptr, h.bytes, l.stream);
      }
      sums_.uses.fetch_add(out.size(), std::memory_order_relaxed);
      return out.size();
    }
    check(out, l.stream);
    for (const held& h : out) memory_.deallocate(h.ptr, h.bytes, l.stream);
    return out.size();
  }

  void check(const std::vector<held>& blocks, stream_handle stream) {
    std::vector<identity_block> batch;
    for (const held& h : blocks) {
      if (pick_.chance(0.02)) {
        const identity_block one = block_of(h);
        launch(gpu_.identity_check({&one, 1}, report_, stream), true);
      } else {
        batch.push_back(block_of(h));
      }
    }
    if (!batch.empty()) launch(gpu_.identity_check(batch, report_, stream), false);
  }

  // The stream goes with work pending behind its last frees, and its handle may come back at once.
  void renew(cache_of& l) {
    while (!l.live.empty()) sums_.operations.fetch_add(give_back(l, 64));
    static_cast<void>(gpu_.spin(50'000, l.stream));
    static_cast<void>(gpu_.stream_destroy(l.stream));
    static_cast<void>(gpu_.stream_create(&l.stream));
    sums_.streams_made.fetch_add(1, std::memory_order_relaxed);
  }

  driver& gpu_;
  pool& memory_;
  identity_report* report_;
  totals& sums_;
  millpond::random pick_;
  std::uint64_t identity_;
  std::vector<cache_of> of_;
  event_handle event_ = nullptr;
};

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("canary", count, arguments);
  driver& gpu = h.gpu();
  const double seconds = h.settings().seconds > 0 ? h.settings().seconds : 10;
  const unsigned threads = gpu.simulated() ? 2 : 16;
  constexpr unsigned streams_a_thread = 4;
  void* raw = nullptr;
  if (!gpu.host_allocate(&raw, sizeof(identity_report), driver::host_flags::none).ok()) return 4;
  auto* const report = new (raw) identity_report{};
  std::string why;
  // A limit well below what the threads would like, so that the slow paths and the ladder run too.
  pool_options options;
  options.limit_bytes = 2 * GiB;
  options.clock = bench::now_ns;
  auto made = pool::create(h.shared_gpu(), options);
  if (!made) bench::stop_with(4, made.error().message);
  totals sums;
  std::vector<canary::handover> handovers(threads);  // each thread's to the one beside it
  bench::start_line stopped(threads), read(threads);
  const std::uint64_t end = bench::now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
  // Looks at the pool from outside as an exporter of metrics does, and now and then trims: each
  // look takes every cache's lock.
  std::atomic<bool> watched_enough{false};
  std::uint64_t looks = 0;
  std::thread watcher([&] {
    static_cast<void>(gpu.bind_thread());
    for (; !watched_enough; ++looks) {
      static_cast<void>((*made)->statistics());
      if (looks % 16 == 0) static_cast<void>((*made)->explain());
      if (looks % 64 == 0) static_cast<void>((*made)->trim(options.limit_bytes / 2));
      std::this_thread::yield();
    }
  });
  bench::on_threads(gpu, threads, [&](unsigned t) {
    const std::uint64_t seed = h.settings().seed * 1000 + t;
    churner mine(gpu, **made, report, sums, seed, streams_a_thread);
    canary::pen_pal pal(gpu, **made, report, sums, handovers[t], handovers[t ^ 1], seed);
    canary::graph_rounds graphs(gpu, **made, report, sums, seed);
    millpond::random pick(seed);
    while (bench::now_ns() < end && report->mismatches == 0) {
      mine.round();
      pal.round();
      if (pick.chance(0.002)) graphs.round();
    }
    // Nobody names a stream that another thread may have destroyed: first all stop handing over,
    // then all is read.
    stopped.wait();
    pal.read_all();
    read.wait();
    pal.finish();
    graphs.finish();
    mine.finish();
  });
  watched_enough = true;
  watcher.join();
  // The driver tells of graphs that are gone when it likes.
  pool_statistics s = (*made)->statistics();
  for (int i = 0; i < 2000 && s.captures + s.graph_arenas != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    (*made)->trim(~std::uint64_t{0});
    s = (*made)->statistics();
  }
  (*made)->check();
  // All is freed: what does not come back is lost.
  const std::uint64_t peak_reserved = s.peak_reserved_bytes;
  std::uint64_t lost = ~std::uint64_t{0};
  for (int i = 0; i < 2000 && lost != 0; ++i) {
    static_cast<void>((*made)->synchronize());
    static_cast<void>((*made)->trim(0));
    lost = (*made)->statistics().reserved_bytes;
  }
  h.add({{"seconds", seconds},
         {"looks_from_outside", looks},
         {"lost_bytes", lost},
         {"threads", threads},
         {"streams", threads * streams_a_thread},
         {"operations", sums.operations.load()},
         {"launches", sums.launches.load()},
         {"single_launches", sums.single_launches.load()},
         {"crossings", sums.crossings.load()},
         {"recorded_uses", sums.uses.load()},
         {"streams_remade", sums.streams_made.load()},
         {"handed_to_another_thread", sums.by_other_thread.load()},
         {"graphs", sums.graphs.load()},
         {"graph_launches", sums.graph_launches.load()},
         {"broken_captures", sums.broken_captures.load()},
         {"captures_kept", s.captures},
         {"graph_arenas_kept", s.graph_arenas},
         {"failures", sums.failures.load()},
         {"mismatches", report->mismatches},
         {"live_blocks_left", s.live_blocks},
         {"reserved", peak_reserved},
         {"thread_cache_hits", s.thread_cache_hits},
         {"allocations", s.allocations},
         {"seals", s.seals},
         {"fence_queries", s.fence_queries},
         {"streams_kept", s.streams},
         {"caches_kept", s.thread_caches},
         {"deallocation_errors", (*made)->deallocation_errors()}});
  const bool bad = report->mismatches != 0 || s.live_blocks != 0 || lost != 0 ||
                   s.captures + s.graph_arenas != 0 || (*made)->deallocation_errors() != 0;
  if (report->mismatches != 0) {
    std::printf("MISMATCH: identity %llu expected at 0x%llx, found word 0x%llx\n",
                static_cast<unsigned long long>(report->expected),
                static_cast<unsigned long long>(report->address),
                static_cast<unsigned long long>(report->found_word));
  }
  (*made).reset();
  static_cast<void>(gpu.host_free(raw));
  std::printf("canary: %s\n", bad ? "FAILED" : "0 mismatches");
  return bad ? 1 : 0;
}
