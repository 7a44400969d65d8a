// Captures and graphs, and the checker's rules for them.
#include <gtest/gtest.h>

#include <thread>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

class sim_capture : public sim_test {
 protected:
  void SetUp() override {
    simulated_gpu::set_thread(1);
    make();
    s = stream();
    ok(gpu->memory_allocate(&memory, 4 * MiB));
  }
  void TearDown() override {
    simulated_gpu::set_thread(1);
    if (gpu->alive()) ok(gpu->memory_free(memory));
    sim_test::TearDown();
  }
  void write(device_address at, std::uint64_t identity, stream_handle on) {
    const identity_block block{at, 4096, identity};
    ok(gpu->identity_write({&block, 1}, on));
  }
  std::uint64_t mismatches(device_address at, std::uint64_t identity) {
    identity_report report;
    const identity_block block{at, 4096, identity};
    ok(gpu->identity_check({&block, 1}, &report, s));
    ok(gpu->stream_synchronize(s));
    return report.mismatches;
  }
  graph_handle end(stream_handle on) {
    graph_handle graph = nullptr;
    ok(gpu->capture_end(on, &graph));
    return graph;
  }
  void release(graph_handle graph) { ok(gpu->graph_destroy(graph)); }
  stream_handle s = nullptr;
  device_address memory = 0;
};

void count_destroy(void* data) {
  ++*static_cast<int*>(data);
}

TEST_F(sim_capture, captured_work_runs_at_each_launch_and_not_before) {
  write(memory, 1, s);
  ok(gpu->capture_begin(s, capture_mode::global));
  capture_info info;
  ok(gpu->stream_capture(s, &info));
  EXPECT_EQ(info.status, capture_status::active);
  EXPECT_NE(info.id, 0u);
  write(memory, 2, s);
  const graph_handle graph = end(s);
  EXPECT_EQ(graph, info.graph);
  ok(gpu->stream_capture(s, &info));
  EXPECT_EQ(info.status, capture_status::none);
  EXPECT_EQ(mismatches(memory, 1), 0u);
  graph_exec_handle exec = nullptr;
  ok(gpu->graph_instantiate(&exec, graph));
  ok(gpu->graph_launch(exec, s));
  EXPECT_EQ(mismatches(memory, 2), 0u);
  write(memory, 3, s);
  ok(gpu->graph_launch(exec, s));
  EXPECT_EQ(mismatches(memory, 2), 0u);
  ok(gpu->graph_exec_destroy(exec));
  release(graph);
}

TEST_F(sim_capture, streams_join_by_an_event_and_must_come_back) {
  const stream_handle side = stream();
  const event_handle fork = event(), join = event();
  ok(gpu->capture_begin(s, capture_mode::thread_local_));
  ok(gpu->event_record(fork, s));
  ok(gpu->stream_wait_event(side, fork));
  capture_info info;
  ok(gpu->stream_capture(side, &info));
  EXPECT_EQ(info.status, capture_status::active);
  ok(gpu->spin(1'000'000, side));
  ok(gpu->spin(1'000'000, s));
  ok(gpu->event_record(join, side));
  ok(gpu->stream_wait_event(s, join));
  const graph_handle graph = end(s);
  graph_exec_handle exec = nullptr;
  ok(gpu->graph_instantiate(&exec, graph));
  const std::uint64_t before = gpu->now_ns();
  ok(gpu->graph_launch(exec, s));
  ok(gpu->stream_synchronize(s));
  EXPECT_LT(gpu->now_ns() - before, 1'100'000u);  // the two ran side by side
  ok(gpu->graph_exec_destroy(exec));
  release(graph);

  ok(gpu->capture_begin(s, capture_mode::thread_local_));
  ok(gpu->event_record(fork, s));
  ok(gpu->stream_wait_event(side, fork));
  ok(gpu->spin(1, side));
  graph_handle none = nullptr;
  EXPECT_EQ(gpu->capture_end(s, &none).status, driver_status::capture_unjoined);
  EXPECT_EQ(none, nullptr);
  ok(gpu->stream_capture(side, &info));
  EXPECT_EQ(info.status, capture_status::none);
}

TEST_F(sim_capture, a_capture_cannot_wait_for_work_outside_it) {
  const event_handle e = event();
  ok(gpu->spin(1000, s));
  ok(gpu->event_record(e, s));
  const stream_handle c = stream();
  ok(gpu->capture_begin(c, capture_mode::relaxed));
  EXPECT_FALSE(gpu->stream_wait_event(c, e).ok());
  graph_handle none = nullptr;
  EXPECT_EQ(gpu->capture_end(c, &none).status, driver_status::capture_invalidated);
}

