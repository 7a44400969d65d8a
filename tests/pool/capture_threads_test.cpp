// Captures on many real threads over a driver that takes no lock: threads capture into arenas that
// they share, into memory of their own, and throw captures away, while others allocate, free, trim
// and release graphs. ThreadSanitizer looks for races in the books; live blocks are real host
// memory and hold their owner's mark.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/random.hpp"
#include "driver/null/null_driver.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pool/pool.hpp"
#include "support/forwarding_driver.hpp"

namespace millpond {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int captures_a_thread = 40;
#else
constexpr int captures_a_thread = 120;
#endif
constexpr int threads = 6;

// Captures over the null driver. A stream is captured by one thread, which alone asks about it
// meanwhile; that is all the order there is.
class capturing_driver final : public forwarding_driver {
 public:
  explicit capturing_driver(std::shared_ptr<driver> to) : forwarding_driver(to), info_(to->info()) {
    info_.host_granularity = 0;
  }
  const device_info& info() const noexcept override { return info_; }
  // Before the threads start.
  void may_capture(stream_handle s) { streams_.push_back(std::make_unique<slot>(s)); }

  call_result stream_capture(stream_handle s, capture_info* out) noexcept override {
    *out = {};
    if (slot* const at = find(s)) {
      if (graph* const running = at->running.load(std::memory_order_relaxed)) {
        *out = {capture_status::active, running->id, reinterpret_cast<graph_handle>(running)};
      }
    }
    return {driver_status::success, "cuStreamGetCaptureInfo"};
  }
  call_result capture_begin(stream_handle s, capture_mode) noexcept override {
    find(s)->running.store(new graph{next_id_.fetch_add(1, std::memory_order_relaxed), {}},
                           std::memory_order_relaxed);
    return {driver_status::success, "cuStreamBeginCapture"};
  }
  call_result capture_end(stream_handle s, graph_handle* out) noexcept override {
    *out = reinterpret_cast<graph_handle>(
        find(s)->running.exchange(nullptr, std::memory_order_relaxed));
    return {driver_status::success, "cuStreamEndCapture"};
  }
  call_result graph_retain(graph_handle of, void (*destroy)(void*), void* data) noexcept override {
    reinterpret_cast<graph*>(of)->retained.emplace_back(destroy, data);
    return {driver_status::success, "cuGraphRetainUserObject"};
  }
  call_result graph_destroy(graph_handle of) noexcept override {
    const std::unique_ptr<graph> gone(reinterpret_cast<graph*>(of));
    for (const auto& [destroy, data] : gone->retained) destroy(data);
    return {driver_status::success, "cuGraphDestroy"};
  }

 private:
  struct graph {
    std::uint64_t id;
    std::vector<std::pair<void (*)(void*), void*>> retained;
  };
  struct slot {
    explicit slot(stream_handle s) : stream(s) {}
    const stream_handle stream;
    std::atomic<graph*> running{nullptr};
  };
  slot* find(stream_handle s) noexcept {
    for (const auto& at : streams_) {
      if (at->stream == s) return at.get();
    }
    return nullptr;
  }

  device_info info_;
  std::vector<std::unique_ptr<slot>> streams_;
  std::atomic<std::uint64_t> next_id_{1};
};

struct block {
  void* at = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t mark = 0;
};

class capture_churn {
 public:
  explicit capture_churn(memory_kind kind) : host_(kind != memory_kind::device) {
    null_ = std::make_shared<null_driver>(null_driver::settings{64 * GiB, 2});
    gpu_ = std::make_shared<capturing_driver>(null_);
    for (auto* all : {&captured_, &plain_}) {
      for (stream_handle& s : *all) EXPECT_TRUE(gpu_->stream_create(&s).ok());
    }
    for (const stream_handle s : captured_) gpu_->may_capture(s);
    pool_options options;
    options.kind = kind;
    pool_ = *pool::create(gpu_, options);
    pool_->set_error_sink([](const error& e) { ADD_FAILURE() << e.message; });
    for (graph_arena& a : arenas_) a = pool_->make_graph_arena();
  }

