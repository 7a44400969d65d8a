// Pinned memory: how it is made, its budget, the pool over it, and control blocks.
#include "millpond/pinned/pinned_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "support/no_threads.hpp"

namespace millpond {
namespace {

using ::testing::HasSubstr;

struct pinned_memory : ::testing::Test {
  std::shared_ptr<simulated_gpu> gpu = *simulated_gpu::create();
  host_pinner_options options() const {
    host_pinner_options made;
    made.threads = 4;
    made.budget_bytes = 256 * MiB;
    return made;
  }
};

TEST_F(pinned_memory, a_pinned_block_is_cleared_aligned_and_known_to_the_driver) {
  auto pinner = host_pinner::create(gpu, options());
  ASSERT_TRUE(pinner);
  auto at = (*pinner)->allocate(33 * MiB + 5);
  ASSERT_TRUE(at) << at.error().message;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*at) % (2 * MiB), 0u);
  const auto* const bytes = static_cast<const unsigned char*>(*at);
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[33 * MiB + 4], 0);
  driver::pointer_facts facts;
  ASSERT_TRUE(gpu->pointer_info(reinterpret_cast<device_address>(*at), &facts).ok());
  EXPECT_EQ(facts.kind, memory_kind::pinned);
  EXPECT_EQ((*pinner)->usage().pinned_bytes, 34 * MiB);
  EXPECT_TRUE((*pinner)->free(*at, 0));
  EXPECT_EQ((*pinner)->usage().pinned_bytes, 0u);
  EXPECT_EQ(gpu->leaks().registered_ranges, 0u);
  EXPECT_EQ((*pinner)->free(*at, 0).error().code, error_code::foreign_pointer);
}

TEST_F(pinned_memory, blocks_prefer_the_node_that_is_chosen) {
  auto chosen = options();
  chosen.numa_node = 0;
  auto pinner = host_pinner::create(gpu, chosen);
  auto at = (*pinner)->allocate(4 * MiB);
  ASSERT_TRUE(at) << at.error().message;
  constexpr unsigned long of_address = 2;  // MPOL_F_ADDR
  int mode = -1;
  unsigned long nodes = 0;
  if (::syscall(SYS_get_mempolicy, &mode, &nodes, 64ul, *at, of_address) != 0) {
    EXPECT_TRUE((*pinner)->free(*at, 0));
    GTEST_SKIP() << "this system tells no memory policy";
  }
  EXPECT_EQ(mode, 1);  // MPOL_PREFERRED
  EXPECT_EQ(nodes, 1u);
  EXPECT_TRUE((*pinner)->free(*at, 0));
}

TEST_F(pinned_memory, the_budget_refuses_clearly_and_is_given_back) {
  auto pinner = host_pinner::create(gpu, options());
  auto first = (*pinner)->allocate(200 * MiB);
  ASSERT_TRUE(first);
  const auto refused = (*pinner)->allocate(100 * MiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::out_of_memory);
  EXPECT_THAT(refused.error().message, HasSubstr("budget of 256 MiB (200 MiB are pinned)"));
  EXPECT_EQ((*pinner)->usage().refused, 1u);
  EXPECT_TRUE((*pinner)->free(*first, 0));
  auto second = (*pinner)->allocate(100 * MiB);
  EXPECT_TRUE(second);
  EXPECT_TRUE((*pinner)->free(*second, 0));
  EXPECT_EQ((*pinner)->allocate(std::uint64_t{1} << 62).error().code, error_code::out_of_memory);
}

TEST_F(pinned_memory, a_share_is_of_the_machines_memory) {
  host_pinner_options half;
  auto pinner = host_pinner::create(gpu, half);
  ASSERT_TRUE(pinner) << pinner.error().message;
  EXPECT_GT((*pinner)->usage().budget_bytes, 64 * MiB);
  half.budget_share = 1.5;
  EXPECT_EQ(host_pinner::create(gpu, half).error().code, error_code::invalid_argument);
}