TEST_F(sim_capture, it_ends_on_its_own_stream_and_thread) {
  graph_handle none = nullptr;
  EXPECT_EQ(gpu->capture_end(s, &none).status, driver_status::illegal_state);
  EXPECT_EQ(gpu->capture_begin(legacy_stream, capture_mode::global).status,
            driver_status::capture_unsupported);
  ok(gpu->capture_begin(s, capture_mode::thread_local_));
  EXPECT_EQ(gpu->capture_begin(s, capture_mode::global).status, driver_status::illegal_state);
  simulated_gpu::set_thread(2);
  EXPECT_EQ(gpu->capture_end(s, &none).status, driver_status::capture_wrong_thread);
  simulated_gpu::set_thread(1);
  release(end(s));
}

// --- What a capture forbids
// -------------------------------------------------------------------------

TEST_F(sim_capture, an_event_query_inside_a_thread_local_capture_breaks_it) {
  const event_handle e = event();
  ok(gpu->capture_begin(s, capture_mode::thread_local_));
  EXPECT_EQ(gpu->event_query(e).status, driver_status::capture_unsupported);
  expect_only("forbidden_in_capture", "capture 1", "cuEventQuery");
  EXPECT_EQ(gpu->spin(1, s).status, driver_status::capture_invalidated);
  graph_handle none = nullptr;
  EXPECT_EQ(gpu->capture_end(s, &none).status, driver_status::capture_invalidated);
}

TEST_F(sim_capture, creating_physical_memory_is_allowed_in_a_capture) {
  ok(gpu->capture_begin(s, capture_mode::global));
  physical_handle h = 0;
  ok(gpu->physical_create(&h, 2 * MiB, memory_location::device, driver::shareable::no));
  ok(gpu->physical_release(h));
  release(end(s));
}

TEST_F(sim_capture, a_global_capture_forbids_unsafe_calls_to_other_threads) {
  ok(gpu->capture_begin(s, capture_mode::global));
  simulated_gpu::set_thread(2);
  device_address d = 0;
  EXPECT_EQ(gpu->memory_allocate(&d, 4096).status, driver_status::capture_unsupported);
  expect_only("forbidden_in_capture", "capture 1", "cuMemAlloc");
  simulated_gpu::set_thread(1);
  graph_handle none = nullptr;
  EXPECT_EQ(gpu->capture_end(s, &none).status, driver_status::capture_invalidated);
}

TEST_F(sim_capture, a_thread_in_relaxed_mode_may_make_unsafe_calls) {
  ok(gpu->capture_begin(s, capture_mode::global));
  simulated_gpu::set_thread(2);
  capture_mode mode = capture_mode::relaxed;
  ok(gpu->exchange_capture_mode(&mode));
  EXPECT_EQ(mode, capture_mode::global);
  device_address d = 0;
  ok(gpu->memory_allocate(&d, 4096));
  ok(gpu->exchange_capture_mode(&mode));
  EXPECT_EQ(mode, capture_mode::relaxed);
  simulated_gpu::set_thread(1);
  release(end(s));
  ok(gpu->memory_free(d));
}

TEST_F(sim_capture, a_thread_local_capture_forbids_nothing_to_other_threads) {
  ok(gpu->capture_begin(s, capture_mode::thread_local_));
  simulated_gpu::set_thread(2);
  device_address d = 0;
  ok(gpu->memory_allocate(&d, 4096));
  simulated_gpu::set_thread(1);
  release(end(s));
  ok(gpu->memory_free(d));
}

TEST_F(sim_capture, a_context_event_breaks_every_capture_relaxed_or_not) {
  const event_handle e = event();
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  EXPECT_EQ(gpu->context_record_event(e).status, driver_status::capture_unsupported);
  expect_only("forbidden_in_capture", "capture 1", "cuCtxRecordEvent");
  graph_handle none = nullptr;
  EXPECT_EQ(gpu->capture_end(s, &none).status, driver_status::capture_invalidated);
}

TEST_F(sim_capture, asking_a_captured_event_breaks_the_capture) {
  const event_handle e = event();
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  ok(gpu->event_record(e, s));
  EXPECT_EQ(gpu->event_query(e).status, driver_status::captured_event);
  expect_only("forbidden_in_capture", "capture 1", "cuEventQuery");
  graph_handle none = nullptr;
  EXPECT_EQ(gpu->capture_end(s, &none).status, driver_status::capture_invalidated);
  EXPECT_EQ(gpu->event_query(e).status, driver_status::captured_event);
}

