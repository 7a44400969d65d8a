// What a capture allocates is its graph's, and nobody's slow path breaks anybody's capture.
#include <thread>

#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

class pool_capture : public pool_test {
 protected:
  void begin(stream_handle s, capture_mode mode = capture_mode::global) {
    ok(gpu->capture_begin(s, mode));
  }
  graph_exec_handle finish(stream_handle s) {
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    graph_exec_handle exec = nullptr;
    ok(gpu->graph_instantiate(&exec, graph));
    ok(gpu->graph_destroy(graph));
    return exec;
  }
};

TEST_F(pool_capture,
       what_a_capture_allocated_and_freed_is_never_given_to_others_while_the_graph_lives) {
  start();
  const stream_handle a = stream(), b = stream();
  give(take(10 * MiB, b), b);
  begin(a);
  void* const inside = take(10 * MiB, a);
  ASSERT_NE(inside, nullptr) << refusal.message;
  work(inside, a, 5 * millisecond);
  give(inside, a);
  const graph_exec_handle exec = finish(a);
  EXPECT_GE(now().capture_bytes, 10 * MiB);
  EXPECT_EQ(now().captures, 1u);
  std::vector<void*> others;
  for (int i = 0; i < 40; ++i) {
    others.push_back(take(10 * MiB, i % 2 == 0 ? a : b));
    EXPECT_NE(others.back(), inside);
  }
  for (int launch = 0; launch < 5; ++launch) {
    ok(gpu->graph_launch(exec, launch % 2 == 0 ? a : b));
    gpu->advance(2 * millisecond);
  }
  for (void* x : others) give(x, a);
  trim();
  EXPECT_GE(now().reserved_bytes, 10 * MiB) << "the graph's";
  ok(gpu->graph_exec_destroy(exec));
  gpu->advance(100 * millisecond);
  trim();
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
  EXPECT_EQ(now().captures, 0u);
  EXPECT_EQ(now().live_blocks, 0u);
}

TEST_F(pool_capture, a_block_freed_in_the_capture_serves_the_same_capture_again) {
  start();
  const stream_handle a = stream();
  begin(a);
  void* const first = take(8 * MiB, a);
  work(first, a, 1 * millisecond);
  give(first, a);
  void* const second = take(8 * MiB, a);
  EXPECT_EQ(first, second);
  work(second, a, 1 * millisecond);
  give(second, a);
  const graph_exec_handle exec = finish(a);
  ok(gpu->graph_launch(exec, a));
  ok(gpu->graph_exec_destroy(exec));
}

TEST_F(pool_capture, two_streams_of_one_capture_do_not_share_unordered_frees) {
  start();
  const stream_handle a = stream(), b = stream();
  const event_handle fork = event(), join = event();
  begin(a);
  ok(gpu->event_record(fork, a));
  ok(gpu->stream_wait_event(b, fork));
  void* const on_a = take(8 * MiB, a);
  work(on_a, a, 5 * millisecond);
  give(on_a, a);
  void* const on_b = take(8 * MiB, b);
  EXPECT_NE(on_a, on_b);
  work(on_b, b, 5 * millisecond);
  give(on_b, b);
  ok(gpu->event_record(join, b));
  ok(gpu->stream_wait_event(a, join));
  const graph_exec_handle exec = finish(a);
  ok(gpu->graph_launch(exec, a));
  ok(gpu->graph_exec_destroy(exec));
}

TEST_F(pool_capture, memory_pending_on_another_stream_is_not_given_to_a_capture) {
  start();
  const stream_handle a = stream(), b = stream();
  give(take(512, a), a);
  void* const busy = take(32 * MiB, b);
  work(busy, b, 500 * millisecond);
  give(busy, b);
  begin(a);
  void* const inside = take(32 * MiB, a);
  EXPECT_NE(inside, busy);
  work(inside, a, 1 * millisecond);
  give(inside, a);
  const graph_exec_handle exec = finish(a);
  ok(gpu->graph_launch(exec, a));
  ok(gpu->graph_exec_destroy(exec));
}

// The stream's own pending frees too: the graph may be launched on any stream, at any time.
TEST_F(pool_capture, memory_pending_on_the_capturing_stream_itself_is_not_given_to_its_capture) {
  start();
  const stream_handle a = stream(), b = stream();
  give(take(512, b), b);
  void* const busy = take(32 * MiB, a);
  work(busy, a, 500 * millisecond);
  give(busy, a);
  begin(a);
  void* const inside = take(32 * MiB, a);
  EXPECT_NE(inside, busy);
  work(inside, a, 1 * millisecond);
  const graph_exec_handle exec = finish(a);
  ok(gpu->graph_launch(exec, b));
  give(inside, a);
  ok(gpu->graph_exec_destroy(exec));
}

