// Limits, budgets, reservation, admission and giving back by age.
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>

#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <thread>

#include "millpond/growable/growable_buffer.hpp"
#include "millpond/pool/background_give_back.hpp"
#include "support/no_threads.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

class pool_budget : public pool_test {};

TEST_F(pool_budget, two_pools_never_take_more_than_their_budget_together) {
  const auto budget = memory_budget::create({.hard_bytes = 256 * MiB});
  pool_options options;
  options.budget = budget;
  options.name = "one";
  start(options);
  options.name = "two";
  auto second = pool::create(gpu, options);
  ASSERT_TRUE(second.has_value());
  const stream_handle a = stream();
  void* const x = take(150 * MiB, a);
  ASSERT_NE(x, nullptr);
  const auto refused = (*second)->try_allocate(150 * MiB, default_alignment, a);
  EXPECT_EQ(refused.error().code, error_code::out_of_memory);
  for (const char* part : {"budget", "256 MiB", "one", "two"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos)
        << part << " is missing from:\n"
        << refused.error().message;
  }
  EXPECT_LE(gpu->physical_bytes(), 256 * MiB);
  EXPECT_EQ(budget->used_bytes(), gpu->physical_bytes());
  give(x, a);
  ok(gpu->stream_synchronize(a));
  // What the first keeps unused is the second's now.
  const auto served = (*second)->try_allocate(200 * MiB, default_alignment, a);
  ASSERT_TRUE(served.has_value()) << served.error().message;
  EXPECT_LE(gpu->physical_bytes(), 256 * MiB);
  EXPECT_LT(now().reserved_bytes, 56 * MiB);
  (*second)->deallocate(*served, 200 * MiB, a);
  second->reset();
  p.reset();
  EXPECT_EQ(budget->used_bytes(), 0u);
  EXPECT_LE(budget->peak_bytes(), 256 * MiB);
}