  void run() {
    std::vector<std::thread> all;
    std::atomic<bool> stop{false};
    for (int t = 0; t < threads; ++t)
      all.emplace_back([this, t] { capture(static_cast<std::size_t>(t)); });
    std::thread beside([&] {
      random numbers(99);
      while (!stop.load()) {
        const stream_handle s = plain_[numbers.below(plain_.size())];
        const std::uint64_t bytes = 1 + numbers.below(4 * MiB);
        if (const auto got = pool_->try_allocate(bytes, 512, s)) pool_->deallocate(*got, bytes, s);
        static_cast<void>(pool_->statistics());
        if (numbers.below(20) == 0) pool_->trim(0);
        if (numbers.below(30) == 0) static_cast<void>(pool_->explain());
        destroy_one(numbers);
      }
    });
    for (std::thread& t : all) t.join();
    stop = true;
    beside.join();
    for (const graph_handle g : graphs_) static_cast<void>(gpu_->graph_destroy(g));
    arenas_ = {};
    for (const stream_handle s : captured_)
      pool_->deallocate(pool_->allocate(512, s), 512, s);  // the pool sees them outside
    for (int i = 0; i < 50; ++i) pool_->trim(0);
    pool_->check();
    const pool_statistics end = pool_->statistics();
    EXPECT_EQ(end.live_blocks, 0u);
    EXPECT_EQ(end.live_bytes, 0u);
    EXPECT_EQ(end.captures, 0u);
    EXPECT_EQ(end.graph_arenas, 0u);
    EXPECT_EQ(end.capture_bytes, 0u);
    EXPECT_EQ(overlaps_.load(), 0u);
    EXPECT_GT(served_.load(), 0u);
    if (!host_) {
      EXPECT_EQ(end.reserved_bytes, 0u);
    }
    pool_.reset();
    EXPECT_EQ(null_->calls("cuMemCreate"), null_->calls("cuMemRelease"));
  }

 private:
  void destroy_one(random& numbers) {
    graph_handle gone = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (graphs_.size() < 4) return;
      const std::size_t at = numbers.below(graphs_.size());
      gone = graphs_[at];
      graphs_[at] = graphs_.back();
      graphs_.pop_back();
    }
    static_cast<void>(gpu_->graph_destroy(gone));
  }
  void mark(const block& b) {
    if (host_) std::memcpy(b.at, &b.mark, 8);
  }
  void check(const block& b) {
    std::uint64_t there = b.mark;
    if (host_) std::memcpy(&there, b.at, 8);
    if (there != b.mark) overlaps_.fetch_add(1);
  }

  void capture(std::size_t who) {
    random numbers(who + 1);
    const stream_handle s = captured_[who];
    std::uint64_t next_mark = (who + 1) << 32;
    for (int i = 0; i < captures_a_thread; ++i) {
      static_cast<void>(gpu_->capture_begin(s, capture_mode::thread_local_));
      const std::uint64_t where = numbers.below(3);
      if (where < arenas_.size()) {
        EXPECT_TRUE(pool_->capture_into(arenas_[where], s).has_value());
      }
      std::vector<block> mine;
      // Caches come and go: what one keeps goes back under the books' lock.
      for (int part = 0; part < 6; ++part) {
        auto cache = pool_->capture_cache(s);
        for (int step = 0; step < 10; ++step) {
          if (numbers.below(5) < 3 || mine.empty()) {
            block b{nullptr, 8 + numbers.below(std::uint64_t{1} << (6 + numbers.below(16))),
                    ++next_mark};
            b.at = step % 2 == 0 ? cache.allocate(b.bytes) : pool_->allocate(b.bytes, s);
            served_.fetch_add(1, std::memory_order_relaxed);
            mark(b);
            mine.push_back(b);
            continue;
          }
          const std::size_t at = numbers.below(mine.size());
          const block b = mine[at];
          mine[at] = mine.back();
          mine.pop_back();
          check(b);
          if (numbers.below(2) == 0)
            cache.deallocate(b.at, b.bytes);
          else
            pool_->deallocate(b.at, b.bytes, s);
        }
      }
      // Some are freed after the capture, as results are; the rest within it.
      const std::size_t results = numbers.below(3);
      while (mine.size() > results) {
        check(mine.back());
        pool_->deallocate(mine.back().at, mine.back().bytes, s);
        mine.pop_back();
      }
      graph_handle graph = nullptr;
      static_cast<void>(gpu_->capture_end(s, &graph));
      for (const block& b : mine) {
        check(b);
        pool_->deallocate(b.at, b.bytes, plain_[who]);
      }
      if (numbers.below(4) == 0) {  // thrown away
        static_cast<void>(gpu_->graph_destroy(graph));
        continue;
      }
      const std::lock_guard lock(mutex_);
      graphs_.push_back(graph);
    }
  }

  const bool host_;
  std::shared_ptr<null_driver> null_;
  std::shared_ptr<capturing_driver> gpu_;
  std::shared_ptr<pool> pool_;
  std::array<stream_handle, threads> captured_{}, plain_{};
  std::array<graph_arena, 2> arenas_;
  std::mutex mutex_;
  std::vector<graph_handle> graphs_;
  std::atomic<std::uint64_t> overlaps_{0}, served_{0};
};

TEST(pool_capture_threads, captures_into_shared_arenas_and_of_their_own_on_many_threads) {
  capture_churn(memory_kind::device).run();
}

TEST(pool_capture_threads, captured_blocks_keep_their_owners_mark) {
  capture_churn(memory_kind::pinned).run();
}

}  // namespace
}  // namespace millpond