TEST_F(pool_capture, what_a_program_never_freed_comes_back_with_the_graph) {
  start();
  const stream_handle a = stream();
  begin(a);
  void* const inside = take(32 * MiB, a);
  work(inside, a, 20 * millisecond);
  const graph_exec_handle exec = finish(a);
  EXPECT_EQ(now().live_blocks, 1u);
  ok(gpu->graph_launch(exec, a));
  ok(gpu->graph_exec_destroy(exec));  // the launch still runs
  gpu->note_free(reinterpret_cast<device_address>(inside), 32 * MiB, a, "graph destroyed");
  trim();
  EXPECT_GE(now().reserved_bytes, 32 * MiB) << "its kernel still writes there";
  gpu->advance(100 * millisecond);
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
  EXPECT_EQ(now().live_blocks, 0u);
}

TEST_F(pool_capture, an_aborted_capture_gives_everything_back) {
  start();
  const stream_handle a = stream();
  begin(a);
  void* const kept = take(32 * MiB, a);
  void* const freed = take(16 * MiB, a);
  give(freed, a);
  EXPECT_FALSE(gpu->stream_query(a).ok());  // breaks the capture
  EXPECT_EQ(take(1 * MiB, a), nullptr) << "a broken capture gets no memory";
  EXPECT_EQ(refusal.code, error_code::not_permitted) << refusal.message;
  graph_handle graph = nullptr;
  EXPECT_FALSE(gpu->capture_end(a, &graph).ok());
  ASSERT_TRUE(broken("forbidden_in_capture"));
  gpu->clear_violations();
  gpu->note_free(reinterpret_cast<device_address>(kept), 32 * MiB, a, "capture aborted");
  trim();
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
  EXPECT_EQ(now().captures, 0u);
  EXPECT_EQ(now().live_blocks, 0u);
}

TEST_F(pool_capture, a_capture_whose_stream_is_destroyed_gives_everything_back) {
  start();
  stream_handle a = nullptr;
  ok(gpu->stream_create(&a));
  begin(a);
  void* const kept = take(32 * MiB, a);
  gpu->note_free(reinterpret_cast<device_address>(kept), 32 * MiB, a, "stream destroyed");
  ok(gpu->stream_destroy(a));
  trim();
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
  EXPECT_EQ(now().captures, 0u);
}

TEST_F(pool_capture, a_hundred_captures_leave_nothing) {
  start();
  const stream_handle a = stream();
  std::uint64_t most = 0;
  for (int i = 0; i < 100; ++i) {
    begin(a, i % 2 == 0 ? capture_mode::global : capture_mode::relaxed);
    void* const x = take(8 * MiB, a);
    void* const y = take(4 * MiB, a);
    work(x, a, 10 * microsecond);
    give(x, a);
    const graph_exec_handle exec = finish(a);
    ok(gpu->graph_launch(exec, a));
    give(y, a);
    ok(gpu->graph_exec_destroy(exec));
    gpu->advance(1 * millisecond);
    most = std::max(most, now().reserved_bytes);
  }
  EXPECT_LE(most, 128 * MiB);
  EXPECT_LE(now().captures, 2u);
}

TEST_F(pool_capture, several_graphs_live_side_by_side) {
  start();
  const stream_handle a = stream(), b = stream();
  std::vector<graph_exec_handle> graphs;
  for (int i = 0; i < 6; ++i) {
    begin(a);
    void* const x = take(8 * MiB, a);
    work(x, a, 1 * millisecond);
    give(x, a);
    graphs.push_back(finish(a));
  }
  for (int round = 0; round < 3; ++round) {
    for (const graph_exec_handle g : graphs) ok(gpu->graph_launch(g, round % 2 == 0 ? a : b));
  }
  EXPECT_GE(now().capture_bytes, 6 * 8 * MiB);
  for (const graph_exec_handle g : graphs) ok(gpu->graph_exec_destroy(g));
  gpu->advance(100 * millisecond);
  trim();
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
}

