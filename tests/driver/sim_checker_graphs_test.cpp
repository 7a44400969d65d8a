// The checker on memory that graphs and other work share: what is queued outside a graph, frees
// within a capture, and what is left when a graph is gone. Beside each bug, the legal program that
// is nearest to it.
#include <gtest/gtest.h>

#include "driver/sim_checker_fixture.hpp"

namespace millpond {
namespace {

class sim_checker_graphs : public sim_checker {
 protected:
  void begin(stream_handle s) { ok(gpu->capture_begin(s, capture_mode::relaxed)); }
  std::uint64_t capture_of(stream_handle s) {
    capture_info info;
    ok(gpu->stream_capture(s, &info));
    return info.id;
  }
  graph_handle end(stream_handle s) {
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    return graph;
  }
  graph_exec_handle end_and_make(stream_handle s) {
    const graph_handle graph = end(s);
    graph_exec_handle made = nullptr;
    ok(gpu->graph_instantiate(&made, graph));
    ok(gpu->graph_destroy(graph));
    return made;
  }
  void end_and_drop(stream_handle s) { ok(gpu->graph_destroy(end(s))); }
  void launch(graph_exec_handle exec, stream_handle s) { ok(gpu->graph_launch(exec, s)); }
  // The graph is gone when the device is done with it, and the program knows that.
  void drop(graph_exec_handle exec) {
    ok(gpu->context_synchronize());
    ok(gpu->graph_exec_destroy(exec));
  }
  void order(stream_handle before, stream_handle after) {
    const event_handle e = event();
    ok(gpu->event_record(e, before));
    ok(gpu->stream_wait_event(after, e));
  }
};

// --- Work that was queued outside a graph before the graph got the block
// -----------------------------

TEST_F(sim_checker_graphs, work_queued_before_a_free_in_a_capture_is_not_over_with_the_graph) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  begin(a);
  free(at, 4096, a, "two");
  end_and_drop(a);
  allocate(at, 4096, b, "three");
  expect_only("reuse_before_order", "two", "three");
  free(at, 4096, b, "four");
}

TEST_F(sim_checker_graphs, a_fence_behind_that_work_lets_the_block_go_when_the_graph_is_gone) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  begin(a);
  free(at, 4096, a, "two");
  end_and_drop(a);
  order(a, b);
  allocate(at, 4096, b, "three");
  free(at, 4096, b, "four");
  clean();
}

TEST_F(sim_checker_graphs, a_recorded_use_before_a_free_in_a_capture_is_not_over_with_the_graph) {
  allocate(at, 4096, a, "one");
  gpu->note_use(at, b, "used on b");
  write(at, 4096, b);
  begin(a);
  free(at, 4096, a, "two");
  end_and_drop(a);
  allocate(at, 4096, a, "three");
  expect_only("reuse_before_order", "used on b", "three");
  free(at, 4096, a, "four");
}

TEST_F(sim_checker_graphs, a_use_recorded_in_a_capture_is_of_what_was_queued_before_it_too) {
  allocate(at, 4096, a, "one");
  write(at, 4096, b);
  begin(b);
  gpu->note_use(at, b, "used on b");
  end_and_drop(b);
  free(at, 4096, a, "two");
  allocate(at, 4096, a, "three");
  expect_only("reuse_before_order", "used on b", "three");
  free(at, 4096, a, "four");
}

TEST_F(sim_checker_graphs, the_same_block_again_in_that_capture_is_before_that_work_is_over) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  begin(a);
  free(at, 4096, a, "two");
  allocate(at, 4096, a, "three");  // the graph may be launched on any stream
  expect_only("reuse_before_order", "two", "three");
  free(at, 4096, a, "four");
  end_and_drop(a);
}

TEST_F(sim_checker_graphs, what_a_capture_had_and_freed_is_in_no_order_with_its_stream_outside) {
  ok(gpu->spin(1'000'000, a));
  begin(a);
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  end_and_drop(a);
  allocate(at, 4096, b, "three");  // what a runs has nothing to do with the block
  free(at, 4096, b, "four");
  clean();
}

