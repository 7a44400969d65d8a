// The pool on a real card, where the simulator's checker cannot look: identity kernels say what a
// block holds. The same tests run over the simulated GPU with contents kept, so that they are right
// before a card sees them.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "millpond/base/units.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::testing {
namespace {

using shared_driver = std::shared_ptr<driver>;

shared_driver open_card() {
  static const shared_driver opened = [] {
    auto answer = open_cuda_driver(0);
    return answer ? *answer : shared_driver();
  }();
  return opened;
}
shared_driver open_simulated() {
  simulated_gpu_options options;
  options.mode = simulated_gpu_options::contents::bytes;
  auto made = simulated_gpu::create(options);
  return made ? *made : shared_driver();
}

struct place {
  const char* name;
  shared_driver (*open)();
};

class pool_on : public ::testing::TestWithParam<place> {
 protected:
  void SetUp() override {
    gpu = GetParam().open();
    if (gpu == nullptr) GTEST_SKIP() << open_cuda_driver(0).error().message;
    ok(gpu->bind_thread());
    auto made = pool::create(gpu, {});
    ASSERT_TRUE(made) << made.error().message;
    memory = *made;
    void* raw = nullptr;
    ok(gpu->host_allocate(&raw, sizeof(identity_report), driver::host_flags::none));
    report = new (raw) identity_report{};
  }
  void TearDown() override {
    if (gpu == nullptr) return;
    if (memory != nullptr) {
      memory->check();
      EXPECT_EQ(memory->deallocation_errors(), 0u);
    }
    memory.reset();
    if (report != nullptr) {
      EXPECT_EQ(report->mismatches, 0u) << "identity " << report->expected << " expected";
      ok(gpu->host_free(report));
    }
    for (const stream_handle s : streams) ok(gpu->stream_destroy(s));
  }

  static void ok(call_result answer, int line = __builtin_LINE()) {
    EXPECT_TRUE(answer.ok()) << "line " << line << ": " << answer.call << " answered "
                             << static_cast<int>(answer.status);
  }
  stream_handle stream() {
    stream_handle made = nullptr;
    ok(gpu->stream_create(&made));
    streams.push_back(made);
    return made;
  }
  void* take(std::uint64_t bytes, stream_handle s, int line = __builtin_LINE()) {
    auto got = memory->try_allocate(bytes, default_alignment, s);
    EXPECT_TRUE(got) << "line " << line << ": " << (got ? "" : got.error().message);
    return got ? *got : nullptr;
  }
  void give(void* at, std::uint64_t bytes, stream_handle s) { memory->deallocate(at, bytes, s); }
  void write(void* at, std::uint64_t bytes, std::uint64_t identity, stream_handle s) {
    const identity_block one{reinterpret_cast<std::uintptr_t>(at), bytes, identity};
    ok(gpu->identity_write({&one, 1}, s));
  }
  void verify(void* at, std::uint64_t bytes, std::uint64_t identity, stream_handle s) {
    const identity_block one{reinterpret_cast<std::uintptr_t>(at), bytes, identity};
    ok(gpu->identity_check({&one, 1}, report, s));
  }
  graph_exec_handle finish(stream_handle s) {
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    graph_exec_handle exec = nullptr;
    ok(gpu->graph_instantiate(&exec, graph));
    ok(gpu->graph_destroy(graph));
    return exec;
  }