TEST_F(sim_capture, a_blocked_legacy_stream_is_reported_apart) {
  ok(gpu->capture_begin(per_thread_stream, capture_mode::relaxed));
  EXPECT_EQ(gpu->spin(1, legacy_stream).status, driver_status::capture_implicit);
  graph_handle none = nullptr;
  EXPECT_EQ(gpu->capture_end(per_thread_stream, &none).status, driver_status::capture_invalidated);
  // A non-blocking stream's capture does not mind.
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  ok(gpu->spin(1, legacy_stream));
  release(end(s));
}

// --- The checker's rules
// ----------------------------------------------------------------------------

TEST_F(sim_capture, the_library_records_nothing_into_the_users_capture) {
  const event_handle e = event();
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  ok(gpu->event_record(e, s));  // the user's own
  EXPECT_EQ(gpu->violation_count(), 0u);
  {
    const simulated_gpu::library_scope library;
    capture_info info;
    ok(gpu->stream_capture(s, &info));  // records nothing
    EXPECT_EQ(gpu->violation_count(), 0u);
    ok(gpu->event_record(e, s));
  }
  expect_only("capture_pollution", "capture 1", "cuEventRecord");
  release(end(s));
}

TEST_F(sim_capture, a_captures_memory_is_its_graphs_until_the_graph_is_gone) {
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  gpu->note_allocate(memory, 4096, s, "in the capture");
  write(memory, 1, s);
  gpu->note_free(memory, 4096, s, "freed in it");
  gpu->note_allocate(memory, 4096, s, "again in it");  // the graph's own order: fine
  write(memory, 2, s);
  gpu->note_free(memory, 4096, s, "freed again");
  const graph_handle graph = end(s);
  graph_exec_handle exec = nullptr;
  ok(gpu->graph_instantiate(&exec, graph));
  ok(gpu->graph_launch(exec, s));
  ok(gpu->context_synchronize());
  EXPECT_EQ(gpu->violation_count(), 0u);
  gpu->note_allocate(memory, 4096, s, "outside");
  expect_only("capture_memory_reused", "again in it", "outside");
  gpu->note_free(memory, 4096, s, "end");
  release(graph);  // the instance still holds it
  gpu->note_allocate(memory + 4096, 4096, s, "elsewhere");
  gpu->note_free(memory + 4096, 4096, s, "elsewhere");
  EXPECT_EQ(gpu->violation_count(), 0u);
  ok(gpu->graph_exec_destroy(exec));
  gpu->note_allocate(memory, 4096, s, "after it");
  gpu->note_free(memory, 4096, s, "end");
  EXPECT_EQ(gpu->violation_count(), 0u);
}

TEST_F(sim_capture, two_captures_share_an_arena_only_when_they_say_so) {
  const stream_handle t = stream();
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  gpu->note_allocate(memory, 4096, s, "first");
  gpu->note_free(memory, 4096, s, "first free");
  const graph_handle one = end(s);
  ok(gpu->context_synchronize());
  ok(gpu->capture_begin(t, capture_mode::relaxed));
  gpu->note_allocate(memory, 4096, t, "second");
  expect_only("capture_memory_reused", "first", "second");
  gpu->note_free(memory, 4096, t, "second free");
  const graph_handle two = end(t);
  release(one);
  release(two);

  ok(gpu->capture_begin(s, capture_mode::relaxed));
  gpu->note_allocate(memory, 4096, s, "third");
  gpu->note_free(memory, 4096, s, "third free");
  const graph_handle three = end(s);
  ok(gpu->context_synchronize());
  ok(gpu->capture_begin(t, capture_mode::relaxed));
  capture_info info;
  ok(gpu->stream_capture(t, &info));
  gpu->note_shared_captures(info.id - 1, info.id);
  gpu->note_allocate(memory, 4096, t, "fourth");
  gpu->note_free(memory, 4096, t, "fourth free");
  const graph_handle four = end(t);
  EXPECT_EQ(gpu->violation_count(), 0u);
  release(three);
  release(four);
}

TEST_F(sim_capture, an_aborted_captures_blocks_are_nobodys) {
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  gpu->note_allocate(memory, 4096, s, "in the capture");
  const event_handle e = event();
  EXPECT_FALSE(gpu->context_record_event(e).ok());
  gpu->clear_violations();
  graph_handle none = nullptr;
  EXPECT_EQ(gpu->capture_end(s, &none).status, driver_status::capture_invalidated);
  gpu->note_allocate(memory, 4096, s, "after it");
  gpu->note_free(memory, 4096, s, "end");
  EXPECT_EQ(gpu->violation_count(), 0u);
}

