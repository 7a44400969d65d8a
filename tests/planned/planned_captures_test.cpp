// The planned resource over a pool: captures that begin and end within an iteration, and its end
// after its streams.
#include <gmock/gmock.h>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"
#include "millpond/planned/planned_resource.hpp"
#include "millpond/pool/pool.hpp"
#include "support/dead_streams.hpp"
#include "support/forwarding_driver.hpp"
#include "support/others_capture.hpp"

namespace millpond {
namespace {

using ::testing::IsEmpty;

constexpr std::uint64_t size = 64 * MiB, millisecond = 1'000'000;

// Refuses to say whether a stream captures, while `on`.
struct silent_about_captures final : forwarding_driver {
  using forwarding_driver::forwarding_driver;
  bool on = false;
  bool id_outside_capture(stream_handle s, std::uint64_t* id) noexcept override {
    return !on && to().id_outside_capture(s, id);
  }
  driver_status refuse(sim::call which) noexcept override {
    return on && which == sim::call::stream_capture ? driver_status::unknown
                                                    : driver_status::success;
  }
};

class planned_captures : public sim_test {
 protected:
  void SetUp() override {
    simulated_gpu_options steady;
    steady.times = simulated_gpu_options::call_times::median;
    make(std::move(steady));
    silent = std::make_shared<silent_about_captures>(gpu);
    watched = std::make_shared<dead_streams>(silent);
    below = pool::create(watched, {}).value();
    memory = std::make_unique<planned_resource>(*below);
    s = stream();
    t = stream();
  }
  void TearDown() override {
    if (memory != nullptr) {
      EXPECT_EQ(memory->deallocation_errors(), 0u);
    }
    memory.reset();
    EXPECT_EQ(below->deallocation_errors(), 0u);
    EXPECT_EQ(below->statistics().live_bytes, 0u);
    EXPECT_THAT(watched->named(), IsEmpty());
    below.reset();
    sim_test::TearDown();
  }
  // The checker is informed of every block.
  void* take(planned_stream from, stream_handle on, std::uint64_t bytes = size) {
    void* ptr = nullptr;
    {
      const simulated_gpu::library_scope library;
      ptr = from.allocate(bytes);
    }
    gpu->note_allocate(reinterpret_cast<device_address>(ptr), bytes, on, "planned");
    return ptr;
  }
  void give(planned_stream from, void* ptr, stream_handle on, std::uint64_t bytes = size) {
    gpu->note_free(reinterpret_cast<device_address>(ptr), bytes, on, "planned");
    const simulated_gpu::library_scope library;
    from.deallocate(ptr, bytes);
  }
  void work(void* ptr, stream_handle on, std::uint64_t ns = 1000) {
    const auto at = reinterpret_cast<device_address>(ptr);
    ok(gpu->launch({"work", ns, {{at, MiB, access_kind::write}}}, on));
  }
  void* once(planned_stream from, stream_handle on, std::uint64_t ns = 1000, std::uint64_t key = 1,
             std::uint64_t bytes = size) {
    from.begin(key);
    void* const ptr = take(from, on, bytes);
    work(ptr, on, ns);
    give(from, ptr, on, bytes);
    from.end();
    return ptr;
  }
  void begin_capture(stream_handle on) { ok(gpu->capture_begin(on, capture_mode::relaxed)); }
  graph_exec_handle end_capture(stream_handle on) {
    graph_handle graph = nullptr;
    ok(gpu->capture_end(on, &graph));
    graph_exec_handle exec = nullptr;
    ok(gpu->graph_instantiate(&exec, graph));
    ok(gpu->graph_destroy(graph));
    return exec;
  }
  void destroy(graph_exec_handle exec) {
    ok(gpu->graph_exec_destroy(exec));
    ok(gpu->context_synchronize());
  }

