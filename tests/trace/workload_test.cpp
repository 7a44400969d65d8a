#include "trace/synthetic/workload.hpp"

#include <gtest/gtest.h>

#include <set>

#include "trace/lifetimes.hpp"

namespace millpond::trace {
namespace {

lifetimes lived(const trace_data& trace) {
  auto found = find_lifetimes(trace);
  EXPECT_TRUE(found) << found.error().message;
  return found ? std::move(*found) : lifetimes{};
}

TEST(workload, each_is_a_valid_trace_that_frees_everything_and_is_the_same_from_its_seed) {
  for (const std::string_view name : workload_names()) {
    SCOPED_TRACE(name);
    auto first = make_workload(name, {.seed = 7});
    auto again = make_workload(name, {.seed = 7});
    auto other = make_workload(name, {.seed = 8});
    ASSERT_TRUE(first && again && other);
    EXPECT_EQ(first->events, again->events);
    EXPECT_NE(first->events, other->events);
    const lifetimes found = lived(*first);
    EXPECT_GT(found.blocks.size(), 100u);
    EXPECT_EQ(found.end_live_blocks, 0u);
    EXPECT_EQ(found.unknown_uses, 0u);
    for (std::size_t i = 1; i < first->events.size(); ++i) {
      ASSERT_EQ(first->events[i].sequence, i);
      ASSERT_GE(first->events[i].time_ns, first->events[i - 1].time_ns);
    }
  }
}

TEST(workload, inference_is_the_scenario_that_was_measured) {
  auto trace = make_inference({.requests = 200});
  ASSERT_TRUE(trace);
  std::set<std::uint64_t> batches;
  std::uint64_t copies = 0, waits = 0, requests = 0;
  for (const event& each : trace->events) {
    if (each.what == action::mark) {
      EXPECT_EQ(trace->info.strings.at(static_cast<std::uint32_t>(each.object)), "request");
      batches.insert(each.other);
      ++requests;
    }
    if (each.what == action::copy) {
      ++copies;
      EXPECT_EQ(each.of, kind::pinned);
      EXPECT_EQ(each.bytes % (256 * KiB), 0u);
    }
    if (each.what == action::stream_synchronize) ++waits;
  }
  EXPECT_EQ(requests, 200u);
  EXPECT_EQ(copies, 400u);
  EXPECT_EQ(waits, 200u);
  EXPECT_EQ(*batches.begin(), 1u);
  EXPECT_EQ(*batches.rbegin(), 32u);
  const lifetimes found = lived(*trace);
  // 8 weights, 2 staging buffers, and an input and 8 layers a request.
  EXPECT_EQ(found.blocks.size(), 8 + 2 + 200 * 9u);
  EXPECT_EQ(found.peak_live_by_kind[static_cast<int>(kind::device)],
            8 * 4 * MiB + 9 * 32 * 256 * KiB);
  EXPECT_EQ(found.peak_live_by_kind[static_cast<int>(kind::pinned)], 2 * 32 * 256 * KiB);
}

TEST(workload, inference_takes_pageable_staging_and_streams) {
  auto trace = make_inference({.requests = 30, .streams = 3, .host = staging::pageable});
  ASSERT_TRUE(trace);
  std::set<std::uint64_t> streams;
  for (const event& each : trace->events) {
    if (each.what == action::copy) {
      EXPECT_EQ(each.of, kind::pageable);
      streams.insert(each.stream);
    }
  }
  EXPECT_EQ(streams, (std::set<std::uint64_t>{1, 2, 3}));
}

TEST(workload, churn_keeps_to_its_limits) {
  auto trace = make_churn({.operations = 20'000});
  ASSERT_TRUE(trace);
  const lifetimes found = lived(*trace);
  EXPECT_LE(found.peak_live_bytes, 3 * GiB);
  std::uint64_t smallest = UINT64_MAX;
  for (const block& each : found.blocks) smallest = std::min(smallest, each.bytes);
  EXPECT_GE(smallest, 256u);
  EXPECT_LT(smallest, 300u);
  EXPECT_LE(found.largest_bytes, 64 * MiB);
  EXPECT_GT(found.largest_bytes, 60 * MiB);
}

TEST(workload, training_steps_vary_in_length_and_hold_activations_until_the_backward_pass) {
  auto trace = make_training({.steps = 10});
  ASSERT_TRUE(trace);
  std::set<std::uint64_t> lengths;
  for (const event& each : trace->events) {
    if (each.what == action::mark) lengths.insert(each.other);
  }
  EXPECT_GT(lengths.size(), 3u);
  const lifetimes found = lived(*trace);
  EXPECT_GT(found.peak_live_bytes, 1 * GiB);
  EXPECT_LT(found.peak_live_bytes, 8 * GiB);
}

TEST(workload, impossible_options_are_refused_with_the_reason) {
  EXPECT_EQ(make_workload("infrence").error().code, error_code::invalid_argument);
  EXPECT_NE(make_workload("infrence").error().message.find("inference, churn and training"),
            std::string::npos);
  EXPECT_FALSE(make_inference({.requests = 0}));
  EXPECT_FALSE(make_inference({.smallest_batch = 9, .largest_batch = 8}));
  EXPECT_FALSE(make_inference({.item_bytes = UINT64_MAX}));
  EXPECT_FALSE(make_churn({.smallest_bytes = 10, .largest_bytes = 9}));
  EXPECT_FALSE(make_churn({.largest_bytes = 4 * GiB}));
  EXPECT_FALSE(make_training({.shortest = 0}));
  EXPECT_FALSE(make_training({.heads = 0}));
  EXPECT_FALSE(make_workload("training", {.streams = 2}));
}

}  // namespace
}  // namespace millpond::trace