TEST_F(pinned_memory, what_is_kept_ready_serves_the_next_request) {
  host_pinner_options o = options();
  o.keep_ready_bytes = 32 * MiB;
  auto pinner = host_pinner::create(gpu, o);
  (*pinner)->wait_until_ready();
  EXPECT_EQ((*pinner)->usage().ready_bytes, 32 * MiB);
  auto served = (*pinner)->allocate(20 * MiB);
  auto pinned = (*pinner)->allocate(8 * MiB);  // too little of it would be used
  ASSERT_TRUE(served && pinned);
  EXPECT_EQ((*pinner)->usage().served_ready, 1u);
  (*pinner)->wait_until_ready();
  EXPECT_EQ((*pinner)->usage().ready_bytes, 32 * MiB);
  EXPECT_TRUE((*pinner)->free(*served, 0));
  EXPECT_TRUE((*pinner)->free(*pinned, 0));
  pinner->reset();
  EXPECT_EQ(gpu->leaks().registered_ranges, 0u);
}

TEST_F(pinned_memory, pinning_ahead_stops_at_the_budget_and_says_so) {
  host_pinner_options o = options();
  o.keep_ready_bytes = 512 * MiB;
  auto pinner = host_pinner::create(gpu, o);
  (*pinner)->wait_until_ready();
  EXPECT_THAT((*pinner)->usage().background_failure, HasSubstr("budget"));
  auto at = (*pinner)->allocate(MiB);
  EXPECT_TRUE(at);
  EXPECT_TRUE((*pinner)->free(*at, 0));
}

TEST_F(pinned_memory, what_is_ready_makes_way_for_a_request_within_the_budget) {
  host_pinner_options o = options();
  o.budget_bytes = 64 * MiB;
  o.keep_ready_bytes = 32 * MiB;
  auto pinner = host_pinner::create(gpu, o);
  (*pinner)->wait_until_ready();
  auto large = (*pinner)->allocate(48 * MiB);
  ASSERT_TRUE(large) << large.error().message;
  EXPECT_EQ((*pinner)->usage().pinned_bytes, 48 * MiB);
  EXPECT_EQ((*pinner)->usage().ready_bytes, 0u);
  EXPECT_EQ((*pinner)->usage().refused, 0u);
  // What passes the budget anyway leaves it alone.
  EXPECT_TRUE((*pinner)->free(*large, 0));
  (*pinner)->wait_until_ready();
  EXPECT_EQ((*pinner)->usage().ready_bytes, 32 * MiB) << "something was freed";
  EXPECT_EQ((*pinner)->allocate(66 * MiB).error().code, error_code::out_of_memory);
  EXPECT_EQ((*pinner)->usage().ready_bytes, 32 * MiB);
  EXPECT_EQ((*pinner)->usage().refused, 1u);
}

TEST_F(pinned_memory, a_request_within_the_budget_waits_for_what_is_just_being_pinned_ahead) {
  for (int round = 0; round < 20; ++round) {
    host_pinner_options o = options();
    o.budget_bytes = 16 * MiB;
    o.keep_ready_bytes = 8 * MiB;
    auto pinner = host_pinner::create(gpu, o);
    auto large = (*pinner)->allocate(16 * MiB);
    ASSERT_TRUE(large) << "round " << round << ": " << large.error().message;
    EXPECT_TRUE((*pinner)->free(*large, 0));
  }
  EXPECT_EQ(gpu->leaks().registered_ranges, 0u);
}

TEST_F(pinned_memory, what_the_driver_will_not_unpin_does_not_make_way_and_stays_ready) {
  host_pinner_options o = options();
  o.budget_bytes = 64 * MiB;
  o.keep_ready_bytes = 32 * MiB;
  auto pinner = host_pinner::create(gpu, o);
  (*pinner)->wait_until_ready();
  fault_plan plan;
  plan.faults.push_back(
      {.call = "cuMemHostUnregister", .count = 100, .status = driver_status::unknown});
  gpu->set_faults(plan);
  EXPECT_EQ((*pinner)->allocate(48 * MiB).error().code, error_code::out_of_memory);
  gpu->set_faults({});
  EXPECT_EQ((*pinner)->usage().pinned_bytes, 32 * MiB);
  auto served = (*pinner)->allocate(32 * MiB);
  ASSERT_TRUE(served);
  EXPECT_EQ((*pinner)->usage().served_ready, 1u);
  EXPECT_TRUE((*pinner)->free(*served, 0));
}