  shared_driver gpu;
  std::shared_ptr<pool> memory;
  identity_report* report = nullptr;
  std::vector<stream_handle> streams;
};

constexpr std::uint64_t large = 8 * MiB;

// A graph that writes and checks blocks of its own, launched many times, while the program keeps
// allocating, writing and checking blocks of the same sizes on another stream.
TEST_P(pool_on, a_graphs_blocks_are_its_own_through_many_launches) {
  for (const capture_mode mode :
       {capture_mode::global, capture_mode::thread_local_, capture_mode::relaxed}) {
    const stream_handle a = stream(), b = stream();
    for (int i = 0; i < 4; ++i) give(take(large, a), large, a);
    ok(gpu->capture_begin(a, mode));
    std::vector<void*> inside;
    for (std::uint64_t i = 0; i < 4; ++i) {
      inside.push_back(take(large, a));
      write(inside.back(), large, 100 + i, a);
    }
    void* const small = take(3000, a);
    write(small, 3000, 77, a);
    for (std::uint64_t i = 0; i < 4; ++i) verify(inside[i], large, 100 + i, a);
    verify(small, 3000, 77, a);
    give(small, 3000, a);
    for (void* at : inside) give(at, large, a);
    // Freed in the capture: the capture may have it again.
    void* const again = take(large, a);
    write(again, large, 200, a);
    verify(again, large, 200, a);
    give(again, large, a);
    // A capture on one stream does not stop another from being served. Memory is only asked for
    // here: what a thread may call beside a global capture is the program's affair.
    void* const beside = take(large, b);
    const graph_exec_handle exec = finish(a);
    write(beside, large, 9, b);
    for (std::uint64_t launch = 0; launch < 10; ++launch) {
      ok(gpu->graph_launch(exec, launch % 2 == 0 ? a : b));
      void* const other = take(large, b);
      write(other, large, 1000 + launch, b);
      verify(other, large, 1000 + launch, b);
      give(other, large, b);
      if (launch % 2 == 0) ok(gpu->stream_synchronize(a));
      ok(gpu->stream_synchronize(b));
    }
    verify(beside, large, 9, b);
    give(beside, large, b);
    EXPECT_GE(memory->statistics().capture_bytes, large);
    ok(gpu->graph_exec_destroy(exec));
    ok(gpu->context_synchronize());
    EXPECT_EQ(memory->statistics().live_blocks, 0u);
  }
}

// Two graphs of one arena launched in turn, each writing and checking all of its blocks, while the
// program does the same beside them; together they reserve about what one needs.
TEST_P(pool_on, two_graphs_of_one_arena_keep_their_contents_through_alternating_launches) {
  const stream_handle a = stream(), b = stream();
  graph_arena arena = memory->make_graph_arena();
  constexpr std::uint64_t blocks = 6;
  std::vector<graph_exec_handle> graphs;
  std::vector<std::uint64_t> reserved;
  void* handed_on = nullptr;  // the first graph's result, which the second checks
  for (std::uint64_t g = 0; g < 2; ++g) {
    ok(gpu->capture_begin(a, g == 0 ? capture_mode::global : capture_mode::relaxed));
    const auto attached = memory->capture_into(arena, a);
    ASSERT_TRUE(attached) << attached.error().message;
    if (g == 1) verify(handed_on, large, 4711, a);
    auto cache = memory->capture_cache(a);
    std::vector<void*> inside;
    for (std::uint64_t i = 0; i < blocks; ++i) {
      inside.push_back(i % 2 == 0 ? take(large, a) : cache.allocate(large));
      write(inside.back(), large, 100 * (g + 1) + i, a);
    }
    for (std::uint64_t i = 0; i < blocks; ++i) verify(inside[i], large, 100 * (g + 1) + i, a);
    if (g == 0) {
      handed_on = take(large, a);
      write(handed_on, large, 4711, a);
    }
    for (std::uint64_t i = 0; i < blocks; ++i) {
      if (i % 2 == 0)
        give(inside[i], large, a);
      else
        cache.deallocate(inside[i], large);
    }
    {
      const auto gone = std::move(cache);
    }
    graphs.push_back(finish(a));
    reserved.push_back(memory->statistics().reserved_bytes);
  }
  EXPECT_EQ(reserved[1], reserved[0]) << "the second graph needs nothing of its own";
  EXPECT_LE(reserved[1], (blocks + 1) * large + (blocks + 1) * large / 4)
      << "the largest, not the sum";
  std::printf("one graph reserves %llu MiB, both %llu MiB\n",
              static_cast<unsigned long long>(reserved[0] / MiB),
              static_cast<unsigned long long>(reserved[1] / MiB));
  for (std::uint64_t launch = 0; launch < 200; ++launch) {
    ok(gpu->graph_launch(graphs[launch % 2], a));
    void* const other = take(large, b);
    write(other, large, 5000 + launch, b);
    verify(other, large, 5000 + launch, b);
    give(other, large, b);
    if (launch % 20 == 19) {
      ok(gpu->stream_synchronize(a));
      ok(gpu->stream_synchronize(b));
    }
  }
  ok(gpu->stream_synchronize(a));
  ok(gpu->graph_exec_destroy(graphs[0]));
  verify(handed_on, large, 4711, a);  // it outlives its graph while the arena is held
  give(handed_on, large, a);
  ok(gpu->graph_exec_destroy(graphs[1]));
  arena = {};
  ok(gpu->context_synchronize());
  for (int i = 0;
       i < 2000 && memory->statistics().graph_arenas + memory->statistics().captures != 0; ++i) {
    static_cast<void>(memory->trim());
    ok(gpu->spin(1'000'000, a));
    ok(gpu->stream_synchronize(a));
  }
  static_cast<void>(memory->trim());
  EXPECT_EQ(memory->statistics().graph_arenas, 0u);
  EXPECT_EQ(memory->statistics().live_blocks, 0u);
  EXPECT_EQ(memory->statistics().reserved_bytes, 0u);
}

TEST_P(pool_on, a_released_graphs_memory_comes_back) {
  const stream_handle a = stream();
  ok(gpu->capture_begin(a, capture_mode::global));
  void* const inside = take(large, a);
  write(inside, large, 5, a);
  verify(inside, large, 5, a);
  give(inside, large, a);
  const graph_exec_handle exec = finish(a);
  ok(gpu->graph_launch(exec, a));
  ok(gpu->graph_exec_destroy(exec));
  ok(gpu->context_synchronize());
  // The driver tells of the graph's end on a thread of its own, soon and not at once.
  for (int i = 0; i < 2000 && memory->statistics().captures != 0; ++i) {
    static_cast<void>(memory->trim());
    ok(gpu->spin(1'000'000, a));
    ok(gpu->stream_synchronize(a));
  }
  static_cast<void>(memory->trim());
  EXPECT_EQ(memory->statistics().captures, 0u);
  EXPECT_EQ(memory->statistics().reserved_bytes, 0u);
}

TEST_P(pool_on, a_capture_that_is_thrown_away_gives_everything_back) {
  const stream_handle a = stream();
  ok(gpu->capture_begin(a, capture_mode::global));
  void* const inside = take(large, a);
  write(inside, large, 5, a);
  give(inside, large, a);
  graph_handle graph = nullptr;
  ok(gpu->capture_end(a, &graph));
  ok(gpu->graph_destroy(graph));
  for (int i = 0; i < 2000 && memory->statistics().captures != 0; ++i) {
    static_cast<void>(memory->trim());
    ok(gpu->spin(1'000'000, a));
    ok(gpu->stream_synchronize(a));
  }
  static_cast<void>(memory->trim());
  EXPECT_EQ(memory->statistics().reserved_bytes, 0u);
}

// A stream goes with work behind its last free, and the next stream may get its handle: the block
// must not be the new stream's before that work is done.
TEST_P(pool_on, a_handle_that_comes_back_is_another_stream) {
  unsigned came_back = 0;
  for (std::uint64_t round = 0; round < 100; ++round) {
    stream_handle old = nullptr;
    ok(gpu->stream_create(&old));
    void* const first = take(large, old);
    ok(gpu->spin(2'000'000, old));
    write(first, large, 2 * round, old);
    verify(first, large, 2 * round, old);
    give(first, large, old);
    ok(gpu->stream_destroy(old));
    stream_handle fresh = nullptr;
    ok(gpu->stream_create(&fresh));
    came_back += fresh == old ? 1U : 0U;
    void* const second = take(large, fresh);
    write(second, large, 2 * round + 1, fresh);
    ok(gpu->spin(1'000'000, fresh));
    verify(second, large, 2 * round + 1, fresh);
    give(second, large, fresh);
    ok(gpu->stream_synchronize(fresh));
    ok(gpu->stream_destroy(fresh));
  }
  RecordProperty("handles_that_came_back", static_cast<int>(came_back));
  if (came_back == 0)
    std::printf("no handle came back in 100 rounds: the case was not met\n");
  else
    std::printf("%u of 100 handles came back\n", came_back);
}

std::vector<place> places() {
  std::vector<place> all{{"simulated", open_simulated}};
  if (open_card() != nullptr) all.push_back({"card", open_card});
  return all;
}
INSTANTIATE_TEST_SUITE_P(gpu, pool_on, ::testing::ValuesIn(places()),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace millpond::testing