// --- Work on a block after its free, within one capture
// ----------------------------------------------

TEST_F(sim_checker_graphs, work_after_the_free_is_found_when_it_is_captured_and_at_each_launch) {
  begin(a);
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  clean();
  write(at, 4096, a);
  expect_only("access_after_free", "two", "identity write");
  const graph_exec_handle exec = end_and_make(a);
  for (const stream_handle s : {a, b}) {
    launch(exec, s);
    expect_only("access_after_free", "two", "identity write");
  }
  drop(exec);
}

TEST_F(sim_checker_graphs, work_before_the_free_is_the_graphs_at_each_launch) {
  begin(a);
  allocate(at, 8192, a, "one");
  write(at, 8192, a);
  read(at, 8192, a);
  free(at, 8192, a, "two");
  allocate(at + 4096, 8192, a, "three");  // memory of the first block
  write(at + 4096, 8192, a);
  read(at + 4096, 8192, a);
  free(at + 4096, 8192, a, "four");
  const graph_exec_handle exec = end_and_make(a);
  for (const stream_handle s : {a, b, a}) launch(exec, s);
  drop(exec);
  clean();
}

TEST_F(sim_checker_graphs, a_stream_of_the_capture_that_comes_back_after_the_free) {
  begin(a);
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  order(a, b);  // b is in the capture too
  read(at, 4096, b);
  order(b, a);
  free(at, 4096, a, "two");
  clean();
  read(at, 4096, b);
  expect_only("access_after_free", "two", "identity check");
  order(b, a);
  const graph_exec_handle exec = end_and_make(a);
  launch(exec, a);
  expect_only("access_after_free", "two", "identity check");
  drop(exec);
}

TEST_F(sim_checker_graphs, graphs_that_share_memory_are_launched_in_turn) {
  std::vector<graph_exec_handle> graphs;
  std::uint64_t before = 0;
  for (const stream_handle s : {a, b}) {
    begin(s);
    const std::uint64_t id = capture_of(s);
    gpu->note_shared_captures(before == 0 ? id : before, id);
    before = id;
    allocate(at, 4096, s, "between");
    write(at, 4096, s);
    free(at, 4096, s, "freed");
    // The first one's result lies where the second one's work is, as a shared arena allows.
    const device_address result = s == a ? at + 8192 : at + 4096;
    allocate(result, 4096, s, "result");
    write(result, 4096, s);
    graphs.push_back(end_and_make(s));
    ok(gpu->context_synchronize());
  }
  for (int i = 0; i < 2; ++i) {
    launch(graphs[0], a);
    order(a, b);
    launch(graphs[1], b);
    order(b, a);
  }
  clean();
  for (const graph_exec_handle each : graphs) drop(each);
  // The arena may be held: its results are the program's until it says otherwise.
  read(at + 8192, 4096, a);
  read(at + 4096, 4096, a);
  free(at + 8192, 4096, a, "result freed");
  free(at + 4096, 4096, a, "result freed");
  clean();
}

TEST_F(sim_checker_graphs, a_child_graph_has_its_own_frees_and_those_of_its_parent) {
  allocate(at + MiB, 4096, a, "input");
  write(at + MiB, 4096, a);
  begin(a);
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  read(at + MiB, 4096, a);
  free(at, 4096, a, "two");
  const graph_exec_handle inner = end_and_make(a);
  begin(a);
  launch(inner, a);
  free(at + MiB, 4096, a, "input freed");  // after its last work
  const graph_exec_handle outer = end_and_make(a);
  launch(outer, a);
  launch(outer, b);
  clean();
  begin(b);
  launch(inner, b);
  expect_only("access_after_free", "input freed", "identity check");
  const graph_exec_handle late = end_and_make(b);
  launch(late, b);
  expect_only("access_after_free", "input freed", "identity check");
  for (const graph_exec_handle each : {inner, outer, late}) drop(each);
}

