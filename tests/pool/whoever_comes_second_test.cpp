// Two threads at one block, one cache or one capture at the same moment: nothing is lost, nothing
// is given twice, and of two frees of a block one is refused. Where two threads could come between
// each other's steps, the second one's steps are made inside a driver call of the first, or both
// race over a driver without locks.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "driver/null/null_driver.hpp"
#include "support/failing_new.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

// Other threads' steps inside a driver call.
struct interrupted_driver : forwarding_driver {
  using forwarding_driver::forwarding_driver;
  std::function<void()> while_asking_device, while_fencing;
  static void once(std::function<void()>& what) {
    if (auto step = std::exchange(what, nullptr)) step();
  }
  call_result stream_device(stream_handle s, int* ordinal) noexcept override {
    once(while_asking_device);
    return to().stream_device(s, ordinal);
  }
  call_result context_record_event(event_handle e) noexcept override {
    once(while_fencing);
    return to().context_record_event(e);
  }
};

struct pool_second : pool_test {
  void start_interrupted(pool_options options = {}) {
    make(steady());
    interrupted = std::make_shared<interrupted_driver>(gpu);
    add_pool(std::move(options), interrupted);
  }
  std::shared_ptr<interrupted_driver> interrupted;
};

// Without a simulated GPU, whose lock would keep the threads apart.
struct two_threads : ::testing::Test {
  void start(pool_options options = {}) {
    gpu = std::make_shared<null_driver>();
    p = pool::create(gpu, std::move(options)).value();
    p->set_error_sink([this](const error&) { ++refused; });
    ASSERT_TRUE(gpu->stream_create(&s).ok());
  }
  // Everything was freed: not a byte is out of the pool's books.
  void expect_nothing_lost() {
    p->trim(0);
    const pool_statistics now = p->statistics();
    EXPECT_EQ(now.live_blocks, 0u);
    EXPECT_EQ(now.reserved_bytes, 0u) << now.reserved_bytes - now.idle_bytes << " bytes lost";
    p->check();
  }
  std::shared_ptr<null_driver> gpu;
  std::shared_ptr<pool> p;
  stream_handle s = nullptr;
  std::atomic<int> refused{0};
};

// A watcher that holds a cache's lock while its owner misses it, as an exporter of metrics does:
// what came from the stream cache once took the place of what the cache had.
TEST_F(two_threads, a_watcher_of_statistics_loses_no_block) {
  pool_options options;
  options.cache_small_bytes = 64 << 10;  // so that the stream cache is used soon
  start(options);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> looks{0};
  std::thread watcher([&] {
    while (!stop) {
      static_cast<void>(p->statistics());
      ++looks;
    }
  });
  std::vector<void*> held;
  for (int round = 0; round < 2000; ++round) {
    for (int i = 0; i < 200; ++i) held.push_back(p->allocate(1024, s));
    for (void* const block : held) p->deallocate(block, 1024, s);
    held.clear();
  }
  stop = true;
  watcher.join();
  EXPECT_GT(looks, 0u);
  EXPECT_EQ(refused, 0);
  expect_nothing_lost();
}

// The same without a watcher: caches that come and go make and end routes under each other's locks.
TEST_F(two_threads, caches_that_come_and_go_lose_no_block) {
  pool_options options;
  options.cache_small_bytes = 256 << 10;
  start(options);
  std::atomic<bool> stop{false};
  std::array<std::atomic<void*>, 64> slots{};
  std::thread producer([&] {
    std::vector<void*> held;
    std::uint64_t turn = 0;
    while (!stop) {
      for (int i = 0; i < 300; ++i) held.push_back(p->allocate(2048, s));
      for (void* const block : held) {
        void* none = nullptr;
        if (!slots[++turn % slots.size()].compare_exchange_strong(none, block))
          p->deallocate(block, 2048, s);
      }
      held.clear();
    }
  });
  for (int came = 0; came < 300; ++came) {
    pool::cache_handle cache = p->cache(s);
    std::uint64_t got = 0;
    for (int i = 0; i < 400 && got < 40; ++i) {
      for (auto& slot : slots) {
        if (void* const block = slot.exchange(nullptr)) {
          cache.deallocate(block, 2048);
          ++got;
        }
      }
    }
  }
  stop = true;
  producer.join();
  for (auto& slot : slots) {
    if (void* const block = slot.exchange(nullptr)) p->deallocate(block, 2048, s);
  }
  EXPECT_EQ(refused, 0);
  expect_nothing_lost();
}

