// What each adaptor adds. What all resources must do is in the contract suite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "millpond/base/units.hpp"
#include "millpond/memory/adaptors.hpp"
#include "millpond/memory/kinds.hpp"
#include "support/bare_driver.hpp"

namespace millpond {
namespace {

using ::testing::AllOf;
using testing::bare_driver;
using ::testing::HasSubstr;

struct adaptors : ::testing::Test {
  std::shared_ptr<bare_driver> gpu = std::make_shared<bare_driver>();
  std::shared_ptr<pointer_registry> registry = std::make_shared<pointer_registry>();
  device_resource device{gpu, registry};
};

using limit = adaptors;

TEST_F(limit, refuses_what_passes_it_and_says_limit_live_and_asked) {
  limit_resource limited(device, 1000);
  void* const first = limited.allocate(600, nullptr);
  const auto refused = limited.try_allocate(401, 1, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::out_of_memory);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("limit is 1000 bytes"), HasSubstr("live are 600"),
                    HasSubstr("asked for 401")));
  void* const second = limited.allocate(400, nullptr);
  EXPECT_EQ(limited.live_bytes(), 1000u);
  EXPECT_THROW(static_cast<void>(limited.allocate(1, nullptr)), out_of_memory);
  limited.deallocate(first, 0, nullptr);  // the size is remembered
  EXPECT_EQ(limited.live_bytes(), 400u);
  limited.deallocate(second, 400, nullptr);
  EXPECT_EQ(limited.live_bytes(), 0u);
  EXPECT_EQ(limited.refused(), 2u);
}

TEST_F(limit, near_the_largest_number_nothing_wraps) {
  limit_resource limited(device, std::numeric_limits<std::uint64_t>::max());
  void* const block = limited.allocate(64, nullptr);
  EXPECT_FALSE(limited.try_allocate(std::numeric_limits<std::uint64_t>::max(), 1, nullptr));
  EXPECT_EQ(limited.live_bytes(), 64u);
  limited.deallocate(block, 64, nullptr);
}

// Without books: it takes any free, whatever the size.
class careless_resource final : public memory_resource {
 public:
  [[nodiscard]] memory_kind kind() const noexcept override { return memory_kind::device; }
  [[nodiscard]] driver* gpu() const noexcept override { return nullptr; }

 private:
  result<void*> do_allocate(std::uint64_t, std::uint64_t, stream_handle) override {
    return static_cast<void*>(&block_);
  }
  result<void> do_deallocate(void*, std::uint64_t, stream_handle) noexcept override { return {}; }
  int block_ = 0;
};

TEST_F(adaptors, a_free_with_a_size_that_no_block_has_is_counted_within_the_classes) {
  careless_resource upstream;
  statistics_resource counted(upstream, free_sizes::reported);
  void* const block = counted.allocate(64, nullptr);
  counted.deallocate(block, std::numeric_limits<std::uint64_t>::max(), nullptr);
  EXPECT_EQ(counted.statistics().deallocations, 1u);
}

TEST_F(limit, lowered_below_what_is_live_it_takes_nothing_away) {
  limit_resource limited(device, 1000);
  void* const block = limited.allocate(600, nullptr);
  limited.set_limit_bytes(100);
  EXPECT_FALSE(limited.try_allocate(1, 1, nullptr));
  limited.deallocate(block, 600, nullptr);
  void* const small = limited.allocate(100, nullptr);
  limited.deallocate(small, 100, nullptr);
}

TEST_F(limit, failed_calls_of_the_upstream_count_nothing) {
  limit_resource limited(device, 1000);
  gpu->fail_call(2);
  EXPECT_FALSE(limited.try_allocate(600, 1, nullptr));
  EXPECT_EQ(limited.live_bytes(), 0u);
  void* const block = limited.allocate(600, nullptr);
  gpu->fail_call(2, driver_status::unknown);
  EXPECT_FALSE(limited.try_deallocate(block, 600, nullptr));
  EXPECT_EQ(limited.live_bytes(), 600u);
  EXPECT_TRUE(limited.try_deallocate(block, 600, nullptr));
  EXPECT_EQ(limited.live_bytes(), 0u);
}

TEST_F(limit, reported_sizes_are_required) {
  limit_resource limited(device, 1000, free_sizes::reported);
  void* const block = limited.allocate(600, nullptr);
  EXPECT_EQ(limited.try_deallocate(block, 0, nullptr).error().code, error_code::invalid_argument);
  EXPECT_TRUE(limited.try_deallocate(block, 600, nullptr));
  EXPECT_EQ(limited.live_bytes(), 0u);
}