TEST_F(pinned_memory, pinning_ahead_begins_again_when_the_budget_has_room) {
  host_pinner_options o = options();
  o.budget_bytes = 64 * MiB;
  o.keep_ready_bytes = 32 * MiB;
  auto pinner = host_pinner::create(gpu, o);
  std::vector<void*> out;
  for (int i = 0; i < 2; ++i) {
    (*pinner)->wait_until_ready();
    out.push_back((*pinner)->allocate(32 * MiB).value());
  }
  (*pinner)->wait_until_ready();  // the budget is full
  EXPECT_THAT((*pinner)->usage().background_failure, HasSubstr("budget"));
  for (void* each : out) EXPECT_TRUE((*pinner)->free(each, 0));
  const std::uint64_t before = (*pinner)->usage().served_ready;
  for (int i = 0; i < 3; ++i) {
    (*pinner)->wait_until_ready();
    EXPECT_EQ((*pinner)->usage().background_failure, "");
    auto again = (*pinner)->allocate(32 * MiB);
    ASSERT_TRUE(again);
    EXPECT_TRUE((*pinner)->free(*again, 0));
  }
  EXPECT_EQ((*pinner)->usage().served_ready - before, 3u);
  EXPECT_EQ((*pinner)->usage().refused, 0u) << "no request was refused";
}

TEST_F(pinned_memory, without_threads_the_calling_one_pins) {
  const no_threads now;
  host_pinner_options o = options();
  o.keep_ready_bytes = 32 * MiB;
  auto pinner = host_pinner::create(gpu, o);
  ASSERT_TRUE(pinner) << pinner.error().message;
  (*pinner)->wait_until_ready();
  EXPECT_EQ((*pinner)->usage().ready_bytes, 32 * MiB);
  EXPECT_THAT((*pinner)->usage().background_failure, HasSubstr("no thread"));
  auto ready = (*pinner)->allocate(32 * MiB);
  auto pinned = (*pinner)->allocate(64 * MiB);  // which four threads would touch
  ASSERT_TRUE(ready && pinned);
  EXPECT_EQ((*pinner)->usage().served_ready, 1u);
  (*pinner)->wait_until_ready();
  EXPECT_TRUE((*pinner)->free(*ready, 0));
  EXPECT_TRUE((*pinner)->free(*pinned, 0));
}

TEST_F(pinned_memory, numbers_at_the_end_of_64_bits_are_served_or_said) {
  host_pinner_options o = options();
  o.threads = UINT_MAX;
  o.keep_ready_bytes = UINT64_MAX;
  auto pinner = host_pinner::create(gpu, o);
  (*pinner)->wait_until_ready();
  EXPECT_THAT((*pinner)->usage().background_failure, HasSubstr("budget"));
  auto at = (*pinner)->allocate(64 * MiB);
  ASSERT_TRUE(at);
  EXPECT_TRUE((*pinner)->free(*at, UINT64_MAX));
  EXPECT_EQ((*pinner)->allocate(UINT64_MAX).error().code, error_code::out_of_memory);
  o.keep_ready_bytes = 0;
  o.budget_bytes = UINT64_MAX;
  pinner = host_pinner::create(gpu, o);
  EXPECT_EQ((*pinner)->allocate(UINT64_MAX).error().code, error_code::out_of_memory);
  auto made = make_pinned_pool(gpu, {.pinning = o, .limit_bytes = UINT64_MAX});
  ASSERT_TRUE(made);
  (*made)->deallocate((*made)->allocate(MiB, nullptr), MiB, nullptr);
}

// Whether a forked child gets no copy of the page.
bool left_out_of_children(const void* at) {
  const auto wanted = reinterpret_cast<std::uint64_t>(at);
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool here = false;
  while (std::getline(maps, line)) {
    unsigned long long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      here = begin <= wanted && wanted < end;
    } else if (here && line.starts_with("VmFlags:")) {
      return line.find(" dc") != std::string::npos;
    }
  }
  return false;
}

TEST_F(pinned_memory, a_forked_child_gets_no_copy_and_is_refused) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a forked child that lets go of its parent's threads";
#endif
  host_pinner_options o = options();
  o.keep_ready_bytes = 32 * MiB;
  auto pinner = host_pinner::create(gpu, o);
  (*pinner)->wait_until_ready();
  void* const ready = (*pinner)->allocate(32 * MiB).value();
  void* const pinned = (*pinner)->allocate(8 * MiB).value();
  EXPECT_TRUE(left_out_of_children(ready));
  EXPECT_TRUE(left_out_of_children(pinned));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);  // one that waits for a thread that did not come along dies
    int bad = (*pinner)->allocate(MiB).error().code == error_code::not_permitted ? 0 : 1;
    bad += (*pinner)->free(pinned, 0).error().code == error_code::not_permitted ? 0 : 2;
    pinner->reset();
    ::_exit(bad);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE((*pinner)->free(ready, 0));
  EXPECT_TRUE((*pinner)->free(pinned, 0));
}

