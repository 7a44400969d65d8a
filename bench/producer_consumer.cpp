// Blocks allocated on one thread and freed on another: pairs of threads with a ring between them, a
// stream a pair.
#include <array>
#include <numeric>
#include <thread>

#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

namespace {

// One producer, one consumer. Each side keeps what it last saw of the other's place and looks again
// only when that is used up, and the consumer reports free slots by the cache line: so a pointer
// costs a fraction of a line that passes between the two, and what is measured is the allocator.
// What the ring costs by itself is measured too.
class ring {
 public:
  void push(void* ptr) noexcept {
    if (head_.own - head_.seen == slots_.size()) {
      wait_until([&] {
        return (head_.seen = tail_.published.load(std::memory_order_acquire)) + slots_.size() !=
               head_.own;
      });
    }
    slots_[head_.own % slots_.size()] = ptr;
    head_.published.store(++head_.own, std::memory_order_release);
  }
  void* pop() noexcept {
    if (tail_.own == tail_.seen) {
      wait_until([&] {
        return (tail_.seen = head_.published.load(std::memory_order_acquire)) != tail_.own;
      });
    }
    void* const out = slots_[tail_.own % slots_.size()];
    if (++tail_.own % a_line == 0) tail_.published.store(tail_.own, std::memory_order_release);
    return out;
  }

 private:
  static constexpr std::uint64_t a_line = 64 / sizeof(void*);
  struct alignas(128) side {
    std::uint64_t own = 0;   // how far this side is
    std::uint64_t seen = 0;  // of the other one
    std::atomic<std::uint64_t> published{0};
  };
  // The other side runs on a core of its own, unless there are too few.
  template <class Done>
  static void wait_until(Done&& done) noexcept {
    for (unsigned turns = 0; !done(); ++turns) {
      if (turns > 200) std::this_thread::yield();
#if defined(__x86_64__)
      else
        __builtin_ia32_pause();
#endif
    }
  }

  alignas(128) std::array<void*, 64> slots_{};
  side head_, tail_;
};

// Stands for an allocator that costs nothing: what remains is the loop, the calls through a table
// and the ring.
class no_allocator final : public bench::subject {
 public:
  std::string name() const override { return "ring alone"; }
  bool start(std::string&) override { return true; }
  void stop() override {}
  std::unique_ptr<bench::session> open(stream_handle) override {
    return std::make_unique<nothing>();
  }
  std::uint64_t reserved() override { return 0; }

 private:
  struct nothing final : bench::session {
    void* allocate(std::uint64_t bytes) override { return reinterpret_cast<void*>(bytes); }
    void deallocate(void*, std::uint64_t) override {}
  };
};

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("producer_consumer", count, arguments);
  constexpr std::array<std::uint64_t, 4> sizes{4 * KiB, 64 * KiB, 1 * MiB, 3 * MiB};
  h.subjects().insert(h.subjects().begin(), std::make_unique<no_allocator>());
  for (const unsigned pairs_of_threads : {1u, 2u, 4u, 8u}) {
    h.each_subject({"cudaMalloc"}, [&](bench::subject& of) {
      const std::uint64_t slower = of.name() == "ring alone" ? 1 : 40;
      const std::uint64_t blocks = h.operations(bench::share_of(of, 400'000, slower));
      std::vector<ring> rings(pairs_of_threads);
      const bench::stream_set streams(h.gpu(), pairs_of_threads);
      std::vector<double> ns(pairs_of_threads);
      bench::start_line line(2 * pairs_of_threads);
      bench::on_threads(h.gpu(), 2 * pairs_of_threads, [&](unsigned t) {
        const unsigned pair = t / 2;
        const auto s = of.open(streams[pair]);
        line.wait();
        const std::uint64_t start = bench::now_ns();
        if (t % 2 == 0) {
          for (std::uint64_t i = 0; i < blocks; ++i) rings[pair].push(s->allocate(sizes[i & 3]));
        } else {
          for (std::uint64_t i = 0; i < blocks; ++i) s->deallocate(rings[pair].pop(), sizes[i & 3]);
          ns[pair] = static_cast<double>(bench::now_ns() - start) / static_cast<double>(blocks);
        }
      });
      bench::value row{
          {"name", of.name()},
          {"threads", 2 * pairs_of_threads},
          {"ns_a_block", std::accumulate(ns.begin(), ns.end(), 0.0) / pairs_of_threads},
          {"blocks", blocks}};
      // How the blocks were served: by the stream cache where the consumer had freed one, by the
      // heap where not.
      if (pool* const own = of.millpond_pool()) row["paths"] = bench::paths_of(own->statistics());
      h.add(std::move(row));
    });
  }
}