TEST_F(limit, is_never_passed_under_threads) {
  pageable_resource memory(nullptr);
  statistics_resource seen(memory);
  limit_resource limited(seen, 10000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const auto block = limited.try_allocate(3000, 8, nullptr);
        if (block) limited.deallocate(*block, 3000, nullptr);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LE(seen.statistics().peak_live_bytes, 10000u);
  EXPECT_EQ(limited.live_bytes(), 0u);
  EXPECT_EQ(seen.statistics().allocations + limited.refused(), 8000u);
}

using statistics = adaptors;

TEST_F(statistics, counts_live_peak_totals_and_classes) {
  statistics_resource counted(device);
  void* const a = counted.allocate(100, nullptr);
  void* const b = counted.allocate(127, nullptr);
  void* const c = counted.allocate(4096, nullptr);
  counted.deallocate(b, 0, nullptr);
  gpu->fail_call(2);
  EXPECT_FALSE(counted.try_allocate(64, 1, nullptr));
  const auto now = counted.statistics();
  EXPECT_EQ(now.live_bytes, 4196u);
  EXPECT_EQ(now.live_blocks, 2u);
  EXPECT_EQ(now.peak_live_bytes, 4323u);
  EXPECT_EQ(now.allocations, 3u);
  EXPECT_EQ(now.allocated_bytes, 4323u);
  EXPECT_EQ(now.failed_allocations, 1u);
  ASSERT_EQ(now.classes.size(), 2u);
  EXPECT_EQ(now.classes[0].from_bytes, 64u);
  EXPECT_EQ(now.classes[0].to_bytes, 128u);
  EXPECT_EQ(now.classes[0].allocations, 2u);
  EXPECT_EQ(now.classes[0].live_blocks, 1u);
  EXPECT_EQ(now.classes[1].from_bytes, 4096u);
  EXPECT_THAT(now.text(), HasSubstr("4.00 KiB"));
  counted.deallocate(a, 100, nullptr);
  counted.reset_peak();
  EXPECT_EQ(counted.statistics().peak_live_bytes, 4096u);
  counted.deallocate(c, 4096, nullptr);
  EXPECT_EQ(counted.statistics().live_blocks, 0u);
}

TEST_F(statistics, are_exact_when_threads_have_ended) {
  pageable_resource memory(nullptr);
  statistics_resource counted(memory, free_sizes::reported);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 1; i <= 1000; ++i)
        counted.deallocate(counted.allocate(i, 8, nullptr), i, nullptr);
    });
  }
  for (auto& thread : threads) thread.join();
  const auto now = counted.statistics();
  EXPECT_EQ(now.allocations, 4000u);
  EXPECT_EQ(now.deallocations, 4000u);
  EXPECT_EQ(now.allocated_bytes, 4u * 1000 * 1001 / 2);
  EXPECT_EQ(now.live_bytes, 0u);
  EXPECT_EQ(now.live_blocks, 0u);
  EXPECT_GE(now.peak_live_bytes, 1000u);
}

using tracing = adaptors;

TEST_F(tracing, each_call_is_an_event_with_its_time_and_duration) {
  std::uint64_t time = 1000;
  std::vector<trace::event> events;
  trace_options options;
  options.clock = [&] { return time += 10; };
  options.thread = [] { return 7u; };
  options.first_sequence = 5;
  trace_resource traced(device, [&](const trace::event& made) { events.push_back(made); }, options);
  void* const block = traced.allocate(4096, nullptr);
  traced.deallocate(block, 4096, nullptr);
  gpu->fail_call(2);
  EXPECT_FALSE(traced.try_allocate(64, 1, nullptr));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(traced.events(), 3u);
  EXPECT_EQ(events[0].what, trace::action::allocate);
  EXPECT_EQ(events[0].address, reinterpret_cast<std::uint64_t>(block));
  EXPECT_EQ(events[0].bytes, 4096u);
  EXPECT_EQ(events[0].sequence, 5u);
  EXPECT_EQ(events[0].time_ns, 1010u);
  EXPECT_EQ(events[0].duration_ns, 10u);
  EXPECT_EQ(events[0].thread, 7u);
  EXPECT_EQ(events[0].of, trace::kind::device);
  EXPECT_EQ(events[0].status, 0);
  EXPECT_EQ(events[1].what, trace::action::free);
  EXPECT_EQ(events[1].sequence, 6u);
  EXPECT_EQ(events[1].time_ns, 1030u);
  EXPECT_EQ(events[2].status, 2);
  EXPECT_EQ(events[2].address, 0u);
}

TEST_F(tracing, by_sequence_no_address_is_live_twice) {
  pageable_resource memory(nullptr);
  std::mutex mutex;
  std::vector<trace::event> events;
  trace_resource traced(memory, [&](const trace::event& made) {
    const std::lock_guard lock(mutex);
    events.push_back(made);
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i)
        traced.deallocate(traced.allocate(64, 8, nullptr), 64, nullptr);
    });
  }
  for (auto& thread : threads) thread.join();
  std::sort(events.begin(), events.end(), [](auto& a, auto& b) { return a.sequence < b.sequence; });
  std::set<std::uint64_t> live;
  for (std::size_t i = 0; i < events.size(); ++i) {
    ASSERT_EQ(events[i].sequence, i);
    if (events[i].what == trace::action::allocate) {
      ASSERT_TRUE(live.insert(events[i].address).second);
    } else {
      ASSERT_EQ(live.erase(events[i].address), 1u);
    }
  }
}

