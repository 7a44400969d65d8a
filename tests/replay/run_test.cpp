// Every strategy on the simulated GPU: right contents, exact counts, determinism, failures that are
// reported.
#include "replay/run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "made_workloads.hpp"
#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "replay/compare.hpp"
#include "support/no_threads.hpp"

namespace millpond::replay {
namespace {

using testing::HasSubstr;

std::shared_ptr<simulated_gpu> make_gpu(std::uint64_t memory_bytes = 0, std::uint64_t seed = 1) {
  simulated_gpu_options options;
  options.memory_bytes = memory_bytes;
  options.seed = seed;
  auto made = simulated_gpu::create(options);
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

outcome run_one(const workload& work, const char* name, const run_options& options = {},
                std::shared_ptr<simulated_gpu> gpu = make_gpu()) {
  const strategy_facts* which = find_strategy(name);
  EXPECT_NE(which, nullptr);
  auto made = run(work, *which, gpu, options);
  EXPECT_TRUE(made) << name << ": " << (made ? "" : made.error().message);
  EXPECT_EQ(gpu->leaks().total(), 0u) << name << " left " << to_string(gpu->leaks());
  return *made;
}

class every_strategy : public ::testing::TestWithParam<strategy_facts> {};
INSTANTIATE_TEST_SUITE_P(replay, every_strategy,
                         ::testing::ValuesIn(all_strategies().begin(), all_strategies().end()),
                         [](const auto& each) {
                           std::string name = each.param.name;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(every_strategy, serves_random_workloads_on_many_streams_with_right_contents) {
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    const workload work = random_workload(seed, static_cast<std::uint16_t>(1 + seed % 4), 500);
    run_options options;
    options.rounds = 2;
    const outcome made = run_one(work, GetParam().name, options);
    EXPECT_EQ(made.violation_count, 0u)
        << "seed " << seed << ": " << (made.violations.empty() ? "" : made.violations[0].text);
    EXPECT_EQ(made.failures, 0u) << made.first_failure;
    EXPECT_EQ(made.allocate.count(), 2 * work.allocations);
    EXPECT_EQ(made.free.count(), 2 * work.frees);
    EXPECT_EQ(made.peak_live_bytes, work.peak_live_bytes);
    EXPECT_GE(made.peak_reserved_bytes, work.peak_live_bytes);
    EXPECT_EQ(made.round_allocator_ns.size(), 2u);
    EXPECT_EQ(made.wrong_words, 0u);
  }
}

TEST_P(every_strategy, gives_the_same_outcome_each_time) {
  const workload work = random_workload(5, 2, 500);
  const outcome a = run_one(work, GetParam().name);
  const outcome b = run_one(work, GetParam().name);
  EXPECT_EQ(a.allocator_ns, b.allocator_ns);
  EXPECT_EQ(a.peak_reserved_bytes, b.peak_reserved_bytes);
  EXPECT_EQ(a.run_ns, b.run_ns);
}

TEST_P(every_strategy, tells_of_requests_that_find_no_memory_and_goes_on) {
  workload_writer to(1);
  const std::uint32_t small = to.allocate(MiB, 0);
  const std::uint32_t huge = to.allocate(std::uint64_t{1} << 40, 0);
  to.free(huge);
  to.free(small);
  const outcome made = run_one(to.finish(), GetParam().name, {}, make_gpu(GiB));
  if (std::string_view(GetParam().name) == "managed") {
    return;  // managed memory may be larger than the device
  }
  EXPECT_GE(made.failures, 1u);
  EXPECT_FALSE(made.first_failure.empty());
  EXPECT_EQ(made.violation_count, 0u);
}

TEST_P(every_strategy, serves_zero_bytes_and_blocks_that_are_never_freed) {
  workload_writer to(1);
  to.free(to.allocate(0, 0));
  to.allocate(1, 0);
  const outcome made = run_one(to.finish(), GetParam().name);
  EXPECT_EQ(made.failures, 0u);
  EXPECT_EQ(made.violation_count, 0u);
  EXPECT_EQ(made.checked_blocks, 1u);
}

TEST(run, plain_frees_wait_for_the_device_and_pools_do_not) {
  const workload work = random_workload(3, 1, 300);
  EXPECT_EQ(run_one(work, "cuda-malloc").device_waits, work.frees);
  for (const char* name : {"driver-pool", "driver-pool-kept", "fixed-arena", "millpond-pool"}) {
    EXPECT_EQ(run_one(work, name).device_waits, 0u) << name;
  }
}

TEST(run, without_touching_no_kernel_runs_and_the_free_is_cheaper) {
  const workload work = random_workload(4, 1, 300);
  run_options options;
  options.contents = contents_mode::no_touch;
  const outcome alone = run_one(work, "cuda-malloc", options);
  const outcome touched = run_one(work, "cuda-malloc");
  EXPECT_EQ(alone.checked_blocks, 0u);
  EXPECT_LT(alone.free.sum_ns(), touched.free.sum_ns());
}

TEST(run, a_pair_from_a_warm_thread_cache_costs_what_the_profile_says) {
  workload_writer to(1);
  for (int i = 0; i < 1000; ++i) to.free(to.allocate(4 * KiB, 0));
  run_options options;
  options.contents = contents_mode::no_touch;
  const outcome made = run_one(to.finish(), "millpond-pool", options);
  const auto& paths = gpu_profile::h200().allocator_path_ns;
  // Above it lie the driver's calls of the first pair alone.
  EXPECT_GE(made.allocate.percentile_ns(0.5) * 1.02, paths.find("thread_cache_hit")->second);
  EXPECT_GE(made.free.percentile_ns(0.5) * 1.02, paths.find("deallocation")->second);
  EXPECT_GE(made.own_ns,
            990 * (paths.find("thread_cache_hit")->second + paths.find("deallocation")->second));
}

TEST(run, recorded_pauses_pass_in_virtual_time) {
  workload work = random_workload(6, 1, 100);
  for (op& each : work.ops) each.gap_ns = 1'000'000;
  run_options options;
  options.pace = pacing::recorded;
  EXPECT_GE(run_one(work, "millpond-pool", options).run_ns,
            1e6 * static_cast<double>(work.ops.size()));
  EXPECT_LT(run_one(work, "millpond-pool").run_ns, 1e6 * static_cast<double>(work.ops.size()));
}

TEST(run, pinned_staging_copies_faster_than_pageable) {
  workload_writer to(1);
  for (int i = 0; i < 10; ++i) {
    const std::uint32_t block = to.allocate(32 * MiB, 0);
    to.copy_in(block);
    to.free(block);
    to.synchronize(0);
  }
  const workload work = to.finish();
  run_options options;
  options.copies = staging::pinned;
  const outcome pinned = run_one(work, "driver-pool-kept", options);
  options.copies = staging::pageable;
  const outcome pageable = run_one(work, "driver-pool-kept", options);
  EXPECT_EQ(pinned.label(), "driver-pool-kept/pinned");
  EXPECT_EQ(pageable.label(), "driver-pool-kept/pageable");
  EXPECT_GT(pageable.run_ns, 3 * pinned.run_ns);
  EXPECT_EQ(pinned.violation_count + pageable.violation_count, 0u);
}

TEST(run, a_lost_device_is_an_error_and_not_an_outcome) {
  const workload work = random_workload(8, 1, 300);
  auto gpu = make_gpu();
  fault_plan plan;
  plan.faults.push_back({"cuMemAlloc", 20, 1, fault::what::lose_device, driver_status::unknown, 0});
  gpu->set_faults(plan);
  const auto made = run(work, *find_strategy("cuda-malloc"), gpu, {});
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("cu"));
}

TEST(compare, all_strategies_come_back_in_order_whatever_the_workers) {
  const workload work = random_workload(9, 2, 300);
  std::vector<std::vector<outcome>> answers;
  std::optional<no_threads> none;
  for (const unsigned workers : {1u, 3u, 4u}) {
    compare_options options;
    options.workers = workers;
    if (workers == 4) none.emplace();  // then this thread does it all
    std::atomic<std::size_t> reported{0};
    options.progress = [&](std::size_t, std::size_t, std::string_view) { ++reported; };
    auto made = compare(work, [] { return result<std::shared_ptr<driver>>(make_gpu()); }, options);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(reported, all_strategies().size());
    answers.push_back(std::move(*made));
  }
  ASSERT_EQ(answers[0].size(), all_strategies().size());
  for (std::size_t i = 0; i < answers[0].size(); ++i) {
    EXPECT_EQ(answers[0][i].strategy, all_strategies()[i].name);
    EXPECT_EQ(answers[0][i].allocator_ns, answers[1][i].allocator_ns);
    EXPECT_EQ(answers[0][i].allocator_ns, answers[2][i].allocator_ns);
  }
}

TEST(compare, a_gpu_that_cannot_be_opened_ends_it) {
  const workload work = random_workload(9, 1, 10);
  const auto made = compare(
      work,
      [] { return result<std::shared_ptr<driver>>(error{error_code::driver_failure, "no card"}); },
      {});
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("no card"));
}

}  // namespace
}  // namespace millpond::replay
