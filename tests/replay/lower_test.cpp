#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "replay/workload.hpp"
#include "trace/event_views.hpp"
#include "trace/synthetic/workload.hpp"

namespace millpond::replay {
namespace {

using testing::HasSubstr;

result<workload> from_csv(const std::string& rows) {
  auto source = trace::open_trace_bytes("made.csv", "action,time_us,addr,size,stream\n" + rows);
  if (!source) return source.error();
  auto loaded = trace::load_trace(std::move(*source));
  if (!loaded) return loaded.error();
  return lower(*loaded);
}

std::size_t count(const workload& of, op_kind what) {
  return static_cast<std::size_t>(
      std::ranges::count_if(of.ops, [&](const op& each) { return each.what == what; }));
}

TEST(lower, addresses_become_blocks_and_reuse_makes_a_new_one) {
  const auto made = from_csv(
      "alloc,0,1000,512,0\nfree_requested,1,1000,512,0\nfree_completed,1,1000,512,0\n"
      "alloc,2,1000,2048,0\n");
  ASSERT_TRUE(made) << made.error().message;
  ASSERT_EQ(made->blocks.size(), 2u);
  EXPECT_EQ(made->blocks[0].bytes, 512u);
  EXPECT_EQ(made->blocks[1].bytes, 2048u);
  ASSERT_EQ(made->ops.size(), 3u);
  EXPECT_EQ(made->ops[2].block, 1u);
  EXPECT_EQ(made->peak_live_bytes, 2048u);
  EXPECT_EQ(made->never_freed, 1u);
  EXPECT_EQ(made->duration_ns, 2000u);
}

TEST(lower, a_double_free_is_bad_input_that_names_the_events) {
  const auto made =
      from_csv("alloc,0,1000,512,0\nfree_requested,1,1000,512,0\nfree_requested,2,1000,512,0\n");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, error_code::bad_input);
  EXPECT_THAT(made.error().message, HasSubstr("1000"));
}

TEST(lower, overlapping_blocks_are_bad_input) {
  const auto made = from_csv("alloc,0,1000,8192,0\nalloc,1,2000,512,0\n");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, error_code::bad_input);
}

TEST(lower, a_recording_without_allocations_is_bad_input) {
  const auto made = from_csv("");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, error_code::bad_input);
}

TEST(lower, long_pauses_become_synchronises_where_the_recording_has_none) {
  std::string rows;
  std::uint64_t time = 0;
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < 50; ++i) {
      rows += "alloc," + std::to_string(time += 10) + ",1000,512,3\n";
      rows += "free_requested," + std::to_string(time += 10) + ",1000,512,3\n";
    }
    time += 20'000;
  }
  const auto made = from_csv(rows);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->inserted_synchronizes, 4u);
  EXPECT_EQ(count(*made, op_kind::synchronize_stream), 4u);
  EXPECT_EQ(made->idle_gap_ns, 1'000'000u);
  EXPECT_THAT(made->notes, testing::Contains(HasSubstr("4 pauses")));
}

TEST(lower, a_block_kept_back_for_other_streams_is_used_on_one) {
  const auto made = from_csv(
      "alloc,0,1000,512,1\nalloc,1,9000,512,2\nfree_requested,2,1000,512,1\nalloc,3,a000,512,2\n"
      "free_completed,4,1000,512,1\nfree_requested,5,9000,512,2\nfree_completed,5,9000,512,2\n");
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->guessed_uses, 1u);
  ASSERT_EQ(count(*made, op_kind::use), 1u);
  const auto use =
      std::ranges::find_if(made->ops, [](const op& each) { return each.what == op_kind::use; });
  EXPECT_EQ(use->block, 0u);
  EXPECT_EQ(made->streams[use->stream], 2u);
}

TEST(lower, the_inference_workload_copies_computes_and_steps) {
  trace::workload_options options;
  options.length = 10;
  const auto data = trace::make_workload("inference", options);
  ASSERT_TRUE(data) << data.error().message;
  const auto made = lower(*data);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->steps, 10u);
  EXPECT_EQ(count(*made, op_kind::copy_in), 10u);
  EXPECT_EQ(count(*made, op_kind::copy_out), 10u);
  EXPECT_EQ(count(*made, op_kind::kernel), 80u);
  EXPECT_EQ(count(*made, op_kind::synchronize_stream), 10u);
  EXPECT_EQ(made->inserted_synchronizes, 0u);
  EXPECT_GT(made->copied_bytes, 0u);
  // The weights are allocated on another stream than the kernels run on: each is used there once.
  EXPECT_EQ(count(*made, op_kind::use), 8u);
}

TEST(lower, a_kernel_runs_on_what_is_known_of_its_blocks_and_a_refused_one_does_not) {
  trace::trace_data data;
  const auto add = [&](trace::action what, std::uint64_t address, std::uint64_t bytes = 0) {
    data.events.push_back({.sequence = data.events.size(),
                           .address = address,
                           .bytes = bytes,
                           .what = what,
                           .of = trace::kind::device});
    return data.events.size() - 1;
  };
  const auto launch = [&](std::int32_t status) {
    trace::event& kernel = data.events[add(trace::action::kernel, 0)];
    set_operands(kernel, trace::kernel_operands{.uses = 2});
    kernel.status = status;
    add(trace::action::use, 0x1000);
    add(trace::action::use, 0x9000);  // no block that the trace knows
  };
  add(trace::action::allocate, 0x1000, 512);
  launch(0);
  launch(1);
  const auto made = lower(data);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(count(*made, op_kind::kernel), 1u);
  EXPECT_EQ(made->ops.back().what, op_kind::kernel);
  EXPECT_EQ(made->ops.back().block, 0u);
}

TEST(lower, every_recorded_trace_keeps_its_allocations_and_peak) {
  struct expected {
    const char* name;
    std::uint64_t allocations, peak;
  };
  // Counted from the files: rows named alloc; the peak is in data/traces/README.md.
  for (const auto& [name, allocations, peak] :
       {expected{"resnet_serving", 9085, 835'412'040},
        expected{"multistream_serving", 7846, 429'302'352}}) {
    const auto data =
        trace::load_trace(std::string(MILLPOND_SOURCE_DIR) + "/data/traces/" + name + ".csv.gz");
    ASSERT_TRUE(data) << data.error().message;
    const auto made = lower(*data);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(made->allocations, allocations);
    EXPECT_EQ(made->peak_live_bytes, peak);
    EXPECT_GT(made->inserted_synchronizes, 50u);
  }
}

}  // namespace
}  // namespace millpond::replay
