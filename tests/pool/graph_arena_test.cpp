// Graphs that share an arena: about what the largest needs, and no block given against any order
// that a capture has.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>

#include "support/arena_fixture.hpp"

namespace millpond {
namespace {

TEST_F(pool_arena, two_graphs_replayed_in_turn_use_the_memory_of_one) {
  start();
  const stream_handle a = stream();
  graph_arena arena = p->make_graph_arena();
  const graph_exec_handle first = layers(arena, a, 6, 16 * MiB);
  const std::uint64_t alone = now().reserved_bytes;
  const graph_exec_handle second = layers(arena, a, 6, 16 * MiB);
  EXPECT_EQ(now().reserved_bytes, alone);
  EXPECT_EQ(now().captures, 2u);
  EXPECT_EQ(now().graph_arenas, 1u);
  for (int round = 0; round < 10; ++round) {
    ok(gpu->graph_launch(first, a));
    ok(gpu->graph_launch(second, a));
    give(take(16 * MiB, a), a);  // and the program goes on beside them
  }
  ok(gpu->graph_exec_destroy(first));
  ok(gpu->graph_exec_destroy(second));
  arena = {};
  expect_all_back();
}

TEST_F(pool_arena, many_graphs_of_growing_needs_hold_what_the_largest_needs) {
  start();
  const stream_handle a = stream(), b = stream();
  graph_arena arena = p->make_graph_arena();
  std::vector<graph_exec_handle> graphs;
  std::uint64_t sum = 0, largest = 0;
  // Captured from the largest down, as programs with several batch sizes do, and one more large one
  // at the end.
  for (const std::uint64_t mebibytes : {64, 48, 40, 24, 12, 5, 60}) {
    graphs.push_back(layers(arena, graphs.size() % 2 == 0 ? a : b, 4, mebibytes * MiB));
    sum += 2 * mebibytes * MiB;
    largest = std::max<std::uint64_t>(largest, 2 * mebibytes * MiB);
  }
  EXPECT_LE(now().capture_bytes, largest + largest / 10);
  EXPECT_LE(now().reserved_bytes, largest + largest / 4) << "of " << sum << " apart";
  for (int round = 0; round < 3; ++round) {
    for (const graph_exec_handle g : graphs) ok(gpu->graph_launch(g, a));
  }
  for (const graph_exec_handle g : graphs) ok(gpu->graph_exec_destroy(g));
  arena = {};
  expect_all_back();
}

TEST_F(pool_arena, holders_and_graphs_go_in_any_order_and_the_last_gives_all_back) {
  std::array<int, 3> order{0, 1, 2};
  do {
    start();
    captures.clear();
    const stream_handle a = stream();
    graph_arena arena = p->make_graph_arena();
    const graph_arena copy = arena;
    const std::array graphs{layers(arena, a, 3, 8 * MiB), layers(arena, a, 3, 8 * MiB)};
    for (const graph_exec_handle g : graphs) ok(gpu->graph_launch(g, a));
    graph_arena last = copy == arena ? std::move(arena) : graph_arena();
    arena = {};
    const_cast<graph_arena&>(copy) = {};
    int graphs_left = 2;
    for (const int what : order) {
      if (graphs_left > 0) {
        EXPECT_GE(now().capture_bytes, 16 * MiB);
      }
      graphs_left -= what < 2 ? 1 : 0;
      EXPECT_EQ(now().graph_arenas, 1u);
      if (what < 2)
        ok(gpu->graph_exec_destroy(graphs[static_cast<std::size_t>(what)]));
      else
        last = {};
      gpu->advance(10 * millisecond);
      trim();
    }
    expect_all_back();
    end_pool();
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(pool_arena, an_aborted_capture_gives_everything_back_to_the_arena_and_with_it_to_the_pool) {
  start();
  const stream_handle a = stream();
  graph_arena arena = p->make_graph_arena();
  const graph_exec_handle first = layers(arena, a, 2, 32 * MiB);
  const std::uint64_t before = now().reserved_bytes;
  begin(arena, a);
  void* const kept = take(32 * MiB, a);
  give(take(16 * MiB, a), a);
  EXPECT_FALSE(gpu->stream_query(a).ok());  // breaks the capture
  graph_handle none = nullptr;
  EXPECT_FALSE(gpu->capture_end(a, &none).ok());
  ASSERT_TRUE(broken("forbidden_in_capture"));
  gpu->clear_violations();
  EXPECT_EQ(now().reserved_bytes, before);
  give(kept, a);  // the program still had it
  gpu->advance(1 * millisecond);
  const graph_exec_handle second = layers(arena, a, 2, 32 * MiB);
  EXPECT_EQ(now().reserved_bytes, before) << "the broken capture's memory serves the next";
  for (const graph_exec_handle g : {first, second}) ok(gpu->graph_exec_destroy(g));
  arena = {};
  expect_all_back();
}

TEST_F(pool_arena, an_arena_all_of_whose_captures_were_broken_leaves_nothing) {
  start();
  const stream_handle a = stream();
  graph_arena arena = p->make_graph_arena();
  begin(arena, a);
  void* const never_freed = take(32 * MiB, a);
  ASSERT_NE(never_freed, nullptr);
  EXPECT_FALSE(gpu->stream_query(a).ok());
  graph_handle none = nullptr;
  EXPECT_FALSE(gpu->capture_end(a, &none).ok());
  gpu->clear_violations();
  gpu->note_free(reinterpret_cast<device_address>(never_freed), 32 * MiB, a,
                 "thrown away with the arena");
  arena = {};
  expect_all_back();
}

// Inherited memory serves any stream of a capture once; what a stream of the capture has freed is
// its own.
TEST_F(pool_arena,
       streams_of_one_capture_share_what_is_inherited_and_nothing_that_one_of_them_freed) {
  start();
  const stream_handle a = stream(), b = stream();
  graph_arena arena = p->make_graph_arena();
  const graph_exec_handle first = layers(arena, a, 4, 32 * MiB);  // leaves two pieces of 32 MiB
  const std::uint64_t before = now().reserved_bytes;
  const event_handle fork = event(), join = event();
  begin(arena, a);
  ok(gpu->event_record(fork, a));
  ok(gpu->stream_wait_event(b, fork));
  void* const on_a = take(32 * MiB, a);
  void* const on_b = take(32 * MiB, b);
  EXPECT_EQ(now().reserved_bytes, before) << "both from the arena";
  work(on_a, a, 1 * millisecond);
  work(on_b, b, 1 * millisecond);
  give(on_a, a);
  void* const more_on_b = take(32 * MiB, b);  // the checker sees where it is on_a's
  EXPECT_NE(more_on_b, on_a);
  void* const again_on_a = take(32 * MiB, a);
  EXPECT_EQ(again_on_a, on_a);
  for (void* x : {on_b, more_on_b}) give(x, b);
  give(again_on_a, a);
  ok(gpu->event_record(join, b));
  ok(gpu->stream_wait_event(a, join));
  const graph_exec_handle second = finish(a);
  for (const graph_exec_handle g : {first, second, first}) ok(gpu->graph_launch(g, a));
  for (const graph_exec_handle g : {first, second}) ok(gpu->graph_exec_destroy(g));
  arena = {};
  expect_all_back();
}

// A stream takes over what the arena has only where no stream of the capture has used it.
TEST_F(pool_arena, a_stream_that_forks_off_later_gets_nothing_that_another_has_freed) {
  start();
  const stream_handle a = stream(), b = stream();
  graph_arena arena = p->make_graph_arena();
  const graph_exec_handle first = layers(arena, a, 4, 32 * MiB);
  const event_handle fork = event(), join = event();
  begin(arena, a);
  ok(gpu->event_record(fork, a));
  ok(gpu->stream_wait_event(b, fork));
  void* const on_a = take(32 * MiB, a);
  work(on_a, a, 1 * millisecond);
  give(on_a, a);
  std::vector<void*> on_b{take(32 * MiB, b), take(32 * MiB, b)};
  EXPECT_THAT(on_b, ::testing::Not(::testing::Contains(on_a)));
  for (void* x : on_b) {
    work(x, b, 1 * millisecond);
    give(x, b);
  }
  ok(gpu->event_record(join, b));
  ok(gpu->stream_wait_event(a, join));
  const graph_exec_handle second = finish(a);
  for (const graph_exec_handle g : {first, second}) ok(gpu->graph_launch(g, a));
  for (const graph_exec_handle g : {first, second}) ok(gpu->graph_exec_destroy(g));
  arena = {};
  expect_all_back();
}

// Two captures of one arena at the same time. The later one takes what the earlier had freed, and
// it never goes back.
TEST_F(pool_arena, captures_that_run_at_the_same_time_keep_what_each_stream_freed_in_order) {
  start();
  const stream_handle a = stream(), b = stream(), c = stream();
  graph_arena arena = p->make_graph_arena();
  const event_handle fork = event(), join = event();
  simulated_gpu::set_thread(1);
  begin(arena, a, capture_mode::relaxed);
  ok(gpu->event_record(fork, a));
  ok(gpu->stream_wait_event(b, fork));
  void* const early = take(32 * MiB, a);
  work(early, a, 1 * millisecond);
  give(early, a);
  simulated_gpu::set_thread(2);
  begin(arena, c, capture_mode::relaxed);
  void* const later = take(32 * MiB, c);
  EXPECT_EQ(later, early);
  work(later, c, 1 * millisecond);
  give(later, c);
  simulated_gpu::set_thread(1);
  void* const on_b = take(32 * MiB, b);
  EXPECT_NE(on_b, early) << "in this capture it was used on another stream";
  work(on_b, b, 1 * millisecond);
  give(on_b, b);
  ok(gpu->event_record(join, b));
  ok(gpu->stream_wait_event(a, join));
  const graph_exec_handle first = finish(a);
  simulated_gpu::set_thread(2);
  const graph_exec_handle second = finish(c);
  simulated_gpu::set_thread(1);
  for (const graph_exec_handle g : {first, second}) ok(gpu->graph_launch(g, a));
  for (const graph_exec_handle g : {first, second}) ok(gpu->graph_exec_destroy(g));
  arena = {};
  expect_all_back();
}

TEST_F(pool_arena, a_result_outlives_its_graph_while_the_arena_is_held) {
  start();
  const stream_handle a = stream();
  graph_arena arena = p->make_graph_arena();
  begin(arena, a);
  void* const result_block = take(8 * MiB, a);
  work(result_block, a, 1 * millisecond);
  const graph_exec_handle first = finish(a);
  ok(gpu->graph_launch(first, a));
  ok(gpu->graph_exec_destroy(first));
  gpu->advance(10 * millisecond);
  trim();
  std::vector<void*> others;
  for (int i = 0; i < 10; ++i) others.push_back(take(8 * MiB, a));
  EXPECT_THAT(others, ::testing::Not(::testing::Contains(result_block)));
  EXPECT_EQ(p->find(result_block).value().start, result_block);
  const graph_exec_handle second = layers(arena, a, 3, 8 * MiB);
  ok(gpu->graph_launch(second, a));
  give(result_block, a);
  for (void* x : others) give(x, a);
  ok(gpu->graph_exec_destroy(second));
  arena = {};
  expect_all_back();
}

TEST_F(pool_arena, a_block_of_an_earlier_graph_freed_in_a_later_capture_serves_that_one) {
  start();
  const stream_handle a = stream();
  graph_arena arena = p->make_graph_arena();
  begin(arena, a);
  void* const handed_on = take(32 * MiB, a);
  work(handed_on, a, 1 * millisecond);
  const graph_exec_handle first = finish(a);
  begin(arena, a);
  void* const out = take(16 * MiB, a);
  work(handed_on, a, 1 * millisecond);
  give(handed_on, a);
  EXPECT_EQ(take(32 * MiB, a), handed_on);
  give(handed_on, a);
  give(out, a);
  const graph_exec_handle second = finish(a);
  for (int i = 0; i < 3; ++i) {
    ok(gpu->graph_launch(first, a));
    ok(gpu->graph_launch(second, a));
  }
  for (const graph_exec_handle g : {first, second}) ok(gpu->graph_exec_destroy(g));
  arena = {};
  expect_all_back();
}

TEST_F(pool_arena,
       a_block_freed_outside_serves_a_later_capture_only_once_its_stream_has_passed_the_free) {
  start();
  const stream_handle a = stream(), b = stream();
  give(take(512, b), b);
  graph_arena arena = p->make_graph_arena();
  begin(arena, a);
  void* const result_block = take(32 * MiB, a);
  work(result_block, a, 1 * millisecond);
  const graph_exec_handle first = finish(a);
  ok(gpu->graph_launch(first, b));
  work(result_block, b, 50 * millisecond);  // the program reads the result
  give(result_block, b);
  const std::uint64_t before = now().capture_bytes;
  EXPECT_GE(before, 32 * MiB);
  p->deallocate(result_block, 32 * MiB, b);
  EXPECT_EQ(only_error().code, error_code::double_free);
  begin(arena, a);
  void* const early = take(32 * MiB, a);
  EXPECT_NE(early, result_block) << "b still reads it";
  give(early, a);
  const graph_exec_handle second = finish(a);
  gpu->advance(200 * millisecond);
  begin(arena, a);
  void* const one = take(32 * MiB, a);
  void* const two = take(32 * MiB, a);
  EXPECT_THAT((std::vector<void*>{one, two}), ::testing::UnorderedElementsAre(early, result_block));
  give(one, a);
  give(two, a);
  const graph_exec_handle third = finish(a);
  for (const graph_exec_handle g : {first, second, third}) ok(gpu->graph_exec_destroy(g));
  arena = {};
  expect_all_back();
}

TEST_F(pool_arena,
       a_block_that_another_graph_or_a_stream_outside_uses_serves_nobody_before_the_end) {
  start();
  const stream_handle a = stream(), b = stream();
  graph_arena arena = p->make_graph_arena();
  begin(arena, a);
  void* const in_other_graph = take(16 * MiB, a);
  void* const used_outside = take(16 * MiB, a);
  const graph_exec_handle first = finish(a);
  use(used_outside, b);
  give(used_outside, a);
  ok(gpu->capture_begin(b, capture_mode::relaxed));  // of no arena
  give(take(512, b), b);
  give(in_other_graph, b);
  void* const others = take(16 * MiB, b);
  EXPECT_NE(others, in_other_graph) << "another arena's, which that graph's launches will write";
  give(others, b);
  const graph_exec_handle other = finish(b);
  gpu->advance(100 * millisecond);
  begin(arena, a);
  std::vector<void*> all;
  for (int i = 0; i < 4; ++i) all.push_back(take(16 * MiB, a));
  for (void* x : all) {
    EXPECT_NE(x, in_other_graph);
    EXPECT_NE(x, used_outside);
    give(x, a);
  }
  const graph_exec_handle second = finish(a);
  for (const graph_exec_handle g : {first, other, second}) ok(gpu->graph_exec_destroy(g));
  arena = {};
  expect_all_back();
}

// In a private capture too.
TEST_F(pool_arena,
       a_use_on_another_stream_of_the_capture_keeps_a_block_from_the_rest_of_the_capture) {
  start();
  const stream_handle a = stream(), b = stream();
  graph_arena arena = p->make_graph_arena();
  for (const bool shared : {false, true}) {
    const event_handle fork = event(), join = event();
    if (shared)
      begin(arena, a);
    else
      ok(gpu->capture_begin(a, capture_mode::global));
    void* const x = take(16 * MiB, a);
    ok(gpu->event_record(fork, a));
    ok(gpu->stream_wait_event(b, fork));
    use(x, b);
    work(x, b, 5 * millisecond);
    give(x, a);
    void* const y = take(16 * MiB, a);
    EXPECT_NE(y, x) << "b's branch still uses it";
    work(y, a, 1 * millisecond);
    give(y, a);
    ok(gpu->event_record(join, b));
    ok(gpu->stream_wait_event(a, join));
    const graph_exec_handle first = finish(a);
    ok(gpu->graph_launch(first, a));
    if (shared) {
      const graph_exec_handle second = layers(arena, a, 2, 16 * MiB);
      ok(gpu->graph_launch(second, a));
      ok(gpu->graph_exec_destroy(second));
    }
    ok(gpu->graph_exec_destroy(first));
    gpu->advance(50 * millisecond);
  }
  arena = {};
  expect_all_back();
}

TEST_F(pool_arena, a_hundred_captures_into_one_arena_stay_within_the_memory_of_one) {
  start();
  const stream_handle a = stream();
  graph_arena arena = p->make_graph_arena();
  std::uint64_t most = 0;
  for (int i = 0; i < 100; ++i) {
    const graph_exec_handle g = layers(arena, a, 3, (8 + static_cast<std::uint64_t>(i) % 5) * MiB);
    ok(gpu->graph_launch(g, a));
    ok(gpu->graph_exec_destroy(g));
    gpu->advance(1 * millisecond);
    most = std::max(most, now().reserved_bytes);
  }
  EXPECT_LE(most, 48 * MiB);
  EXPECT_LE(now().captures, 2u);
  arena = {};
  expect_all_back();
}

TEST_F(pool_arena, a_holder_and_a_graph_may_outlive_the_pool) {
  start();
  const stream_handle a = stream();
  graph_arena arena = p->make_graph_arena();
  const graph_exec_handle g = layers(arena, a, 2, 4 * MiB);
  p.reset();
  ok(gpu->graph_exec_destroy(g));
  EXPECT_TRUE(arena);
  arena = {};
  EXPECT_FALSE(arena);
}

TEST_F(pool_arena, trim_and_pressure_take_what_is_free_in_a_held_arena_without_graphs) {
  pool_options options;
  options.limit_bytes = 256 * MiB;
  start(options);
  const stream_handle a = stream(), b = stream();
  const graph_arena arena = p->make_graph_arena();
  ok(gpu->graph_exec_destroy(layers(arena, a, 3, 64 * MiB)));
  gpu->advance(1 * millisecond);
  void* const x = take(200 * MiB, b);
  EXPECT_NE(x, nullptr) << refusal.message;
  give(x, b);
  trim();
  ok(gpu->graph_exec_destroy(layers(arena, a, 3, 64 * MiB)));
  gpu->advance(1 * millisecond);
  trim();
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
  EXPECT_EQ(now().graph_arenas, 1u);
}

// Where no fence over the whole context is allowed, the program waits for the device when it may.
TEST_F(pool_arena, without_context_fences_a_wait_for_the_device_gives_all_back) {
  pool_options options;
  options.fences = context_fences::never;
  start(options);
  const stream_handle a = stream(), b = stream();
  graph_arena arena = p->make_graph_arena();
  const graph_exec_handle g = layers(arena, a, 3, 32 * MiB);
  ok(gpu->graph_launch(g, a));
  ok(gpu->graph_exec_destroy(g));
  arena = {};
  void* const x = take(8 * MiB, b);
  work(x, b, 50 * millisecond);
  give(x, b);
  trim();
  EXPECT_GE(now().pending_bytes, 64 * MiB);
  const auto synchronise = [&] {
    const simulated_gpu::library_scope library;
    const handle_watch::serving call(nullptr);
    return p->synchronize();
  };
  ok(gpu->capture_begin(a, capture_mode::relaxed));
  give(take(512, a), a);
  const auto refused = synchronise();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, error_code::not_permitted);
  ok(gpu->graph_exec_destroy(finish(a)));
  ASSERT_TRUE(synchronise().has_value());
  ASSERT_TRUE(synchronise().has_value());  // the last graph's end was reported only by the first
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
  EXPECT_EQ(now().pending_bytes, 0u);
}

// The capture's stream is used no more: that the pool cannot know whether its capture has ended
// costs other streams nothing.
TEST_F(pool_arena, a_captures_end_that_nobody_saw_does_not_leave_other_streams_without_fences) {
  start();
  const stream_handle captured = stream(), a = stream(), b = stream();
  graph_arena arena = p->make_graph_arena();
  const graph_exec_handle g = layers(arena, captured, 2, 4 * MiB);
  for (int i = 0; i < 20; ++i) {
    void* const x = take(8 * MiB, i % 2 == 0 ? a : b);
    work(x, i % 2 == 0 ? a : b, 10 * microsecond);
    give(x, i % 2 == 0 ? a : b);
    gpu->advance(1 * millisecond);
  }
  EXPECT_LE(now().reserved_bytes, 64 * MiB);
  ok(gpu->graph_exec_destroy(g));
  arena = {};
  expect_all_back();
}

}  // namespace
}  // namespace millpond