// The same, each time at the moment that matters: a cache that goes holds the lock of the one that
// it sends to, and gives a queue back meanwhile. There the other's owner asks for a block, finds
// the lock taken, and goes on to the stream cache with blocks of its own at hand.
TEST_F(two_threads, a_cache_that_goes_while_the_one_it_sends_to_allocates_loses_no_block) {
  pool_options options;
  options.cache_small_bytes = 256 << 10;
  start(options);
  pool::cache_handle own = p->cache(s);
  std::atomic<int> asked{0}, served{0};
  std::vector<void*> blocks;
  std::thread owner;
  struct meeting {
    std::atomic<int>&asked, &served;
    // The owner cannot be served before the lock is given back, so that it is not waited for long.
    static void step(void* with) {
      auto& here = *static_cast<meeting*>(with);
      const int now = ++here.asked;
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
      while (here.served != now && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
    }
  } meeting{asked, served};
  for (int round = 0; round < 5; ++round) {
    auto goes = std::make_unique<pool::cache_handle>(p->cache(s));
    for (int i = 0; i < 100; ++i) goes->deallocate(own.allocate(2048), 2048);  // makes a route
    std::vector<void*> many;
    for (int i = 0; i < 600; ++i) many.push_back(own.allocate(2048));
    for (void* const block : many) own.deallocate(block, 2048);  // some to the stream cache
    asked = served = 0;
    std::atomic<bool> over{false};
    owner = std::thread([&] {
      while (!over || served != asked) {
        if (served == asked) continue;
        blocks.push_back(own.allocate(2048));
        ++served;
      }
    });
    {
      const before_each_delete between(meeting::step, &meeting);
      goes.reset();
    }
    over = true;
    owner.join();
    for (void* const block : blocks) own.deallocate(block, 2048);
    blocks.clear();
  }
  {
    const pool::cache_handle gone = std::move(own);
  }
  EXPECT_EQ(refused, 0);
  expect_nothing_lost();
}

TEST_F(two_threads, of_two_frees_of_a_block_at_the_same_moment_one_is_refused) {
  start();
  constexpr int rounds = 20'000;
  std::atomic<void*> block{nullptr};
  std::atomic<int> go{0}, done{0}, freed{0};
  const auto free_it = [&](void* ptr) {
    if (p->try_deallocate(ptr, 2 * MiB, s)) ++freed;
  };
  std::thread other([&] {
    void* const own = p->allocate(MiB, s);
    p->deallocate(own, MiB, s);
    for (int i = 1; i <= rounds; ++i) {
      while (go.load(std::memory_order_acquire) != i) {
      }
      free_it(block.load());
      done.store(i, std::memory_order_release);
    }
  });
  for (int i = 1; i <= rounds; ++i) {
    freed = 0;
    block = p->allocate(2 * MiB, s);
    go.store(i, std::memory_order_release);
    free_it(block.load());
    while (done.load(std::memory_order_acquire) != i) {
    }
    ASSERT_EQ(freed, 1) << "round " << i;
  }
  other.join();
  expect_nothing_lost();
}

TEST_F(two_threads, of_two_frees_through_two_caches_one_is_refused) {
  start();
  pool::cache_handle producer = p->cache(s), first = p->cache(s), second = p->cache(s);
  for (int i = 0; i < 200; ++i) {  // both have a route to the producer
    first.deallocate(producer.allocate(3 * MiB), 3 * MiB);
    second.deallocate(producer.allocate(3 * MiB), 3 * MiB);
  }
  void* const block = producer.allocate(3 * MiB);
  first.deallocate(block, 3 * MiB);
  second.deallocate(block, 3 * MiB);
  static_cast<void>(p->statistics());  // opens what was sent
  static_cast<void>(p->trim(0));       // a call that is not quick reports
  EXPECT_EQ(refused, 1);
  void* const again = producer.allocate(3 * MiB);
  void* const other = first.allocate(3 * MiB);
  EXPECT_NE(again, other);
  producer.deallocate(again, 3 * MiB);
  first.deallocate(other, 3 * MiB);
}

// The program's own error sink runs inside a call, and may do what drops this thread's caches.
TEST_F(two_threads, an_error_sink_may_trim_inside_an_allocation) {
  start();
  int reported = 0;
  p->set_error_sink([&](const error&) {
    ++reported;
    p->trim(0);
  });
  p->deallocate(p->allocate(MiB, s), MiB, s);  // this thread has a cache now
  pool::cache_handle producer = p->cache(s), consumer = p->cache(s);
  for (int i = 0; i < 200; ++i) consumer.deallocate(producer.allocate(3 * MiB), 3 * MiB);
  void* const block = producer.allocate(3 * MiB);
  consumer.deallocate(block, 3 * MiB);
  consumer.deallocate(block, 3 * MiB);  // reported later
  static_cast<void>(p->statistics());
  void* const next = p->allocate(700 * KiB, s);  // misses its cache: reports, and the sink trims
  EXPECT_NE(next, nullptr);
  EXPECT_EQ(reported, 1);
  p->deallocate(next, 700 * KiB, s);
}

TEST_F(pool_second, a_free_while_its_graph_ends_is_refused_as_freed_before) {
  start_interrupted();
  const stream_handle s = stream(), other = stream();
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  void* const block = p->allocate(3 * MiB, s);
  graph_handle graph = nullptr;
  ok(gpu->capture_end(s, &graph));
  interrupted->while_asking_device = [&] {
    ok(gpu->graph_destroy(graph));
    std::thread([&] { p->trim(std::uint64_t{1} << 40); }).join();
  };
  const auto freed = p->try_deallocate(block, 3 * MiB, other);  // asks who that stream is
  ASSERT_FALSE(freed.has_value());
  EXPECT_EQ(freed.error().code, error_code::double_free) << freed.error().message;
  expect_all_back();
}

// The capture's number as an owner in the heap went to the next stream while an allocation knew it,
// which then took what that stream had just freed.
TEST_F(pool_second, a_capture_that_goes_while_it_allocates_takes_no_other_streams_memory) {
  struct growing : forwarding_driver {
    using forwarding_driver::forwarding_driver;
    std::function<void()> while_mapping;
    call_result map(device_address at, std::uint64_t bytes, physical_handle h) noexcept override {
      interrupted_driver::once(while_mapping);
      return to().map(at, bytes, h);
    }
  };
  make(steady());
  const auto used = std::make_shared<growing>(gpu);
  add_pool({}, used);
  const stream_handle s = stream(), own = stream(), later = stream();
  void* const eager = take(64 * MiB, own);
  work(eager, later, 10 * millisecond);
  graph_arena arena = p->make_graph_arena();
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  ASSERT_TRUE(p->capture_into(arena, s).has_value());
  ASSERT_NE(p->allocate(MiB, s), nullptr);
  used->while_mapping = [&] {
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    ok(gpu->graph_destroy(graph));
    std::thread([&] {
      give(eager, later);
    }).join();  // the first that the pool hears of that stream
  };
  const auto second = p->try_allocate(64 * MiB, default_alignment, s);
  if (second) {
    EXPECT_NE(*second, eager) << "its stream has not passed the free";
  }
  p->check();
  arena = {};
  expect_all_back();
}

TEST_F(pool_second, an_allocation_that_a_sleep_overtakes_is_refused_and_loses_nothing) {
  start_interrupted();
  const stream_handle s = stream(), fresh = stream();
  void* const kept = p->allocate(MiB, s);
  work(kept, s, microsecond, MiB);
  interrupted->while_asking_device = [&] {
    std::thread([&] { ASSERT_TRUE(p->sleep({}).has_value()); }).join();
  };
  const auto late = p->try_allocate(MiB, default_alignment, fresh);  // met while the pool was awake
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, error_code::not_permitted) << late.error().message;
  ASSERT_TRUE(p->wake().has_value());
  EXPECT_EQ(now().live_bytes, MiB);
  p->deallocate(kept, MiB, s);
  expect_all_back();
}

TEST_F(pool_second, a_thread_that_makes_no_call_any_more_keeps_no_closed_pool_and_no_driver) {
  auto driver = std::make_shared<null_driver>();
  const std::weak_ptr<null_driver> alive = driver;
  auto made = pool::create(driver, {}).value();
  stream_handle s = nullptr;
  ok(driver->stream_create(&s));
  made->deallocate(made->allocate(MiB, s), MiB, s);  // this thread has a cache of the pool
  made.reset();
  driver.reset();
  EXPECT_TRUE(alive.expired());
}

}  // namespace
}  // namespace millpond
