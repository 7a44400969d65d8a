// Each rule that must hold, twice: kept with an honest driver, and broken on purpose, which must be
// noticed. docs/internals/testing.md has the table.
#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "support/lying_driver.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

class pool_planted : public pool_test {
 public:
  // Which rules were broken; each once.
  std::set<std::string> begin(lie which, void (pool_planted::*story)(), pool_options options = {}) {
    start(std::move(options), steady(), [&](std::shared_ptr<simulated_gpu> g) {
      return liar = std::make_shared<lying_driver>(g, which);
    });
    (this->*story)();
    std::set<std::string> out;
    for (const std::string& rule : rules()) out.insert(rule);
    gpu->clear_violations();
    {
      const simulated_gpu::library_scope library;
      p.reset();
    }
    errors.clear();
    gpu->clear_violations();
    watch.reset();
    liar.reset();
    leak_check = which == lie::none;
    if (which == lie::none)
      end_pool();
    else
      gpu.reset();
    return out;
  }
  void expect_caught(lie which, const std::string& rule, void (pool_planted::*story)(),
                     pool_options options = {}) {
    EXPECT_THAT(begin(lie::none, story, options), ::testing::IsEmpty()) << "with the honest driver";
    EXPECT_THAT(begin(which, story, options), ::testing::Contains(rule)) << "with the lie";
    gpu.reset();
  }

  void a_busy_stream_frees_and_another_allocates() {
    const stream_handle a = stream(), b = stream();
    give(take(512, b), b);
    void* const x = take(64 * MiB, a);
    work(x, a, 500 * millisecond);
    give(x, a);
    give(take(512, a), a);
    for (int i = 0; i < 8; ++i) {
      void* const y = take(64 * MiB, b);
      give(y, b);
      void* const z = take(64 * MiB, a);
      give(z, a);
    }
  }
  void a_handle_comes_back_while_its_streams_work_runs() {
    stream_handle a = nullptr;
    ok(gpu->stream_create(&a));
    for (int i = 0; i < 4; ++i) {
      void* const x = take(1 * MiB, a);
      work(x, a, 500 * millisecond);
      give(x, a);
      ok(gpu->stream_destroy(a));
      ok(gpu->stream_create(&a));
    }
    void* const x = take(1 * MiB, a);
    give(x, a);
    ok(gpu->stream_destroy(a));
  }
  void two_threads_share_the_handle_of_per_thread_streams() {
    simulated_gpu::set_thread(1);
    void* const x = take(64 * MiB, per_thread_stream);
    work(x, per_thread_stream, 500 * millisecond);
    give(x, per_thread_stream);
    give(take(512, per_thread_stream), per_thread_stream);
    simulated_gpu::set_thread(2);
    give(take(64 * MiB, per_thread_stream), per_thread_stream);
    simulated_gpu::set_thread(1);
  }
  void a_use_is_reported_and_the_block_freed() {
    const stream_handle a = stream(), b = stream();
    void* const x = take(4 * MiB, a);
    use(x, b);
    work(x, b, 500 * millisecond);
    give(x, a);
    for (int i = 0; i < 4; ++i) give(take(4 * MiB, a), a);
  }
  void a_stream_dies_with_frees_unsealed() {
    const stream_handle b = stream();
    give(take(512, b), b);
    stream_handle a = nullptr;
    ok(gpu->stream_create(&a));
    void* const x = take(2 * MiB, a);
    work(x, a, 500 * millisecond);
    give(x, a);
    ok(gpu->stream_destroy(a));
    trim(~std::uint64_t{0});
    std::vector<void*> all;
    for (int i = 0; i < 30; ++i) all.push_back(take(2 * MiB, b));
    for (void* y : all) give(y, b);
  }
  void a_thread_captures_and_another_grows_polls_and_trims() {
    const stream_handle c = stream(), a = stream(), b = stream();
    simulated_gpu::set_thread(1);
    ok(gpu->capture_begin(c, capture_mode::global));
    void* const inside = take(4 * MiB, c);
    simulated_gpu::set_thread(2);
    for (int i = 0; i < 4; ++i) {
      give(take(80 * MiB, a), a);
      give(take(80 * MiB, b), b);
    }
    trim();
    simulated_gpu::set_thread(1);
    if (inside != nullptr) give(inside, c);
    graph_handle graph = nullptr;
    static_cast<void>(gpu->capture_end(c, &graph));
    if (graph != nullptr) ok(gpu->graph_destroy(graph));
  }
  void frees_in_a_capture_fill_a_cache() {
    const stream_handle a = stream(), b = stream();
    give(take(512, b), b);
    std::vector<void*> all;
    for (int i = 0; i < 40; ++i) all.push_back(take(2 * MiB, a));
    ok(gpu->capture_begin(a, capture_mode::relaxed));
    for (void* x : all) give(x, a);
    graph_handle graph = nullptr;
    static_cast<void>(gpu->capture_end(a, &graph));
    if (graph != nullptr) ok(gpu->graph_destroy(graph));
  }
  void a_graph_keeps_memory_while_others_allocate() {
    const stream_handle a = stream(), b = stream();
    give(take(512, b), b);
    ok(gpu->capture_begin(a, capture_mode::global));
    void* const x = take(16 * MiB, a);
    work(x, a, 1 * millisecond);
    give(x, a);
    graph_handle graph = nullptr;
    ok(gpu->capture_end(a, &graph));
    if (liar != nullptr) liar->tell_graphs_gone();
    std::vector<void*> all;
    for (int i = 0; i < 12; ++i) {
      all.push_back(take(16 * MiB, i % 2 == 0 ? a : b));
      gpu->advance(1 * millisecond);
    }
    for (void* y : all) give(y, b);
    ok(gpu->graph_destroy(graph));
  }
  void a_stream_may_wait_for_another() {
    const stream_handle a = stream(), b = stream();
    give(take(512, b), b);
    void* const x = take(512 * MiB, a);
    work(x, a, 500 * millisecond);
    give(x, a);
    give(take(512, a), a);
    for (int i = 0; i < 4; ++i) {
      void* const y = take(512 * MiB, b);
      work(y, b, 1 * millisecond);
      give(y, b);
      give(take(512, a), a);
    }
  }
  void several_handles_are_mapped() {
    const stream_handle a = stream();
    std::vector<void*> all;
    for (int i = 0; i < 6; ++i) all.push_back(take(48 * MiB, a));
    for (void* x : all) {
      if (x != nullptr) give(x, a);
    }
  }
  void memory_is_given_back_while_a_block_lives() {
    const stream_handle a = stream();
    void* const x = take(48 * MiB, a);
    void* const y = take(48 * MiB, a);
    give(y, a);
    if (liar != nullptr) liar->aim(reinterpret_cast<device_address>(x) / (2 * MiB) * (2 * MiB));
    trim();
    give(x, a);
  }

