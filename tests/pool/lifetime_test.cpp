// Beginnings and ends: threads and pools that outlive each other, forks, the end of the driver.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <optional>
#include <thread>

#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

class pool_lifetime : public pool_test {
 protected:
  void SetUp() override { start(); }
};

TEST_F(pool_lifetime, a_threads_blocks_go_back_when_it_ends) {
  const stream_handle a = stream();
  std::thread([&] {
    std::vector<void*> all;
    for (int i = 0; i < 20; ++i) all.push_back(p->allocate(100 * KiB, a));
    for (void* x : all) p->deallocate(x, 100 * KiB, a);
  }).join();
  EXPECT_EQ(now().thread_caches, 0u);
  EXPECT_EQ(now().allocations, 20u);
  EXPECT_EQ(now().deallocations, 20u);
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
}

TEST_F(pool_lifetime, a_thread_may_outlive_the_pool) {
  const stream_handle a = stream();
  std::barrier<> meet(2);
  std::thread other([&] {
    p->deallocate(p->allocate(64 * KiB, a), 64 * KiB, a);
    meet.arrive_and_wait();
    meet.arrive_and_wait();  // the pool is gone, this thread's cache of it is not
    auto fresh = pool::create(gpu);
    (*fresh)->deallocate((*fresh)->allocate(64 * KiB, a), 64 * KiB, a);
  });
  meet.arrive_and_wait();
  p.reset();
  EXPECT_EQ(gpu->leaks().mappings + gpu->leaks().handles + gpu->leaks().reservations, 0u);
  meet.arrive_and_wait();
  other.join();
}

TEST_F(pool_lifetime, many_pools_may_come_and_go_under_one_thread) {
  const stream_handle a = stream();
  for (int i = 0; i < 200; ++i) {
    auto one = pool::create(gpu);
    ASSERT_TRUE(one.has_value());
    void* const x = (*one)->allocate(64 * KiB, a);
    (*one)->deallocate(x, 64 * KiB, a);
  }
  EXPECT_EQ(gpu->leaks().reservations, 1u);
}

TEST_F(pool_lifetime, a_cache_handle_may_outlive_the_pool_and_then_refuses) {
  const stream_handle a = stream();
  auto cache = std::make_optional(p->cache(a));
  cache->deallocate(cache->allocate(4 * KiB), 4 * KiB);
  p.reset();
  try {
    static_cast<void>(cache->allocate(4 * KiB));
    ADD_FAILURE() << "served by a pool that is gone";
  } catch (const memory_error& e) {
    EXPECT_EQ(e.code(), error_code::not_permitted);
  }
  ::testing::internal::CaptureStderr();
  cache->deallocate(&cache, 4 * KiB);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("closed"), std::string::npos);
  cache.reset();
}

TEST_F(pool_lifetime, live_blocks_at_the_end_are_reported) {
  const stream_handle a = stream();
  void* const x = take(3 * MiB, a);
  gpu->note_free(reinterpret_cast<device_address>(x), 3 * MiB, a, "with the pool");
  p.reset();
  const error e = only_error();
  EXPECT_NE(e.message.find("1 blocks (3.00 MiB)"), std::string::npos) << e.message;
}

TEST_F(pool_lifetime, the_end_waits_for_work_that_is_pending) {
  const stream_handle a = stream();
  void* const x = take(10 * MiB, a);
  work(x, a, 50 * millisecond);
  give(x, a);
  p.reset();
  EXPECT_GE(gpu->now_ns(), 50 * millisecond);
}

// thread_local objects may free after the thread's caches are gone.
struct late_freer {
  std::shared_ptr<pool> of;
  stream_handle on = nullptr;
  void* block = nullptr;
  ~late_freer() {
    if (of == nullptr) return;
    of->deallocate(block, 64 * KiB, on);
    of->deallocate(of->allocate(64 * KiB, on), 64 * KiB, on);
  }
};
thread_local late_freer late;

