// Arenas misused and broken on purpose: bad calls are reported and change nothing, and a planted
// bug is found.
#include "support/arena_fixture.hpp"
#include "support/lying_driver.hpp"

namespace millpond {
namespace {

using pool_arena_errors = pool_arena;
using pool_arena_planted = pool_arena;

TEST_F(pool_arena_errors, bad_calls_are_reported_and_change_nothing) {
  start();
  const stream_handle a = stream(), b = stream();
  const graph_arena arena = p->make_graph_arena(), other = p->make_graph_arena();
  auto second = pool::create(gpu);
  ASSERT_TRUE(second.has_value());
  const graph_arena of_second = (*second)->make_graph_arena();
  const auto refused = [&](const graph_arena& of, stream_handle s, error_code code,
                           const std::string& words) {
    const auto got = attach(of, s);
    ASSERT_FALSE(got.has_value()) << words;
    EXPECT_EQ(got.error().code, code) << got.error().message;
    EXPECT_NE(got.error().message.find(words), std::string::npos) << got.error().message;
  };
  refused(arena, a, error_code::not_permitted, "no capture runs on the stream");
  stream_handle gone = nullptr;
  ok(gpu->stream_create(&gone));
  ok(gpu->stream_destroy(gone));
  refused(arena, gone, error_code::invalid_argument, "destroyed");
  ok(gpu->capture_begin(a, capture_mode::relaxed));
  refused({}, a, error_code::invalid_argument, "no graph arena");
  refused(of_second, a, error_code::invalid_argument, "another pool's");
  EXPECT_TRUE(attach(arena, a).has_value());
  EXPECT_TRUE(attach(arena, a).has_value()) << "once more changes nothing";
  refused(other, a, error_code::not_permitted, "attached to another graph arena");
  void* const x = take(1 * MiB, a);
  EXPECT_TRUE(attach(arena, a).has_value());
  give(x, a);
  ok(gpu->graph_exec_destroy(finish(a)));
  ok(gpu->capture_begin(b, capture_mode::relaxed));
  void* const y = take(1 * MiB, b);
  refused(arena, b, error_code::not_permitted, "memory of its own");
  give(y, b);
  EXPECT_FALSE(gpu->stream_query(b).ok());
  gpu->clear_violations();
  refused(arena, b, error_code::not_permitted, "invalidated");
  graph_handle none = nullptr;
  EXPECT_FALSE(gpu->capture_end(b, &none).ok());
  gpu->clear_violations();
  gpu->advance(10 * millisecond);
  trim();
  trim();
  EXPECT_EQ(now().reserved_bytes, 0u);
  EXPECT_EQ(now().captures, 0u);
  EXPECT_EQ(now().graph_arenas, 2u) << "held, and empty";
}

TEST_F(pool_arena_errors, running_out_in_an_arena_names_what_it_keeps) {
  pool_options options;
  options.limit_bytes = 256 * MiB;
  options.max_wait_ns = 0;
  start(options);
  const stream_handle a = stream(), b = stream();
  graph_arena arena = p->make_graph_arena();
  const graph_exec_handle small = layers(arena, a, 1, 1 * MiB);
  const graph_exec_handle g = layers(arena, a, 3, 64 * MiB);
  EXPECT_EQ(take(200 * MiB, b), nullptr);
  EXPECT_EQ(refusal.code, error_code::out_of_memory);
  EXPECT_NE(refusal.message.find("the graph's of capture"), std::string::npos) << refusal.message;
  ok(gpu->graph_exec_destroy(g));
  EXPECT_EQ(take(200 * MiB, b), nullptr);
  EXPECT_EQ(now().graph_arenas, 1u);
  EXPECT_NE(refusal.message.find("a graph arena's until its holders and graphs are gone"),
            std::string::npos)
      << refusal.message;
  ok(gpu->graph_exec_destroy(
      small));  // the last graph: what is free goes back though the arena is held
  void* const x = take(200 * MiB, b);
  EXPECT_NE(x, nullptr) << refusal.message;
  give(x, b);
}

TEST_F(pool_arena_planted, memory_of_an_arena_handed_out_while_its_graphs_live_is_found) {
  for (const lie which : {lie::none, lie::graph_gone_at_once}) {
    std::shared_ptr<lying_driver> liar;
    start({}, steady(), [&](std::shared_ptr<simulated_gpu> g) {
      return liar = std::make_shared<lying_driver>(g, which);
    });
    captures.clear();
    const stream_handle a = stream(), b = stream();
    graph_arena arena = p->make_graph_arena();
    const graph_exec_handle first = layers(arena, a, 2, 16 * MiB);
    const graph_exec_handle second = layers(arena, a, 2, 16 * MiB);
    arena = {};
    liar->tell_graphs_gone();
    std::vector<void*> all;
    for (int i = 0; i < 12; ++i) {
      all.push_back(take(16 * MiB, i % 2 == 0 ? a : b));
      gpu->advance(1 * millisecond);
    }
    for (void* x : all) give(x, b);
    EXPECT_EQ(broken("capture_memory_reused"), which == lie::graph_gone_at_once);
    gpu->clear_violations();
    for (const graph_exec_handle g : {first, second}) ok(gpu->graph_exec_destroy(g));
    end_pool();
    liar.reset();
  }
}

TEST_F(pool_arena_planted,
       a_fence_said_to_have_passed_gives_a_result_that_is_still_read_to_a_graph) {
  for (const lie which : {lie::none, lie::event_passed_early, lie::event_not_recorded}) {
    start({}, steady(), [&](std::shared_ptr<simulated_gpu> g) {
      return std::make_shared<lying_driver>(g, which);
    });
    captures.clear();
    const stream_handle a = stream(), b = stream();
    graph_arena arena = p->make_graph_arena();
    begin(arena, a);
    void* const result_block = take(32 * MiB, a);
    const graph_exec_handle first = finish(a);
    give(take(512, b), b);
    work(result_block, b, 500 * millisecond);
    give(result_block, b);
    const graph_exec_handle second = layers(arena, a, 2, 32 * MiB);
    EXPECT_EQ(broken("reuse_before_order"), which != lie::none) << static_cast<int>(which);
    gpu->clear_violations();
    for (const graph_exec_handle g : {first, second}) ok(gpu->graph_exec_destroy(g));
    arena = {};
    gpu->advance(1000 * millisecond);
    trim();
    {
      const simulated_gpu::library_scope library;
      p.reset();
    }
    gpu->clear_violations();
    end_pool();
  }
}

}  // namespace
}  // namespace millpond