// Every slow path of another thread while a thread captures in global mode, which forbids unsafe
// calls to all.
TEST_F(pool_capture, another_threads_slow_paths_do_not_break_a_capture_in_global_mode) {
  start();
  const stream_handle captured = stream(), a = stream(), b = stream();
  simulated_gpu::set_thread(1);
  give(take(512, captured), captured);  // the pool has met the stream
  simulated_gpu::set_thread(2);
  void* const busy = take(64 * MiB, a);
  work(busy, a, 30 * millisecond);
  void* const used = take(4 * MiB, a);
  use(used, b);
  stream_handle dying = nullptr;
  ok(gpu->stream_create(&dying));
  void* const last = take(4 * MiB, dying);
  work(last, dying, 30 * millisecond);

  simulated_gpu::set_thread(1);
  begin(captured);
  void* const inside = take(4 * MiB, captured);
  work(inside, captured, 1 * millisecond);

  simulated_gpu::set_thread(2);
  give(busy, a);
  give(used, a);  // records an event on b
  give(last, dying);
  ok(gpu->stream_destroy(dying));
  ok(gpu->stream_create(&dying));
  std::vector<void*> all;
  all.push_back(take(64 * KiB, dying));  // the handle came back: the old stream is collected
  for (int i = 0; i < 30; ++i) {
    all.push_back(take(48 * MiB, i % 2 == 0 ? a : b));  // growth, fences
    gpu->advance(2 * millisecond);
  }
  for (void* x : all) give(x, b);
  trim();
  gpu->advance(100 * millisecond);
  trim();
  EXPECT_EQ(take(2 * gpu->info().total_bytes, a), nullptr);  // the whole pressure ladder

  simulated_gpu::set_thread(1);
  give(inside, captured);
  const graph_exec_handle exec = finish(captured);
  ok(gpu->graph_launch(exec, captured));
  ok(gpu->graph_exec_destroy(exec));
  ok(gpu->stream_destroy(dying));
}

TEST_F(pool_capture, the_pools_of_other_kinds_grow_without_breaking_a_capture) {
  for (const memory_kind kind : {memory_kind::pinned, memory_kind::managed}) {
    pool_options options;
    options.kind = kind;
    start(options);
    const stream_handle captured = stream(), a = stream();
    simulated_gpu::set_thread(1);
    begin(captured);
    void* const inside = take(4 * MiB, captured);
    EXPECT_NE(inside, nullptr) << refusal.message;
    simulated_gpu::set_thread(2);
    give(take(100 * MiB, a), a);
    simulated_gpu::set_thread(1);
    give(inside, captured);
    const graph_exec_handle exec = finish(captured);
    ok(gpu->graph_exec_destroy(exec));
    end_pool();
  }
}

// What died unsealed is kept, not guessed, until the capture has ended.
TEST_F(pool_capture, frees_of_a_dead_stream_wait_for_the_end_of_a_capture) {
  start();
  const stream_handle captured = stream(), a = stream();
  give(take(512, a), a);
  stream_handle dying = nullptr;
  ok(gpu->stream_create(&dying));
  void* const last = take(2 * MiB, dying);
  work(last, dying, 20 * millisecond);
  begin(captured);
  void* const inside = take(4 * MiB, captured);
  give(last, dying);
  ok(gpu->stream_destroy(dying));
  trim();
  void* const other = take(2 * MiB, a);
  EXPECT_NE(other, last);
  gpu->advance(100 * millisecond);
  trim();
  EXPECT_GE(now().pending_bytes, 2 * MiB) << "no call may tell while the capture runs";
  give(inside, captured);
  const graph_exec_handle exec = finish(captured);
  ok(gpu->graph_exec_destroy(exec));
  give(other, a);
  trim();
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
}

TEST_F(pool_capture, frees_of_the_programs_own_blocks_in_a_capture_record_nothing_in_it) {
  start();
  const stream_handle a = stream(), b = stream();
  give(take(512, b), b);
  std::vector<void*> all;
  for (int i = 0; i < 40; ++i) all.push_back(take(2 * MiB, a));
  void* const used = take(2 * MiB, a);
  use(used, a);
  begin(a);
  for (void* x : all) give(x, a);  // more than a cache keeps: flushed, and would be sealed
  give(used, a);
  void* const elsewhere = take(100 * MiB, b);
  const graph_exec_handle exec = finish(a);
  give(elsewhere, b);
  ok(gpu->graph_exec_destroy(exec));
  give(take(2 * MiB, a), a);
}

TEST_F(pool_capture, a_graph_may_outlive_the_pool) {
  start();
  const stream_handle a = stream();
  begin(a);
  void* const inside = take(4 * MiB, a);
  give(inside, a);
  const graph_exec_handle exec = finish(a);
  p.reset();
  ok(gpu->graph_exec_destroy(exec));
}

TEST_F(pool_capture, per_thread_streams_capture_too) {
  start();
  simulated_gpu::set_thread(1);
  begin(per_thread_stream);
  void* const inside = take(4 * MiB, per_thread_stream);
  EXPECT_NE(inside, nullptr);
  simulated_gpu::set_thread(2);
  void* const outside = take(4 * MiB, per_thread_stream);
  EXPECT_NE(outside, nullptr);
  EXPECT_EQ(now().captures, 1u);
  give(outside, per_thread_stream);
  simulated_gpu::set_thread(1);
  give(inside, per_thread_stream);
  const graph_exec_handle exec = finish(per_thread_stream);
  ok(gpu->graph_exec_destroy(exec));
}

}  // namespace
}  // namespace millpond