TEST_F(sim_capture, memory_freed_before_the_capture_needs_a_fence_to_be_used_in_it) {
  gpu->note_allocate(memory, 4096, s, "one");
  write(memory, 1, s);
  gpu->note_free(memory, 4096, s, "two");
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  // On the very same stream: but the graph may be launched on any.
  gpu->note_allocate(memory, 4096, s, "three");
  expect_only("reuse_before_order", "two", "three");
  gpu->note_free(memory, 4096, s, "four");
  release(end(s));
}

// --- What graphs retain
// -----------------------------------------------------------------------------

TEST_F(sim_capture, retained_objects_end_with_the_last_of_graph_and_instances) {
  int destroyed = 0;
  ok(gpu->capture_begin(s, capture_mode::global));
  capture_info info;
  ok(gpu->stream_capture(s, &info));
  ok(gpu->graph_retain(info.graph, count_destroy, &destroyed));
  ok(gpu->spin(1'000'000, s));
  const graph_handle graph = end(s);
  graph_exec_handle exec = nullptr;
  ok(gpu->graph_instantiate(&exec, graph));
  release(graph);
  EXPECT_EQ(destroyed, 0);
  ok(gpu->graph_launch(exec, s));
  ok(gpu->graph_exec_destroy(exec));
  EXPECT_EQ(destroyed, 0);  // it still runs
  ok(gpu->stream_synchronize(s));
  EXPECT_EQ(destroyed, 1);
}

TEST_F(sim_capture, an_aborted_captures_objects_end_with_it) {
  int destroyed = 0;
  ok(gpu->capture_begin(s, capture_mode::relaxed));
  capture_info info;
  ok(gpu->stream_capture(s, &info));
  ok(gpu->graph_retain(info.graph, count_destroy, &destroyed));
  EXPECT_EQ(gpu->stream_synchronize(s).status, driver_status::capture_unsupported);
  gpu->clear_violations();
  graph_handle none = nullptr;
  EXPECT_EQ(gpu->capture_end(s, &none).status, driver_status::capture_invalidated);
  EXPECT_EQ(destroyed, 1);
  // A stream that is destroyed takes its capture with it.
  const stream_handle t = stream();
  ok(gpu->capture_begin(t, capture_mode::relaxed));
  ok(gpu->stream_capture(t, &info));
  ok(gpu->graph_retain(info.graph, count_destroy, &destroyed));
  forget(t);
  ok(gpu->stream_destroy(t));
  EXPECT_EQ(destroyed, 2);
  EXPECT_EQ(gpu->leaks().captures, 0u);
}

TEST_F(sim_capture, pool_memory_of_a_capture_goes_back_with_the_graph) {
  pool_handle pool = nullptr;
  ok(gpu->pool_create(&pool, memory_location::device, 0));
  ok(gpu->capture_begin(s, capture_mode::global));
  device_address block = 0;
  ok(gpu->pool_allocate(&block, 4096, pool, s));
  write(block, 1, s);
  ok(gpu->pool_free(block, s));
  const graph_handle graph = end(s);
  EXPECT_EQ(gpu->leaks().pool_blocks, 1u);
  release(graph);
  EXPECT_EQ(gpu->leaks().pool_blocks, 0u);
  ok(gpu->pool_destroy(pool));
}

TEST_F(sim_capture, a_graph_launched_into_a_capture_is_a_part_of_it) {
  ok(gpu->capture_begin(s, capture_mode::global));
  write(memory, 5, s);
  const graph_handle inner = end(s);
  graph_exec_handle inner_exec = nullptr, outer_exec = nullptr;
  ok(gpu->graph_instantiate(&inner_exec, inner));
  ok(gpu->capture_begin(s, capture_mode::global));
  ok(gpu->graph_launch(inner_exec, s));
  const graph_handle outer = end(s);
  ok(gpu->graph_exec_destroy(inner_exec));
  release(inner);
  ok(gpu->graph_instantiate(&outer_exec, outer));
  ok(gpu->graph_launch(outer_exec, s));
  EXPECT_EQ(mismatches(memory, 5), 0u);
  ok(gpu->graph_exec_destroy(outer_exec));
  release(outer);
}

}  // namespace
}  // namespace millpond