TEST_F(pool_budget, a_budget_holds_for_pools_of_chunks_too) {
  const auto budget = memory_budget::create({.hard_bytes = 100 * MiB});
  pool_options options;
  options.kind = memory_kind::managed;
  options.budget = budget;
  start(options);
  const stream_handle a = stream();
  void* const x = take(60 * MiB, a);
  ASSERT_NE(x, nullptr) << refusal.message;
  EXPECT_EQ(take(60 * MiB, a), nullptr);
  EXPECT_NE(refusal.message.find("budget"), std::string::npos) << refusal.message;
  give(x, a);
  p.reset();
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST_F(pool_budget, lowering_a_budget_takes_nothing_away_and_stops_growth) {
  const auto budget = memory_budget::create({});
  pool_options options;
  options.budget = budget;
  start(options);
  const stream_handle a = stream();
  void* const x = take(100 * MiB, a);
  budget->set_limits({.hard_bytes = 50 * MiB});
  EXPECT_EQ(budget->headroom(), 0u);
  EXPECT_EQ(take(40 * MiB, a), nullptr);
  give(x, a);
  ok(gpu->stream_synchronize(a));
  void* const y = take(90 * MiB, a);
  EXPECT_NE(y, nullptr);
  give(y, a);
  EXPECT_GT(budget->refusals(), 0u);
}

TEST_F(pool_budget, past_the_soft_limit_unused_memory_goes_back_before_more_is_taken) {
  pool_options options;
  options.soft_limit_bytes = 128 * MiB;
  options.slack = 10;
  start(options);
  const stream_handle a = stream();
  // Of small blocks: their spans serve no large one.
  std::vector<void*> small;
  for (int i = 0; i < 100; ++i) small.push_back(take(1 * MiB, a));
  for (void* x : small) give(x, a);
  give(take(10 * MiB, a), a);
  ok(gpu->stream_synchronize(a));
  trim(
      now()
          .reserved_bytes);  // gives nothing back, but the pool has seen that the frees have passed
  const std::uint64_t before = now().reserved_bytes;
  void* const large = take(200 * MiB, a);
  ASSERT_NE(large, nullptr);
  EXPECT_GT(now().soft_limit_passes, 0u);
  EXPECT_LT(now().reserved_bytes, before + 200 * MiB) << "what was unused has gone";
  give(large, a);
}

TEST_F(pool_budget, reservation_up_front_makes_later_growth_unnecessary) {
  start();
  const stream_handle a = stream(), b = stream();
  ASSERT_TRUE(p->reserve(300 * MiB).has_value());
  EXPECT_GE(now().idle_bytes, 300 * MiB);
  const std::uint64_t created = gpu->calls("cuMemCreate");
  std::vector<void*> all;
  for (int i = 0; i < 10; ++i) all.push_back(take(15 * MiB, i % 2 == 0 ? a : b));
  all.push_back(take(150 * MiB, a));
  EXPECT_EQ(gpu->calls("cuMemCreate"), created);
  ASSERT_TRUE(p->reserve(0).has_value());
  for (std::size_t i = 0; i < all.size(); ++i) give(all[i], i < 10 && i % 2 == 1 ? b : a);
  p->set_limit_bytes(400 * MiB);
  const auto refused = p->reserve(500 * MiB);
  EXPECT_EQ(refused.error().code, error_code::out_of_memory);
  EXPECT_NE(refused.error().message.find("400 MiB"), std::string::npos) << refused.error().message;
}

TEST_F(pool_budget, admission_is_what_allocation_then_does) {
  pool_options options;
  options.limit_bytes = 256 * MiB;
  start(options);
  const stream_handle a = stream();
  const auto fit = [&](std::uint64_t bytes) { return p->would_fit(bytes, a).how; };
  EXPECT_EQ(fit(0), pool::fit::now);
  EXPECT_EQ(fit(100 * MiB), pool::fit::by_growing);
  EXPECT_EQ(p->would_fit(100 * MiB, a).new_bytes, 100 * MiB);
  EXPECT_EQ(fit(300 * MiB), pool::fit::no);
  EXPECT_EQ(p->would_fit(300 * MiB, a).missing_bytes, 44 * MiB);
  EXPECT_EQ(fit(~std::uint64_t{0}), pool::fit::no);
  EXPECT_EQ(now().reserved_bytes, 0u) << "asking takes nothing";
  void* const x = take(200 * MiB, a);
  EXPECT_EQ(fit(100 * MiB), pool::fit::no);
  work(x, a, 50 * millisecond);
  const stream_handle b = stream();
  give(take(512, b), b);  // a second stream, so that frees are fenced
  give(x, a);
  EXPECT_EQ(fit(150 * MiB), pool::fit::now) << "the stream's own free memory";
  EXPECT_EQ(p->would_fit(150 * MiB, b).how, pool::fit::by_waiting);
  gpu->advance(100 * millisecond);
  trim(200 * MiB);
  EXPECT_EQ(p->would_fit(150 * MiB, b).how, pool::fit::now);
  void* const y = take(150 * MiB, b);
  EXPECT_NE(y, nullptr) << refusal.message;
  give(y, b);
}

TEST_F(pool_budget, admission_knows_the_device_and_the_budget) {
  simulated_gpu_options small = steady();
  small.memory_bytes = 512 * MiB;
  pool_options options;
  options.budget = memory_budget::create({.hard_bytes = 400 * MiB});
  start(options, small);
  EXPECT_EQ(p->would_fit(390 * MiB).how, pool::fit::by_growing);
  EXPECT_EQ(p->would_fit(410 * MiB).how, pool::fit::no);
  gpu->set_faults({.taken_bytes = 300 * MiB});
  EXPECT_EQ(p->would_fit(390 * MiB).how, pool::fit::no);
  EXPECT_EQ(p->would_fit(200 * MiB).how, pool::fit::by_growing);
}

TEST_F(pool_budget, what_is_old_is_given_back_and_what_is_used_is_not) {
  start();
  const stream_handle a = stream();
  constexpr std::uint64_t second = 1000 * millisecond;
  const auto age = [&](std::uint64_t older_than, std::uint64_t keep = 0) {
    const simulated_gpu::library_scope library;
    return p->give_back(older_than, keep);
  };
  void* const live = take(10 * MiB, a);
  give(take(400 * MiB, a), a);
  ok(gpu->stream_synchronize(a));
  EXPECT_EQ(age(2 * second), 0u) << "first seen unused now";
  gpu->advance(second);
  EXPECT_EQ(age(2 * second), 0u);
  gpu->advance(second);
  // 100 MiB of it are used meanwhile: they stay, though nothing lies there now.
  give(take(100 * MiB, a), a);
  ok(gpu->stream_synchronize(a));
  const std::uint64_t before = now().reserved_bytes;
  const std::uint64_t waits = gpu->device_waits();
  const std::uint64_t given = age(2 * second);
  EXPECT_GE(given, 200 * MiB);
  EXPECT_LE(given, 300 * MiB);
  EXPECT_EQ(now().reserved_bytes, before - given);
  EXPECT_EQ(now().given_back_bytes, given);
  EXPECT_EQ(gpu->device_waits(), waits);
  gpu->advance(3 * second);
  EXPECT_EQ(age(2 * second, now().reserved_bytes), 0u) << "the caller keeps them all";
  EXPECT_GE(age(2 * second), 90 * MiB);
  EXPECT_GE(now().reserved_bytes, 10 * MiB);
  work(live, a, 1);
  give(live, a);
}

TEST_F(pool_budget, without_a_clock_what_two_calls_saw_unused_goes) {
  make(steady());
  auto made = pool::create(gpu, {});
  ASSERT_TRUE(made.has_value());
  const stream_handle a = stream();
  (*made)->deallocate((*made)->allocate(100 * MiB, a), 100 * MiB, a);
  ok(gpu->stream_synchronize(a));
  EXPECT_EQ((*made)->give_back(0), 0u);
  EXPECT_GE((*made)->give_back(0), 100 * MiB);
  EXPECT_EQ((*made)->statistics().reserved_bytes, 0u);
}

TEST_F(pool_budget, every_step_of_the_ladder_is_reported_with_what_it_gained) {
  pool_options options;
  options.limit_bytes = 256 * MiB;
  options.budget = memory_budget::create({});
  int asked = 0;
  options.on_pressure = [&](std::uint64_t) { return ++asked < 3; };
  start(options);
  const stream_handle a = stream(), b = stream();
  void* const x = take(200 * MiB, a);
  void* const y = take(20 * MiB, b);
  work(y, b, 5 * millisecond);
  give(y, b);
  EXPECT_EQ(take(150 * MiB, a), nullptr);
  for (const char* step :
       {"fences", "caches", "unused spans", "other members", "waiting", "callback (3 times)"}) {
    EXPECT_NE(refusal.message.find(step), std::string::npos) << step << " is missing from:\n"
                                                             << refusal.message;
  }
  EXPECT_NE(refusal.json.find("\"name\":\"waiting\""), std::string::npos) << refusal.json;
  EXPECT_EQ(asked, 3);
  give(x, a);
}

// The limit is reached each time, and one step of the ladder has what is asked for: contents are
// checked after each.
class pool_ladder : public pool_test {
 protected:
  void begin(pool_options options) {
    options.limit_bytes = 256 * MiB;
    options.slack = 0;
    start(std::move(options));
    a = stream();
    b = stream();
    void* host = nullptr;
    ok(gpu->host_allocate(&host, sizeof(identity_report), driver::host_flags::none));
    report = new (host) identity_report;
    kept = take(20 * MiB, a);
    const identity_block block{reinterpret_cast<device_address>(kept), 20 * MiB, 5};
    ok(gpu->identity_write({&block, 1}, a));
  }
  void end() {
    const identity_block block{reinterpret_cast<device_address>(kept), 20 * MiB, 5};
    ok(gpu->identity_check({&block, 1}, report, a));
    ok(gpu->stream_synchronize(a));
    EXPECT_EQ(report->mismatches, 0u);
    give(kept, a);
    ok(gpu->host_free(report));
    EXPECT_LE(gpu->physical_peak(), 256 * MiB);
    end_pool();
  }
  stream_handle a = nullptr, b = nullptr;
  identity_report* report = nullptr;
  void* kept = nullptr;
};

TEST_F(pool_ladder, waiting_serves_what_is_pending) {
  begin({});
  void* const busy = take(200 * MiB, b);
  work(busy, b, 30 * millisecond);
  give(busy, b);
  const std::uint64_t start = gpu->now_ns();
  void* const x = take(200 * MiB, a);
  ASSERT_NE(x, nullptr) << refusal.message;
  EXPECT_GE(gpu->now_ns() - start, 25 * millisecond);
  EXPECT_GT(now().host_waits, 0u);
  give(x, a);
  end();
}

TEST_F(pool_ladder, waiting_is_bounded) {
  pool_options options;
  options.max_wait_ns = 0;
  begin(options);
  void* const busy = take(200 * MiB, b);
  work(busy, b, 30 * millisecond);
  give(busy, b);
  const std::uint64_t start = gpu->now_ns();
  EXPECT_EQ(take(200 * MiB, a), nullptr);
  EXPECT_LT(gpu->now_ns() - start, 5 * millisecond);
  EXPECT_NE(refusal.message.find("whose work has not been seen to pass the free"),
            std::string::npos)
      << refusal.message;
  end();
}

TEST_F(pool_ladder, the_callback_spills_and_the_allocation_succeeds) {
  void* spilled = nullptr;
  pool_options options;
  options.on_pressure = [&](std::uint64_t) {
    if (spilled == nullptr) return false;
    give(std::exchange(spilled, nullptr), a);
    return true;
  };
  begin(options);
  spilled = take(200 * MiB, a);
  void* const x = take(210 * MiB, a);
  ASSERT_NE(x, nullptr) << refusal.message;
  EXPECT_EQ(now().pressure_callbacks, 1u);
  EXPECT_EQ(take(210 * MiB, a), nullptr);
  EXPECT_EQ(now().pressure_callbacks, 2u);
  give(x, a);
  end();
}

TEST_F(pool_ladder, another_process_takes_the_memory_and_gives_it_back) {
  begin({});
  const std::uint64_t total = gpu->info().total_bytes;
  gpu->set_faults({.taken_bytes = total - 64 * MiB});
  EXPECT_EQ(take(200 * MiB, a), nullptr);
  EXPECT_NE(refusal.message.find("are held outside this pool"), std::string::npos)
      << refusal.message;
  EXPECT_NE(refusal.json.find("held outside this pool"), std::string::npos);
  void* const small = take(30 * MiB, a);
  EXPECT_NE(small, nullptr) << refusal.message;
  gpu->set_faults({});
  void* const x = take(200 * MiB, a);
  EXPECT_NE(x, nullptr) << refusal.message;
  give(x, a);
  give(small, a);
  end();
}

TEST(background, a_thread_gives_back_what_nobody_uses) {
  auto gpu = simulated_gpu::create({});
  ASSERT_TRUE(gpu.has_value());
  auto made = pool::create(*gpu, {});
  ASSERT_TRUE(made.has_value());
  stream_handle s = nullptr;
  ASSERT_TRUE((*gpu)->stream_create(&s).ok());
  void* const kept = (*made)->allocate(10 * MiB, s);
  {
    const background_give_back thread(*made, {.period_ns = 2'000'000});
    (*made)->deallocate((*made)->allocate(300 * MiB, s), 300 * MiB, s);
    ASSERT_TRUE((*gpu)->stream_synchronize(s).ok());
    for (int i = 0; i < 5000 && (*made)->statistics().reserved_bytes > 100 * MiB; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      // The pool serves meanwhile.
      (*made)->deallocate((*made)->allocate(1 * MiB, s), 1 * MiB, s);
    }
    EXPECT_LE((*made)->statistics().reserved_bytes, 100 * MiB);
    // The thread counts what it gave back once all of it is back.
    for (int i = 0; i < 5000 && thread.given_back() == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_GT(thread.given_back(), 200 * MiB);
  }
  {
    const background_give_back thread(*made, {.period_ns = 1'000'000});
    (*made)->deallocate(kept, 10 * MiB, s);
    made->reset();  // before the thread
  }
  EXPECT_TRUE((*gpu)->stream_destroy(s).ok());
  EXPECT_EQ((*gpu)->leaks().total(), 0u);
}

TEST(background, a_period_of_any_length_leaves_the_processor_alone) {
  auto gpu = simulated_gpu::create({});
  auto made = pool::create(*gpu, {});
  const std::uint64_t end = UINT64_MAX;
  for (const std::uint64_t period : {end, end / 2, end / 2 + 1, std::uint64_t{0}}) {
    const std::clock_t before = std::clock();
    {
      const background_give_back thread(*made, {.period_ns = period, .older_than_ns = end});
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
    }
    EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 8) << "of 0.25 s, period " << period;
  }
}

TEST(background, without_a_thread_it_says_so) {
  auto gpu = simulated_gpu::create({});
  auto made = pool::create(*gpu, {});
  const no_threads now;
  try {
    const background_give_back thread(*made, {});
    ADD_FAILURE() << "made";
  } catch (const memory_error& refused) {
    EXPECT_EQ(refused.code(), error_code::not_permitted);
    EXPECT_NE(std::string(refused.what()).find("no thread"), std::string::npos) << refused.what();
  }
}

TEST(background, in_a_forked_child_it_ends_at_once) {
  auto gpu = simulated_gpu::create({});
  auto made = pool::create(*gpu, {});
  auto thread = std::make_unique<background_give_back>(*made, background_give_back::settings{});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it waits
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    thread.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
}

TEST_F(pool_budget, a_report_can_be_asked_for_at_any_time) {
  pool_options options;
  options.name = "weights";
  start(options);
  const stream_handle a = stream();
  void* const x = take(100 * MiB, a);
  const memory_report report = p->explain();
  EXPECT_EQ(report.asked_bytes, 0u);
  EXPECT_EQ(report.live_bytes, 100 * MiB);
  std::uint64_t kept = 0;
  for (const auto& k : report.keepers) kept += k.bytes;
  EXPECT_EQ(kept, report.reserved_bytes);
  EXPECT_NE(to_text(report).find("'weights'"), std::string::npos);
  give(x, a);
}

}  // namespace
}  // namespace millpond