  std::shared_ptr<lying_driver> liar;
};

TEST_F(pool_planted, a_block_reused_before_its_fence_passed) {
  expect_caught(lie::event_passed_early, "reuse_before_order",
                &pool_planted::a_busy_stream_frees_and_another_allocates);
}
TEST_F(pool_planted, an_event_not_recorded) {
  expect_caught(lie::event_not_recorded, "reuse_before_order",
                &pool_planted::a_busy_stream_frees_and_another_allocates);
}
TEST_F(pool_planted, identity_taken_from_the_handle) {
  expect_caught(lie::identity_is_the_handle, "reuse_before_order",
                &pool_planted::a_handle_comes_back_while_its_streams_work_runs);
}
TEST_F(pool_planted, identity_of_the_handles_that_name_many_streams_taken_from_the_handle) {
  expect_caught(lie::identity_is_the_handle, "reuse_before_order",
                &pool_planted::two_threads_share_the_handle_of_per_thread_streams);
}
TEST_F(pool_planted, a_use_reported_whose_event_is_not_recorded) {
  expect_caught(lie::event_not_recorded, "reuse_before_order",
                &pool_planted::a_use_is_reported_and_the_block_freed);
}
TEST_F(pool_planted, a_use_reported_whose_event_is_said_to_have_passed) {
  expect_caught(lie::event_passed_early, "reuse_before_order",
                &pool_planted::a_use_is_reported_and_the_block_freed);
}
TEST_F(pool_planted, a_dead_streams_frees_fenced_by_nothing) {
  expect_caught(lie::context_event_empty, "reuse_before_order",
                &pool_planted::a_stream_dies_with_frees_unsealed);
}
TEST_F(pool_planted, a_dead_streams_frees_fenced_by_another_stream) {
  expect_caught(lie::context_event_on_stream, "reuse_before_order",
                &pool_planted::a_stream_dies_with_frees_unsealed);
}
TEST_F(pool_planted, a_thread_that_is_not_relaxed_breaks_anothers_capture) {
  expect_caught(lie::no_capture_mode, "forbidden_in_capture",
                &pool_planted::a_thread_captures_and_another_grows_polls_and_trims);
}
TEST_F(pool_planted, a_fence_recorded_into_the_programs_capture) {
  // The first call that takes the stream for one outside a capture is noticed: the question who it
  // is.
  expect_caught(lie::nothing_captures, "forbidden_in_capture",
                &pool_planted::frees_in_a_capture_fill_a_cache);
}
TEST_F(pool_planted, a_graphs_memory_handed_out_while_the_graph_lives) {
  expect_caught(lie::graph_gone_at_once, "capture_memory_reused",
                &pool_planted::a_graph_keeps_memory_while_others_allocate);
}
TEST_F(pool_planted, a_wait_that_the_caller_allowed_and_nobody_put) {
  pool_options options;
  options.reuse = reuse_policy::may_wait;
  expect_caught(lie::wait_not_put, "reuse_before_order",
                &pool_planted::a_stream_may_wait_for_another, options);
}
TEST_F(pool_planted, one_page_behind_two_blocks) {
  expect_caught(lie::two_maps_of_one_memory, "overlap", &pool_planted::several_handles_are_mapped);
}
TEST_F(pool_planted, memory_taken_away_under_a_live_block) {
  expect_caught(lie::lossy_unmap, "free_in_use",
                &pool_planted::memory_is_given_back_while_a_block_lives);
}

}  // namespace
}  // namespace millpond