using guard = adaptors;

TEST_F(guard, knows_pointers_of_a_resource_that_does_not) {
  guard_resource guarded(device, registry, {.name = "pool", .quarantine_bytes = 0});
  void* const block = guarded.allocate(4096, nullptr);
  const int freed = __LINE__ + 1;
  const auto through_upstream = device.try_deallocate(block, 4096, nullptr);
  ASSERT_FALSE(through_upstream);
  EXPECT_THAT(through_upstream.error().message,
              AllOf(HasSubstr("pool.allocate (pool)"), HasSubstr("cuMemFree (device_resource)"),
                    HasSubstr("adaptors_test.cpp:" + std::to_string(freed))));
  EXPECT_EQ(guarded.try_deallocate(static_cast<char*>(block) + 8, 0, nullptr).error().code,
            error_code::interior_pointer);
  EXPECT_TRUE(guarded.try_deallocate(block, 4096, nullptr));
  EXPECT_EQ(guarded.try_deallocate(block, 4096, nullptr).error().code, error_code::double_free);
}

TEST_F(guard, quarantine_keeps_addresses_from_coming_again) {
  guard_resource guarded(device, registry, {.name = {}, .quarantine_bytes = 10000});
  void* const block = guarded.allocate(4096, nullptr);
  guarded.deallocate(block, 4096, nullptr);
  EXPECT_EQ(gpu->live(), 1u);
  EXPECT_EQ(guarded.quarantined_bytes(), 4096u);
  for (int i = 0; i < 10; ++i) {
    void* const other = guarded.allocate(2000, nullptr);
    if (i < 2) {
      EXPECT_NE(other, block);
    }
    guarded.deallocate(other, 2000, nullptr);
    EXPECT_LE(guarded.quarantined_bytes(), 10000u);
  }
  guarded.flush();
  EXPECT_EQ(gpu->live(), 0u);
}

TEST_F(guard, what_the_upstream_refuses_stays_in_quarantine_and_is_reported) {
  guard_resource guarded(device, registry, {.name = {}, .quarantine_bytes = 5000});
  std::vector<error> reported;
  guarded.set_error_sink([&](const error& failure) { reported.push_back(failure); });
  guarded.deallocate(guarded.allocate(4096, nullptr), 4096, nullptr);
  gpu->fail_call(2, driver_status::unknown);
  guarded.flush();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_THAT(reported[0].message, HasSubstr("cuMemFree"));
  EXPECT_EQ(guarded.quarantined_bytes(), 4096u);
  guarded.flush();
  EXPECT_EQ(gpu->live(), 0u);
}

TEST_F(guard, quarantine_is_given_up_when_memory_is_short) {
  limit_resource limited(device, 5000);
  guard_resource guarded(limited, registry, {.name = {}, .quarantine_bytes = 5000});
  guarded.deallocate(guarded.allocate(4096, nullptr), 4096, nullptr);
  void* const block = guarded.allocate(4096, nullptr);
  EXPECT_EQ(guarded.quarantined_bytes(), 0u);
  guarded.deallocate(block, 4096, nullptr);
}

TEST_F(guard, leaks_are_reported_by_place_and_given_back) {
  leak_report reported;
  pointer_registry::options options;
  options.leak_sink = [&](const leak_report& report) { reported = report; };
  {
    guard_resource guarded(device, std::make_shared<pointer_registry>(options),
                           {.name = "pool", .quarantine_bytes = 0});
    memory_resource& plain = guarded;
    const scoped_call_site here("encoder weights");
    EXPECT_NE(plain.allocate(4096, nullptr), nullptr);
    EXPECT_EQ(guarded.leaks().blocks, 1u);
  }
  EXPECT_THAT(reported.text(), AllOf(HasSubstr("of pool (device memory)"),
                                     HasSubstr("at encoder weights (adaptors_test.cpp:")));
  EXPECT_EQ(gpu->live(), 0u);
}

TEST_F(adaptors, stack_and_pass_the_place_of_the_outermost_call) {
  guard_resource guarded(device, registry);
  statistics_resource counted(guarded);
  limit_resource limited(counted, MiB);
  const int line = __LINE__ + 1;
  void* const block = limited.allocate(100, nullptr);
  ASSERT_EQ(guarded.live_blocks().size(), 1u);
  EXPECT_EQ(guarded.live_blocks()[0].allocated.where.line(), static_cast<unsigned>(line));
  EXPECT_EQ(device.live_blocks().at(0).allocated.where.line(), static_cast<unsigned>(line));
  limited.deallocate(block, 100, nullptr);
}

}  // namespace
}  // namespace millpond