TEST_F(sim_checker_graphs, a_graph_whose_input_was_freed_and_handed_out_again) {
  allocate(at, 4096, a, "input");
  write(at, 4096, a);
  begin(a);
  read(at, 4096, a);
  const graph_exec_handle exec = end_and_make(a);
  launch(exec, a);
  clean();
  free(at, 4096, a, "input freed");
  launch(exec, a);
  expect_only("access_after_free", "input freed", "identity check");
  allocate(at, 4096, a, "another");  // at the very same address
  write(at, 4096, a);
  clean();
  launch(exec, a);
  expect_only("access_after_free", "input freed", "identity check");
  drop(exec);
  free(at, 4096, a, "end");
}

TEST_F(sim_checker_graphs, a_block_of_one_capture_that_another_uses_and_frees) {
  begin(a);
  allocate(at, 4096, a, "result");
  write(at, 4096, a);
  const graph_exec_handle maker = end_and_make(a);
  begin(b);
  read(at, 4096, b);
  free(at, 4096, b, "freed by the reader");
  const graph_exec_handle reader = end_and_make(b);
  launch(maker, a);
  order(a, b);
  launch(reader, b);
  clean();
  allocate(at, 4096, a, "too early");
  expect_only("capture_memory_reused", "result", "too early");
  free(at, 4096, a, "end");
  drop(maker);  // and what it allocated
  allocate(at, 4096, a, "later");
  write(at, 4096, a);
  clean();
  launch(reader, b);
  expect_only("access_after_free", "freed by the reader", "identity check");
  drop(reader);
  free(at, 4096, a, "end");
}

// The host has seen all that ran; the node has not run yet.
TEST_F(sim_checker_graphs, a_synchronise_says_nothing_of_a_graph_that_is_still_to_be_launched) {
  begin(a);
  const std::uint64_t id = capture_of(a);
  gpu->note_shared_captures(id, id);
  allocate(at, 4096, a, "result");
  const graph_exec_handle maker = end_and_make(a);
  begin(b);  // of no arena
  write(at, 4096, b);
  free(at, 4096, b, "freed by the other");
  const graph_exec_handle other = end_and_make(b);
  ok(gpu->context_synchronize());
  begin(a);
  gpu->note_shared_captures(id, capture_of(a));
  allocate(at, 4096, a, "again in the arena");
  expect_only("reuse_before_order", "freed by the other", "again in the arena");
  free(at, 4096, a, "end");
  end_and_drop(a);
  for (const graph_exec_handle each : {maker, other}) drop(each);
}

// --- What a graph had and never freed
// ----------------------------------------------------------------

TEST_F(sim_checker_graphs, a_result_is_the_programs_until_the_graph_is_gone) {
  begin(a);
  allocate(at, 4096, a, "result");
  write(at, 4096, a);
  const graph_exec_handle exec = end_and_make(a);
  launch(exec, a);
  read(at, 4096, a);
  clean();
  drop(exec);
  read(at, 4096, a);
  expect_only("access_after_free", "result", "identity check");
}

TEST_F(sim_checker_graphs, a_result_of_a_graph_that_was_destroyed_and_still_runs) {
  begin(a);
  allocate(at, 4096, a, "result");
  ok(gpu->spin(1'000'000, a));
  write(at, 4096, a);
  const graph_exec_handle exec = end_and_make(a);
  launch(exec, a);
  ok(gpu->graph_exec_destroy(exec));
  read(at, 4096, a);
  clean();
  ok(gpu->stream_synchronize(a));
  read(at, 4096, a);
  expect_only("access_after_free", "result", "identity check");
}

TEST_F(sim_checker_graphs, what_a_broken_capture_had) {
  begin(a);
  allocate(at, 4096, a, "in the capture");
  EXPECT_FALSE(gpu->stream_query(a).ok());
  gpu->clear_violations();
  graph_handle none = nullptr;
  EXPECT_FALSE(gpu->capture_end(a, &none).ok());
  write(at, 4096, a);
  expect_only("access_after_free", "in the capture", "identity write");
}

