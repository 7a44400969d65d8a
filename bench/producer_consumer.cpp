// Blocks allocated on one thread and freed on another: pairs of threads with a ring between them, a stream a pair.
#include <array>
#include <thread>

#include "bench/support/harness.hpp"
#include "millpond/units.hpp"

using namespace millpond;

namespace {

// One producer, one consumer.
class ring {
 public:
  void push(void* ptr) noexcept {
    const std::uint64_t at = head_.load(std::memory_order_relaxed);
    while (at - tail_.load(std::memory_order_acquire) == slots_.size()) {
      std::this_thread::yield();
    }
    slots_[at % slots_.size()] = ptr;
    head_.store(at + 1, std::memory_order_release);
  }
  void* pop() noexcept {
    const std::uint64_t at = tail_.load(std::memory_order_relaxed);
    while (head_.load(std::memory_order_acquire) == at) {
      std::this_thread::yield();
    }
    void* const out = slots_[at % slots_.size()];
    tail_.store(at + 1, std::memory_order_release);
    return out;
  }

 private:
  std::array<void*, 64> slots_{};
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
};

}  // namespace

int main(int count, char** arguments) {
  bench::harness h("producer_consumer", count, arguments);
  constexpr std::array<std::uint64_t, 4> sizes{4 * KiB, 64 * KiB, 1 * MiB, 3 * MiB};
  for (const auto& subject : h.subjects()) {
    if (subject->name() == "cudaMalloc") continue;
    const std::uint64_t slow = subject->name().find("millpond") == 0 ? 1 : 40;
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
      nlohmann::json row{{"name", subject->name()}, {"threads", 2 * pairs_of_threads}, {"ns_a_block", sum / pairs_of_threads}, {"blocks", blocks}};
      if (pool* const own = subject->millpond_pool(); own != nullptr) {
        // How the blocks were served: by the stream's shelf where the consumer had freed one, by the heap where not.
        const pool_statistics s = own->statistics();
        row["paths"] = {{"allocations", s.allocations}, {"lane_hits", s.lane_hits}, {"shelf_hits", s.shelf_hits},
                        {"heap_hits", s.heap_hits}, {"growths", s.growths}, {"lock_waits", s.lock_waits}};
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