TEST_F(pinned_memory, a_refused_registration_leaves_nothing) {
  auto pinner = host_pinner::create(gpu, options());
  fault_plan plan;
  plan.faults.push_back({.call = "cuMemHostRegister", .status = driver_status::operating_system});
  gpu->set_faults(plan);
  const auto refused = (*pinner)->allocate(4 * MiB);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("cuMemHostRegister"));
  EXPECT_EQ((*pinner)->usage().pinned_bytes, 0u);
}

TEST_F(pinned_memory, a_limit_of_locked_memory_is_named_where_it_is_in_the_way) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit low{64 * KiB, before.rlim_max};
  if (before.rlim_max < low.rlim_cur || ::setrlimit(RLIMIT_MEMLOCK, &low) != 0)
    GTEST_SKIP() << "the limit cannot be changed here";
  auto pinner = host_pinner::create(gpu, options());
  fault_plan plan;
  plan.faults.push_back({.call = "cuMemHostRegister", .at = 1, .status = driver_status::unknown});
  gpu->set_faults(plan);
  const auto refused = (*pinner)->allocate(4 * MiB);
  EXPECT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  gpu->set_faults({});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::out_of_memory);
  EXPECT_THAT(refused.error().message, HasSubstr("may lock 64.0 KiB (ulimit -l)"));
  EXPECT_EQ((*pinner)->usage().pinned_bytes, 0u);
}

TEST_F(pinned_memory, the_pool_splits_blocks_and_unpins_nothing_while_it_lives) {
  auto made = make_pinned_pool(gpu, {.pinning = options(), .initial_bytes = 32 * MiB});
  ASSERT_TRUE(made) << made.error().message;
  pool& p = **made;
  EXPECT_EQ(p.kind(), memory_kind::pinned);
  EXPECT_TRUE(p.host_accessible());
  stream_handle stream = nullptr;
  ASSERT_TRUE(gpu->stream_create(&stream).ok());
  gpu->reset_counters();
  // Nine blocks of 3.5 MiB are 31.5 MiB; rounded up to powers of two they would be 36.
  std::vector<void*> blocks;
  for (int i = 0; i < 9; ++i) blocks.push_back(p.allocate(3 * MiB + 512 * KiB, stream));
  EXPECT_EQ(p.statistics().reserved_bytes, 32 * MiB);
  for (void* each : blocks) std::memset(each, 7, 3 * MiB + 512 * KiB);
  for (void* each : blocks) p.deallocate(each, 3 * MiB + 512 * KiB, stream);
  EXPECT_EQ(p.trim(), 0u);
  EXPECT_EQ(gpu->calls("cuMemHostUnregister"), 0u);
  EXPECT_EQ(gpu->device_waits(), 0u);
  p.check();
  made->reset();
  EXPECT_EQ(gpu->leaks().registered_ranges, 0u);
}

TEST_F(pinned_memory, a_block_that_a_copy_reads_is_not_another_streams_until_it_is_done) {
  auto made = make_pinned_pool(gpu, {.pinning = options(), .initial_bytes = 32 * MiB});
  pool& p = **made;
  stream_handle a = nullptr, b = nullptr;
  ASSERT_TRUE(gpu->stream_create(&a).ok() && gpu->stream_create(&b).ok());
  device_address device = 0;
  ASSERT_TRUE(gpu->memory_allocate(&device, 20 * MiB).ok());
  void* const first = p.allocate(20 * MiB, a);
  ASSERT_TRUE(gpu->copy_async(device, reinterpret_cast<device_address>(first), 20 * MiB, a).ok());
  p.deallocate(first, 20 * MiB, a);
  void* const second = p.allocate(20 * MiB, b);
  EXPECT_NE(first, second);
  p.deallocate(second, 20 * MiB, b);
}