  std::shared_ptr<silent_about_captures> silent;
  std::shared_ptr<dead_streams> watched;
  std::shared_ptr<pool> below;
  std::unique_ptr<planned_resource> memory;
  stream_handle s = nullptr, t = nullptr;
};

TEST_F(planned_captures, an_iteration_that_began_before_its_capture_is_the_upstreams_in_it) {
  planned_stream per_stream = memory->on_stream(s);
  once(per_stream, s);
  void* const arena = once(per_stream, s);
  per_stream.begin(1);
  begin_capture(s);
  void* const inside = take(per_stream, s);
  EXPECT_NE(inside, arena);
  work(inside, s);
  give(per_stream, inside, s);
  const graph_exec_handle exec = end_capture(s);
  per_stream.end();
  EXPECT_EQ(once(per_stream, s), arena) << "the arena goes on serving iterations outside";
  once(per_stream, s, 1000, 2, 256 * MiB);  // and grows: its old block goes to whoever asks
  ok(gpu->stream_synchronize(s));
  ok(gpu->graph_launch(exec, t));
  void* const others = below->allocate(size, t);
  EXPECT_NE(others, inside);
  below->deallocate(others, size, t);
  destroy(exec);
}

TEST_F(planned_captures, an_iteration_that_goes_on_after_its_capture_is_the_upstreams) {
  planned_stream per_stream = memory->on_stream(s);
  per_stream.begin(1);
  for (int block = 0; block < 2; ++block) give(per_stream, take(per_stream, s), s);
  per_stream.end();
  ok(gpu->stream_synchronize(s));
  begin_capture(s);
  per_stream.begin(1);
  void* const inside = take(per_stream, s);
  work(inside, s);
  give(per_stream, inside, s);
  const graph_exec_handle exec = end_capture(s);
  EXPECT_EQ(per_stream.counters().served, 1u);
  ok(gpu->graph_launch(exec, t));
  void* const outside = take(per_stream, s);
  work(outside, s);
  EXPECT_EQ(per_stream.counters().served, 1u);
  EXPECT_NE(outside, inside);
  give(per_stream, outside, s);
  per_stream.end();
  destroy(exec);
}

TEST_F(planned_captures, what_a_capture_frees_keeps_its_place_until_the_graph_is_gone) {
  planned_stream per_stream = memory->on_stream(s);
  once(per_stream, s);
  per_stream.begin(1);
  void* const block = take(per_stream, s);
  EXPECT_EQ(per_stream.counters().served, 1u);
  begin_capture(s);
  work(block, s, 5 * millisecond);
  give(per_stream, block, s);
  const graph_exec_handle exec = end_capture(s);
  per_stream.end();
  ok(gpu->graph_launch(exec, t));
  for (int round = 0; round < 2; ++round) {
    per_stream.begin(1);
    void* const other = take(per_stream, s);
    EXPECT_NE(other, block) << "the graph writes there";
    work(other, s);
    give(per_stream, other, s);
    per_stream.end();
  }
  EXPECT_EQ(per_stream.counters().served, 1u);
  EXPECT_EQ(per_stream.counters().late_frees, 2u);
  std::vector<error> errors;
  memory->set_error_sink([&](const error& e) { errors.push_back(e); });
  per_stream.deallocate(block, size);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code, error_code::double_free);
  destroy(exec);
  per_stream.begin(1);
  EXPECT_EQ(per_stream.allocate(size), block);
  per_stream.deallocate(block, size);
  per_stream.end();
  EXPECT_EQ(memory->deallocation_errors(), 1u);
  memory.reset();
}

TEST_F(planned_captures, a_program_that_promises_it_pays_no_question_a_block) {
  memory = std::make_unique<planned_resource>(*below, planned_options{.asks_each_block = false});
  planned_stream per_stream = memory->on_stream(s);
  once(per_stream, s);
  per_stream.begin(1);
  const std::uint64_t before = gpu->calls("cuStreamGetCaptureInfo");
  per_stream.deallocate(per_stream.allocate(size), size);
  EXPECT_EQ(gpu->calls("cuStreamGetCaptureInfo"), before);
  per_stream.end();
  EXPECT_EQ(per_stream.counters().served, 1u);
}

// --- Where nothing can be asked

TEST_F(planned_captures, an_end_that_cannot_ask_leaves_no_older_mark_behind) {
  planned_stream per_stream = memory->on_stream(s);
  once(per_stream, s);
  once(per_stream, s);
  ok(gpu->stream_synchronize(s));
  per_stream.begin(1);
  void* const block = take(per_stream, s);
  work(block, s, 5 * millisecond);
  give(per_stream, block, s);
  silent->on = true;
  per_stream.end();
  silent->on = false;
  begin_capture(s);
  per_stream.begin(1);
  void* const inside = take(per_stream, s);
  EXPECT_NE(inside, block) << "its work still runs, and no event is behind it";
  give(per_stream, inside, s);
  per_stream.end();
  EXPECT_EQ(per_stream.counters().stream_waits, 1u);
  destroy(end_capture(s));
}

// --- The end

TEST_F(planned_captures, it_may_end_after_its_streams_and_names_none_of_them) {
  below->deallocate(below->allocate(MiB, t), MiB, t);  // with two streams the pool asks and seals
  planned_stream per_stream = memory->on_stream(s);
  once(per_stream, s);
  void* const arena = once(per_stream, s, 5 * millisecond);
  ok(watched->stream_destroy(s));
  forget(s);
  memory.reset();
  EXPECT_EQ(below->statistics().live_bytes, 0u);
  // Whoever has the memory next comes after the work.
  const simulated_gpu::library_scope library;
  std::vector<void*> blocks;
  for (int i = 0; i < 2; ++i) {
    blocks.push_back(below->allocate(size, t));
    gpu->note_allocate(reinterpret_cast<device_address>(blocks.back()), size, t, "next");
    work(blocks.back(), t);
  }
  for (void* const each : blocks) {
    gpu->note_free(reinterpret_cast<device_address>(each), size, t, "next");
    below->deallocate(each, size, t);
  }
  EXPECT_NE(arena, nullptr);
}

TEST_F(planned_captures, it_may_end_in_an_open_iteration_whose_stream_is_gone) {
  planned_stream per_stream = memory->on_stream(s);
  once(per_stream, s);
  per_stream.begin(1);
  void* const block = take(per_stream, s);
  work(block, s, 5 * millisecond);
  gpu->note_free(reinterpret_cast<device_address>(block), size, s, "left to the end");
  ok(watched->stream_destroy(s));
  forget(s);
  const std::uint64_t before = gpu->now_ns();
  memory.reset();
  EXPECT_GE(gpu->now_ns() - before, 4 * millisecond);
  EXPECT_EQ(below->statistics().live_bytes, 0u);
}

TEST_F(planned_captures, its_end_leaves_captures_of_others_whole) {
  // For programs that capture unseen by the pool: it records no event over the context.
  pool_options options;
  options.fences = context_fences::never;
  const auto under = pool::create(watched, options).value();
  for (const capture_mode mode :
       {capture_mode::global, capture_mode::thread_local_, capture_mode::relaxed}) {
    auto one = std::make_unique<planned_resource>(*under);
    planned_stream per_stream = one->on_stream(s);
    once(per_stream, s);
    ok(gpu->stream_synchronize(s));
    begin_capture(s);
    once(per_stream, s);  // the arena is the graph's
    destroy(end_capture(s));
    others_capture capture(*gpu, mode);
    {
      planned_resource other(*under);
      planned_stream of_t = other.on_stream(t);
      once(of_t, t);
      of_t.begin(1);
      static_cast<void>(of_t.allocate(size));  // left open: the end waits for the device
    }
    one.reset();
    EXPECT_TRUE(capture.end().ok()) << static_cast<int>(mode);
  }
}

}  // namespace
}  // namespace millpond
