// Memory that goes over the border of a capture: blocks of the program freed inside one, and what a
// graph leaves to the program. Whatever was queued outside must be over before anybody else has
// the memory, whether the graph lives or is gone.
#include <string>
#include <vector>

#include "support/arena_fixture.hpp"

namespace millpond {
namespace {

class pool_border : public pool_arena, public testing::WithParamInterface<std::uint64_t> {
 protected:
  void begin_alone(stream_handle s) { ok(gpu->capture_begin(s, capture_mode::global)); }
  // The pool may have no more than a few blocks of the size, so that it looks for each.
  void start_narrow() {
    pool_options options;
    options.limit_bytes = (4 * bytes() / (2 * MiB) + 3) * 2 * MiB;
    options.max_wait_ns = 0;
    start(options);
  }
  [[nodiscard]] static std::uint64_t bytes() { return GetParam(); }
  // Everybody asks for all that there is, and works on it.
  void hungry(stream_handle s, int count = 12) {
    std::vector<void*> got;
    for (int i = 0; i < count; ++i) {
      void* const x = take(bytes(), s);
      if (x == nullptr) break;
      work(x, s, 1 * microsecond, bytes());
      got.push_back(x);
    }
    for (void* x : got) give(x, s);
  }
  void end_alone(graph_exec_handle exec) {
    ok(gpu->graph_exec_destroy(exec));
    trim();
  }
};

TEST_P(pool_border, a_block_freed_in_a_capture_waits_for_what_was_queued_before) {
  start_narrow();
  const stream_handle a = stream(), b = stream();
  void* const x = take(bytes(), a);
  work(x, a, 500 * millisecond, bytes());
  begin_alone(a);
  give(x, a);
  hungry(a, 2);  // inside
  hungry(b);
  const graph_exec_handle exec = finish(a);
  hungry(b);
  ok(gpu->graph_launch(exec, b));
  ok(gpu->graph_exec_destroy(exec));
  trim();
  hungry(b);
  hungry(a);
  gpu->advance(1000 * millisecond);
  hungry(b);
}

TEST_P(pool_border, a_use_recorded_before_the_capture_is_waited_for) {
  start_narrow();
  const stream_handle a = stream(), b = stream();
  void* const x = take(bytes(), a);
  give(take(bytes(), b), b);  // the pool knows both streams
  work(x, b, 500 * millisecond, bytes());
  use(x, b);
  begin_alone(a);
  give(x, a);
  hungry(a, 2);
  const graph_exec_handle exec = finish(a);
  hungry(a);
  ok(gpu->graph_exec_destroy(exec));
  trim();
  hungry(a);
  gpu->advance(1000 * millisecond);
  hungry(a);
}

TEST_P(pool_border, a_result_that_is_still_read_when_its_graph_goes) {
  start_narrow();
  const stream_handle a = stream(), b = stream();
  give(take(bytes(), b), b);
  begin_alone(a);
  void* const x = take(bytes(), a);
  ASSERT_NE(x, nullptr);
  work(x, a, 1 * microsecond, bytes());
  const graph_exec_handle exec = finish(a);
  ok(gpu->graph_launch(exec, a));
  ok(gpu->stream_synchronize(a));
  work(x, a, 500 * millisecond, bytes());
  ok(gpu->graph_exec_destroy(exec));
  trim();
  hungry(b);
  gpu->advance(1000 * millisecond);
  trim();
  hungry(b);
}

TEST_P(pool_border, a_result_of_an_arena_freed_outside_while_it_is_read) {
  start_narrow();
  const stream_handle a = stream(), b = stream();
  give(take(bytes(), b), b);
  auto arena = p->make_graph_arena();
  begin(arena, a);
  void* const x = take(bytes(), a);
  ASSERT_NE(x, nullptr);
  work(x, a, 1 * microsecond, bytes());
  const graph_exec_handle first = finish(a);
  ok(gpu->graph_launch(first, a));
  work(x, a, 500 * millisecond, bytes());
  give(x, a);
  begin(arena, b);
  hungry(b, 3);
  const graph_exec_handle second = finish(b);
  for (const graph_exec_handle each : {first, second}) ok(gpu->graph_exec_destroy(each));
  hungry(b);
  gpu->advance(1000 * millisecond);
}

TEST_P(pool_border, a_result_of_a_held_arena_that_is_read_while_the_arena_ends) {
  start_narrow();
  const stream_handle a = stream(), b = stream();
  give(take(bytes(), b), b);
  auto arena = p->make_graph_arena();
  begin(arena, a);
  void* const x = take(bytes(), a);
  ASSERT_NE(x, nullptr);
  work(x, a, 1 * microsecond, bytes());
  const graph_exec_handle first = finish(a);
  ok(gpu->graph_launch(first, a));
  ok(gpu->stream_synchronize(a));
  ok(gpu->graph_exec_destroy(first));
  trim();
  work(x, a, 500 * millisecond, bytes());  // the arena is held
  arena = {};
  trim();
  hungry(b);
  gpu->advance(1000 * millisecond);
  hungry(b);
}

TEST_P(pool_border, a_block_of_one_arena_freed_in_a_capture_of_another) {
  start_narrow();
  const stream_handle a = stream(), b = stream();
  give(take(bytes(), b), b);
  auto one = p->make_graph_arena(), two = p->make_graph_arena();
  begin(one, a);
  void* const x = take(bytes(), a);
  ASSERT_NE(x, nullptr);
  work(x, a, 1 * microsecond, bytes());
  const graph_exec_handle first = finish(a);
  ok(gpu->graph_launch(first, a));
  ok(gpu->stream_synchronize(a));
  captures.clear();
  begin(two, a);
  work(x, a, 1 * microsecond, bytes());
  give(x, a);
  hungry(a, 2);
  const graph_exec_handle second = finish(a);
  ok(gpu->graph_exec_destroy(first));
  hungry(b);
  ok(gpu->graph_launch(second, a));  // the first one's arena is held
  ok(gpu->graph_exec_destroy(second));
  one = {};
  two = {};
  gpu->advance(100 * millisecond);
  trim();
  hungry(b);
}

INSTANTIATE_TEST_SUITE_P(sizes, pool_border,
                         testing::Values(512, 64 * KiB, 1 * MiB, 8 * MiB, 40 * MiB),
                         [](const auto& each) { return std::to_string(each.param / 512); });

}  // namespace
}  // namespace millpond