TEST_F(pinned_memory, the_pool_refuses_what_passes_its_budget) {
  const auto refused = make_pinned_pool(gpu, {.pinning = options(), .initial_bytes = GiB});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::out_of_memory);
  EXPECT_THAT(refused.error().message, HasSubstr("budget of 256 MiB"));
  auto made = make_pinned_pool(gpu, {.pinning = options()});
  const auto large = (*made)->try_allocate(300 * MiB, default_alignment, nullptr);
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, error_code::out_of_memory);
  EXPECT_THAT(large.error().message, HasSubstr("256 MiB"));
}

TEST_F(pinned_memory, write_combined_pools_come_from_the_driver) {
  auto made =
      make_pinned_pool(gpu, {.pinning = options(), .caching = driver::host_flags::write_combined});
  ASSERT_TRUE(made);
  (*made)->deallocate((*made)->allocate(MiB, nullptr), MiB, nullptr);
  EXPECT_EQ(gpu->calls("cuMemHostAlloc"), 1u);
  made->reset();
  EXPECT_EQ(gpu->leaks().host_allocations, 0u);
}

TEST_F(pinned_memory, write_combined_memory_stays_within_its_limits) {
  pinned_pool_options o{.pinning = options(), .caching = driver::host_flags::write_combined};
  for (const std::uint64_t limit : {0u, 96u, 33u}) {
    o.limit_bytes = limit * MiB;
    const std::uint64_t most = limit == 0 ? 256 * MiB : limit * MiB;
    auto made = make_pinned_pool(gpu, o);
    ASSERT_TRUE(made);
    std::vector<void*> all;
    for (;;) {
      auto got = (*made)->try_allocate(2 * MiB, default_alignment, nullptr);
      if (!got) {
        EXPECT_EQ(got.error().code, error_code::out_of_memory);
        break;
      }
      all.push_back(*got);
      EXPECT_LE(gpu->host_memory_bytes(), most);
    }
    EXPECT_GE(all.size() * 2 * MiB, most / 3) << "and it is made use of";
    for (void* each : all) (*made)->deallocate(each, 2 * MiB, nullptr);
    made->reset();
    EXPECT_EQ(gpu->host_memory_bytes(), 0u);
  }
  o.limit_bytes = 0;
  o.initial_bytes = 256 * MiB;
  const auto refused = make_pinned_pool(gpu, o);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::out_of_memory);
  EXPECT_EQ(gpu->host_memory_bytes(), 0u);
}

TEST_F(pinned_memory, a_pools_end_asks_its_source_twice) {
  for (const auto how : {driver::host_flags::none, driver::host_flags::write_combined}) {
    auto made =
        make_pinned_pool(gpu, {.pinning = options(), .initial_bytes = 32 * MiB, .caching = how});
    ASSERT_TRUE(made) << made.error().message;
    fault_plan plan;
    plan.faults.push_back(
        {.call = how == driver::host_flags::none ? "cuMemHostUnregister" : "cuMemFreeHost",
         .status = driver_status::unknown});
    gpu->set_faults(plan);
    made->reset();
    gpu->set_faults({});
    EXPECT_EQ(gpu->host_memory_bytes(), 0u);
    EXPECT_EQ(gpu->leaks().registered_ranges + gpu->leaks().host_allocations, 0u);
  }
}

TEST_F(pinned_memory, a_control_block_is_seen_by_both_sides) {
  auto made = make_pinned_pool(gpu, {.pinning = options()});
  stream_handle stream = nullptr;
  ASSERT_TRUE(gpu->stream_create(&stream).ok());
  {
    control_block<std::uint64_t> state(**made, stream, 3);
    EXPECT_EQ(state.load(), 3u);
    ASSERT_TRUE(gpu->launch({"answer",
                             0,
                             {{state.address(), 8, access_kind::read_write}},
                             [&] { *reinterpret_cast<std::uint64_t*>(state.address()) += 1; }},
                            stream)
                    .ok());
    ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
    EXPECT_EQ(state.load(), 4u);
    control_block<std::uint64_t> moved = std::move(state);
    moved.store(9);
    EXPECT_EQ(moved.load(), 9u);
  }
  EXPECT_EQ((*made)->statistics().live_blocks, 0u);
  auto device = pool::create(gpu);
  EXPECT_THROW(control_block<int>(**device, stream), memory_error);
}

}  // namespace
}  // namespace millpond