TEST_F(sim_checker_graphs, another_graph_may_use_a_result_while_its_graph_lives) {
  begin(a);
  allocate(at, 4096, a, "result");
  write(at, 4096, a);
  const graph_exec_handle maker = end_and_make(a);
  begin(b);
  read(at, 4096, b);
  const graph_exec_handle reader = end_and_make(b);
  launch(maker, a);
  order(a, b);
  launch(reader, b);
  clean();
  drop(maker);
  launch(reader, b);
  expect_only("access_after_free", "result", "identity check");
  drop(reader);
}

TEST_F(sim_checker_graphs, a_result_of_an_arena_ends_with_its_last_holder_and_its_last_graph) {
  begin(a);
  const std::uint64_t first = capture_of(a);
  gpu->note_shared_captures(first, first);
  allocate(at, 4096, a, "result");
  write(at, 4096, a);
  const graph_exec_handle one = end_and_make(a);
  begin(b);
  gpu->note_shared_captures(first, capture_of(b));
  const graph_exec_handle other = end_and_make(b);
  launch(one, a);
  drop(one);
  read(at, 4096, a);  // both are there
  gpu->note_arena_let_go(first);
  read(at, 4096, a);  // the other graph is
  clean();
  drop(other);
  read(at, 4096, a);
  expect_only("access_after_free", "result", "identity check");
}

TEST_F(sim_checker_graphs, a_result_that_is_still_read_is_handed_out_when_its_graph_is_gone) {
  begin(a);
  allocate(at, 4096, a, "result");
  write(at, 4096, a);
  const graph_exec_handle exec = end_and_make(a);
  launch(exec, a);
  ok(gpu->stream_synchronize(a));
  ok(gpu->spin(1'000'000, a));
  read(at, 4096, a);
  ok(gpu->graph_exec_destroy(exec));
  allocate(at, 4096, b, "another");
  expect_only("reuse_before_order", "result", "another");
  free(at, 4096, b, "end");
}

TEST_F(sim_checker_graphs, a_result_that_was_read_is_handed_out_behind_a_fence) {
  begin(a);
  allocate(at, 4096, a, "result");
  write(at, 4096, a);
  const graph_exec_handle exec = end_and_make(a);
  launch(exec, a);
  read(at, 4096, a);
  ok(gpu->graph_exec_destroy(exec));
  ok(gpu->context_synchronize());
  allocate(at, 4096, b, "another");
  free(at, 4096, b, "end");
  clean();
}

// --- Races
// -------------------------------------------------------------------------------------------

class sim_checker_graph_races : public sim_checker_graphs {
 protected:
  void SetUp() override {
    simulated_gpu_options options;
    options.race_check = simulated_gpu_options::races::reported;
    start(options);
  }
  graph_exec_handle writer(stream_handle s) {
    begin(s);
    write(at, 4096, s);
    return end_and_make(s);
  }
};

TEST_F(sim_checker_graph_races, nodes_race_when_they_run_and_not_when_they_are_captured) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  const graph_exec_handle one = writer(b), two = writer(a);
  order(a, b);
  launch(one, b);
  order(b, a);
  launch(two, a);
  clean();
  launch(one, b);
  expect_only("unordered_access", "one", "identity write");
  drop(one);
  drop(two);
  free(at, 4096, a, "two");
}

TEST_F(sim_checker_graph_races, two_streams_of_one_capture_race_in_it) {
  allocate(at, 4096, a, "one");
  const event_handle fork = event(), join = event();
  begin(a);
  ok(gpu->event_record(fork, a));
  ok(gpu->stream_wait_event(b, fork));
  write(at, 4096, a);
  write(at, 4096, b);
  expect_only("unordered_access", "one", "identity write");
  ok(gpu->event_record(join, b));
  ok(gpu->stream_wait_event(a, join));
  end_and_drop(a);
  free(at, 4096, a, "two");
}

TEST_F(sim_checker_graph_races, a_graphs_result_is_used_behind_its_launch) {
  begin(a);
  allocate(at, 4096, a, "result");
  write(at, 4096, a);
  const graph_exec_handle exec = end_and_make(a);
  launch(exec, a);
  read(at, 4096, a);
  clean();
  read(at, 4096, b);
  expect_only("unordered_access", "result", "identity check");
  drop(exec);
}

}  // namespace
}  // namespace millpond
