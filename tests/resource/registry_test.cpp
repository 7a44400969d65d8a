// The pointer registry: every wrong free is answered with both calls and both places, and the block
// stays.
#include "millpond/detail/pointer_registry.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "base/random.hpp"
#include "millpond/memory/kinds.hpp"
#include "resource/address_table.hpp"
#include "support/bare_driver.hpp"

namespace millpond {
namespace {

using ::testing::AllOf;
using testing::bare_driver;
using ::testing::HasSubstr;

struct registry : ::testing::Test {
  std::shared_ptr<bare_driver> gpu = std::make_shared<bare_driver>();
  std::shared_ptr<pointer_registry> known = std::make_shared<pointer_registry>();
  device_resource device{gpu, known};
  pinned_resource pinned{gpu, known};

  static error failure(const result<void>& answer) {
    EXPECT_FALSE(answer.has_value());
    return answer ? error{} : answer.error();
  }
};

TEST_F(registry, a_wrong_kind_free_names_both_calls_and_both_places) {
  const int allocated = __LINE__ + 1;
  void* const block = pinned.allocate(4096, nullptr);
  const int freed = __LINE__ + 1;
  const error why = failure(device.try_deallocate(block, 4096, nullptr));
  EXPECT_EQ(why.code, error_code::wrong_kind);
  EXPECT_THAT(why.message,
              AllOf(HasSubstr("cuMemHostAlloc (pinned_resource)"),
                    HasSubstr("through cuMemFree (device_resource)"),
                    HasSubstr("registry_test.cpp:" + std::to_string(allocated)),
                    HasSubstr("registry_test.cpp:" + std::to_string(freed)),
                    HasSubstr("free it through cuMemFreeHost"), HasSubstr("stays allocated")));
  EXPECT_EQ(gpu->live(), 1u);
  EXPECT_TRUE(pinned.try_deallocate(block, 4096, nullptr));
  EXPECT_EQ(gpu->live(), 0u);
}

TEST_F(registry, a_double_free_names_all_three_places) {
  const scoped_call_site here("the first batch");
  void* const block = device.allocate(4096, nullptr);
  device.deallocate(block, 4096, nullptr);
  const int again = __LINE__ + 1;
  const error why = failure(device.try_deallocate(block, 4096, nullptr));
  EXPECT_EQ(why.code, error_code::double_free);
  EXPECT_THAT(why.message,
              AllOf(HasSubstr("allocated by cuMemAlloc (device_resource) at the first batch ("),
                    HasSubstr("freed by cuMemFree"), HasSubstr("freed again through cuMemFree"),
                    HasSubstr("registry_test.cpp:" + std::to_string(again))));
}

TEST_F(registry, a_pinned_block_freed_twice_through_two_kinds_is_a_double_free) {
  void* const block = pinned.allocate(4096, nullptr);
  pinned.deallocate(block, 4096, nullptr);
  EXPECT_EQ(failure(device.try_deallocate(block, 4096, nullptr)).code, error_code::double_free);
}

TEST_F(registry, interior_pointers_name_the_block_they_are_in) {
  void* const block = device.allocate(4096, nullptr);
  const error why = failure(device.try_deallocate(static_cast<char*>(block) + 1024, 0, nullptr));
  EXPECT_EQ(why.code, error_code::interior_pointer);
  EXPECT_THAT(why.message, HasSubstr("lies 1024 bytes (1.00 KiB) into a block"));
  device.deallocate(block, 4096, nullptr);
}

TEST_F(registry, a_wrong_size_is_refused_and_an_unknown_one_is_not) {
  void* const block = device.allocate(4096, nullptr);
  const error why = failure(device.try_deallocate(block, 4095, nullptr));
  EXPECT_EQ(why.code, error_code::invalid_argument);
  EXPECT_THAT(why.message, AllOf(HasSubstr("4096 bytes"), HasSubstr("freed as 4095 bytes")));
  EXPECT_EQ(gpu->live(), 1u);
  EXPECT_TRUE(device.try_deallocate(block, 0, nullptr));
}

TEST_F(registry, a_pointer_that_only_the_driver_knows_is_named_by_its_kind) {
  device_address raw = 0;
  ASSERT_TRUE(gpu->memory_allocate(&raw, 4096).ok());
  const error same = failure(device.try_deallocate(reinterpret_cast<void*>(raw), 0, nullptr));
  EXPECT_EQ(same.code, error_code::foreign_pointer);
  const error other = failure(pinned.try_deallocate(reinterpret_cast<void*>(raw), 0, nullptr));
  EXPECT_EQ(other.code, error_code::wrong_kind);
  EXPECT_THAT(other.message, HasSubstr("the driver knows it as device memory, 4096 bytes"));
  int local = 0;
  EXPECT_EQ(failure(device.try_deallocate(&local, 0, nullptr)).code, error_code::foreign_pointer);
  EXPECT_TRUE(gpu->memory_free(raw).ok());
}

TEST_F(registry, another_resource_of_the_same_kind_may_not_free) {
  device_resource twin(gpu, known);
  void* const block = device.allocate(64, nullptr);
  EXPECT_EQ(failure(twin.try_deallocate(block, 64, nullptr)).code, error_code::foreign_pointer);
  EXPECT_TRUE(device.try_deallocate(block, 64, nullptr));
}

TEST_F(registry, only_the_topmost_owner_of_an_address_may_free_it) {
  const block_owner* const pool =
      known->enrol({"pool", memory_kind::device, "pool.allocate", "pool.deallocate"});
  void* const span = device.allocate(4096, nullptr);
  const auto address = reinterpret_cast<std::uint64_t>(span);
  ASSERT_TRUE(known->add(
      {.address = address, .bytes = 512, .base = address, .reserved = 512, .owner = pool}));
  EXPECT_EQ(failure(device.try_deallocate(span, 4096, nullptr)).code, error_code::foreign_pointer);
  block_facts innermost;
  ASSERT_TRUE(known->find(address + 100, &innermost));
  EXPECT_EQ(innermost.owner, pool);
  EXPECT_TRUE(known->take(pool, address, 512, nullptr, call_site()));
  EXPECT_TRUE(device.try_deallocate(span, 4096, nullptr));
  EXPECT_EQ(known->count().live_blocks, 0u);
}

TEST_F(registry, dismissing_an_owner_leaves_the_layers_above_and_below) {
  const block_owner* const low = known->enrol({"low", memory_kind::device, "low", "low"});
  const block_owner* const middle =
      known->enrol({"middle", memory_kind::device, "middle", "middle"});
  const block_owner* const high = known->enrol({"high", memory_kind::device, "high", "high"});
  for (const block_owner* owner : {low, middle, high}) {
    ASSERT_TRUE(known->add({.address = 4096, .bytes = 64, .owner = owner}));
  }
  EXPECT_EQ(known->dismiss(middle).size(), 1u);
  EXPECT_EQ(known->count().live_blocks, 2u);
  EXPECT_EQ(known->dismiss(high).size(), 1u);
  EXPECT_TRUE(known->take(low, 4096, 64, nullptr, call_site()));
  EXPECT_EQ(known->count().live_blocks, 0u);
}

TEST_F(registry, a_failed_free_leaves_the_block_as_it_was) {
  void* const block = device.allocate(4096, nullptr);
  gpu->fail_call(2, driver_status::launch_failed);
  const error why = failure(device.try_deallocate(block, 4096, nullptr));
  EXPECT_EQ(why.code, error_code::driver_failure);
  EXPECT_THAT(why.message, HasSubstr("cuMemFree: CUDA_ERROR_LAUNCH_FAILED"));
  EXPECT_EQ(device.usage().live_blocks, 1u);
  EXPECT_TRUE(device.try_deallocate(block, 4096, nullptr));
  EXPECT_EQ(failure(device.try_deallocate(block, 4096, nullptr)).code, error_code::double_free);
}

TEST_F(registry, a_block_freed_behind_our_back_is_counted_when_its_address_comes_again) {
  const block_owner* const owner = known->enrol({"raw", memory_kind::device, "a", "b"});
  ASSERT_TRUE(known->add({.address = 8192, .bytes = 64, .owner = owner}));
  ASSERT_TRUE(known->add({.address = 8192, .bytes = 128, .owner = owner}));
  EXPECT_EQ(known->count().stale_records, 1u);
  const auto taken = known->take(owner, 8192, 128, nullptr, call_site());
  EXPECT_TRUE(taken);
}

TEST_F(registry, frees_are_remembered_up_to_the_bound_and_no_further) {
  pointer_registry few({.remembered_frees = 64, .leak_sink = {}});
  const block_owner* const owner = few.enrol({"few", memory_kind::device, "a", "b"});
  const auto free_one = [&](std::uint64_t address) {
    EXPECT_TRUE(few.add({.address = address, .bytes = 1, .owner = owner}));
    EXPECT_TRUE(few.take(owner, address, 1, nullptr, call_site()));
  };
  free_one(512);
  EXPECT_EQ(few.take(owner, 512, 1, nullptr, call_site()).error().code, error_code::double_free);
  for (std::uint64_t i = 1; i < 4096; ++i) free_one(512 + 512 * i);
  EXPECT_EQ(few.take(owner, 512, 1, nullptr, call_site()).error().code,
            error_code::foreign_pointer);
}

TEST_F(registry, leaks_are_added_up_by_place_with_the_largest_first) {
  leak_report reported;
  {
    pointer_registry::options options;
    options.leak_sink = [&](const leak_report& report) { reported = report; };
    pointer_registry ending(options);
    const block_owner* const owner = ending.enrol({"cache", memory_kind::managed, "a", "b"});
    const char* const text = ending.intern(std::string("layer ") + "3");
    EXPECT_EQ(text, ending.intern("layer 3"));
    for (std::uint64_t i = 1; i <= 5; ++i) {
      ASSERT_TRUE(ending.add({.address = i * 4096,
                              .bytes = 100,
                              .owner = owner,
                              .allocated = call_site(i == 1 ? "small" : text, {})}));
    }
    EXPECT_EQ(ending.report().blocks, 5u);
    EXPECT_EQ(reported.blocks, 0u);
  }
  ASSERT_EQ(reported.lines.size(), 2u);
  EXPECT_EQ(reported.lines[0].blocks, 4u);
  EXPECT_THAT(reported.text(),
              AllOf(HasSubstr("5 blocks, 500 B, never freed"),
                    HasSubstr("100 B in 1 block of cache (managed memory), allocated at small")));
}

TEST_F(registry, a_forked_child_is_refused_everything_and_keeps_silent_at_its_end) {
  void* const block = device.allocate(64, nullptr);
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto allocated = device.try_allocate(64, 64, nullptr);
    const auto freed = device.try_deallocate(block, 64, nullptr);
    const auto taken = known->take(nullptr, 512, 0, nullptr, call_site());
    const bool refused = !allocated && allocated.error().code == error_code::not_permitted &&
                         !freed && freed.error().code == error_code::not_permitted && !taken &&
                         taken.error().code == error_code::not_permitted;
    const auto calls = gpu->calls();
    device.~device_resource();
    _exit(refused && gpu->calls() == calls ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  device.deallocate(block, 64, nullptr);
}

TEST_F(registry, threads_free_each_others_blocks) {
  const block_owner* const owner = known->enrol({"threads", memory_kind::device, "a", "b"});
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> freed{0};
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 4000; ++i) {
        EXPECT_TRUE(known->add({.address = 512 * (1 + t + 4 * i), .bytes = 1, .owner = owner}));
        // Any thread's latest: exactly one of those who try gets it.
        for (std::uint64_t other = 0; other < 4; ++other) {
          if (known->take(owner, 512 * (1 + other + 4 * i), 1, nullptr, call_site()))
            freed.fetch_add(1);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(freed.load() + known->live(owner).size(), 16000u);
  pointer_registry::counts now = known->count();
  EXPECT_EQ(now.live_blocks, known->live(owner).size());
  for (const block_facts& block : known->live(owner))
    EXPECT_TRUE(known->take(owner, block.address, 0, nullptr, {}));
}

TEST(address_table, agrees_with_a_map_over_random_inserts_and_erases) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    random numbers(seed);
    address_table<std::uint64_t> table;
    std::map<std::uint64_t, std::uint64_t> model;
    for (int step = 0; step < 5000; ++step) {
      const std::uint64_t address = 512 * numbers.between(1, 300);
      if (numbers.chance(0.5)) {
        table.insert(address) = model[address] = numbers.next();
      } else {
        EXPECT_EQ(table.erase(address), model.erase(address) == 1);
      }
      const std::uint64_t asked = 512 * numbers.between(1, 300);
      const auto found = model.find(asked);
      const std::uint64_t* const value = table.find(asked);
      ASSERT_EQ(value != nullptr, found != model.end());
      if (value != nullptr) {
        ASSERT_EQ(*value, found->second);
      }
      ASSERT_EQ(table.size(), model.size());
    }
  }
}

}  // namespace
}  // namespace millpond