TEST_F(pool_lifetime, a_thread_local_object_may_free_after_the_threads_caches_have_gone) {
  const stream_handle a = stream();
  std::thread([&] {
    late.of = p;  // made before the thread's caches, so that it ends after them
    late.on = a;
    late.block = p->allocate(64 * KiB, a);
  }).join();
  EXPECT_EQ(now().live_blocks, 0u);
  EXPECT_EQ(now().thread_caches, 0u);
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
}

TEST_F(pool_lifetime, a_forked_child_is_refused_clearly_and_harms_nothing) {
  const stream_handle a = stream();
  void* const x = take(64 * KiB, a);
  auto cache = p->cache(a);
  cache.deallocate(cache.allocate(4 * KiB), 4 * KiB);
  give(take(4 * KiB, a), a);
  // Another thread is inside the pool's locks all the time, as far as a fork can tell.
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load()) {
      void* const y = p->allocate(40 * MiB, a);
      p->deallocate(y, 40 * MiB, a);
    }
  });
  for (int round = 0; round < 5; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);  // a child that hangs in a lock dies
      int bad = 0;
      const auto refused = [&](bool yes) { bad += yes ? 0 : 1; };
      refused(p->try_allocate(4 * KiB, 512, a).error().code == error_code::not_permitted);
      refused(p->try_deallocate(x, 64 * KiB, a).error().code == error_code::not_permitted);
      refused(p->record_use(x, a).error().code == error_code::not_permitted);
      refused(!p->find(x).has_value());
      refused(p->trim() == 0);
      refused(p->statistics().live_blocks == 0);
      p->check();
      try {
        static_cast<void>(cache.allocate(4 * KiB));
        ++bad;
      } catch (const memory_error& e) {
        refused(e.code() == error_code::not_permitted);
      }
      cache.deallocate(x, 64 * KiB);
      try {
        static_cast<void>(p->cache(a));
        ++bad;
      } catch (const memory_error&) {
      }
      {
        auto dropped = std::move(cache);
      }
      p.reset();
      ::_exit(bad);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  stop = true;
  busy.join();
  give(x, a);
}

TEST_F(pool_lifetime, a_forked_child_may_exit_with_the_parents_pool_in_static_hands) {
  const stream_handle a = stream();
  give(take(4 * KiB, a), a);  // this thread has a cache
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    std::thread([] {}).join();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
}

// A thread that never spoke to the driver has no context: its first call makes one current.
TEST_F(pool_lifetime, a_thread_without_a_context_is_given_one) {
  simulated_gpu_options options;
  options.threads = simulated_gpu_options::new_threads::have_no_context;
  const auto without = simulated_gpu::create(options).value();
  auto made = pool::create(without);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  stream_handle a = nullptr;
  ok(without->stream_create(&a));
  std::thread([&] {
    const auto x = (*made)->try_allocate(64 * KiB, 512, a);
    ASSERT_TRUE(x.has_value()) << x.error().message;
    EXPECT_TRUE((*made)->try_deallocate(*x, 64 * KiB, a).has_value());
  }).join();
  auto cache = (*made)->cache(a);
  std::thread([&] { cache.deallocate(cache.allocate(100 * MiB), 100 * MiB); }).join();
  std::thread([&] { EXPECT_GT((*made)->trim(), 0u); }).join();
}

class mortal_driver final : public forwarding_driver {
 public:
  using forwarding_driver::forwarding_driver;
  bool alive() const noexcept override { return alive_; }
  bool alive_ = true;
  std::uint64_t calls_after = 0;

 protected:
  driver_status refuse(sim::call) noexcept override {
    if (alive_) return driver_status::success;
    ++calls_after;
    return driver_status::deinitialized;
  }
};

TEST_F(pool_lifetime, with_the_driver_gone_everything_is_left_to_it) {
  auto mortal = std::make_shared<mortal_driver>(gpu);
  auto made = pool::create(mortal);
  const stream_handle a = stream();
  static_cast<void>((*made)->allocate(1 * MiB, a));
  mortal->alive_ = false;
  *made = nullptr;
  EXPECT_EQ(mortal->calls_after, 0u);
  leak_check = false;  // its mappings are the dead driver's
}

}  // namespace
}  // namespace millpond
