// Blocks allocated on one thread and freed on another: pairs of threads with a ring between them, a
// stream a pair.
#include <array>
#include <thread>

#include "bench/support/harness.hpp"
#include "millpond/base/units.hpp"

using namespace millpond;

namespace {

// One producer, one consumer. Each side keeps what it last saw of the other's place and looks again
// only when that is used up, and the consumer tells of free slots by the cache line: so a pointer
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
  for (const auto& subject : h.subjects()) {
    if (subject->name() == "cudaMalloc") continue;
    const std::uint64_t slow =
        subject->name().find("millpond") == 0 || subject->name() == "ring alone" ? 1 : 40;
    for (const unsigned pairs_of_threads : {1u, 2u, 4u, 8u}) {
      std::string why;
      if (!subject->start(why)) {
        h.add({{"name", subject->name()}, {"failed", why}});
        break;
      }
      const std::uint64_t blocks = h.operations(400'000 / slow);
      std::vector<ring> rings(pairs_of_threads);
      std::vector<stream_handle> streams(pairs_of_threads);
      for (auto& s : streams) static_cast<void>(h.gpu().stream_create(&s));
      std::vector<double> ns(pairs_of_threads);
      bench::start_line line(2 * pairs_of_threads);
      bench::on_threads(h.gpu(), 2 * pairs_of_threads, [&](unsigned t) {
        const unsigned pair = t / 2;
        const auto s = subject->open(streams[pair]);
        line.wait();
        const std::uint64_t start = bench::now_ns();
        if (t % 2 == 0) {
          for (std::uint64_t i = 0; i < blocks; ++i) rings[pair].push(s->allocate(sizes[i & 3]));
        } else {
          for (std::uint64_t i = 0; i < blocks; ++i) s->deallocate(rings[pair].pop(), sizes[i & 3]);
          ns[pair] = static_cast<double>(bench::now_ns() - start) / static_cast<double>(blocks);
        }
      });
      double sum = 0;
      for (const double each : ns) sum += each;
      nlohmann::json row{{"name", subject->name()},
                         {"threads", 2 * pairs_of_threads},
                         {"ns_a_block", sum / pairs_of_threads},
                         {"blocks", blocks}};
      if (pool* const own = subject->millpond_pool(); own != nullptr) {
        // How the blocks were served: by the stream's stream cache where the consumer had freed
        // one, by the heap where not.
        const pool_statistics s = own->statistics();
        row["paths"] = {{"allocations", s.allocations},
                        {"thread_cache_hits", s.thread_cache_hits},
                        {"stream_cache_hits", s.stream_cache_hits},
                        {"heap_hits", s.heap_hits},
                        {"growths", s.growths},
                        {"lock_waits", s.lock_waits}};
      }
      h.add(std::move(row));
      for (auto& s : streams) {
        static_cast<void>(h.gpu().stream_synchronize(s));
        static_cast<void>(h.gpu().stream_destroy(s));
      }
      subject->stop();
    }
  }
}
