// The planned resource over a pool on the simulated GPU: the contract of every resource, captures,
// streams whose handle comes back, threads with a per_stream each. The simulator's checker judges
// each reuse.
#include <gmock/gmock.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"
#include "millpond/planned/planned_resource.hpp"
#include "millpond/pool/pool.hpp"
#include "support/resource_contract_tests.hpp"

namespace millpond {
namespace {

// --- The contract
// ---------------------------------------------------------------------------------------

testing::contract_subject over_a_pool(std::shared_ptr<driver> gpu) {
  auto answer = pool::create(std::move(gpu), {});
  if (!answer) throw memory_error(answer.error());
  testing::contract_subject subject;
  auto& below = subject.add(*answer);
  subject.add(std::make_shared<planned_resource>(below));
  return subject;
}

// An iteration that is always open on the null stream, with places of the sizes that the suite asks
// for.
testing::contract_subject in_an_iteration(std::shared_ptr<driver> gpu) {
  testing::contract_subject subject = over_a_pool(std::move(gpu));
  planned_stream per_stream = static_cast<planned_resource*>(subject.memory)->on_stream(nullptr);
  per_stream.begin(1);
  for (int round = 0; round < 8; ++round) {
    std::vector<std::pair<void*, std::uint64_t>> blocks;
    for (const std::uint64_t bytes : {std::uint64_t{100}, std::uint64_t{4096}, 64 * KiB, 10 * MiB})
      if (const auto block = per_stream.try_allocate(bytes))
        blocks.emplace_back(*block, bytes);  // a planted fault is no end
    for (const auto& [block, bytes] : blocks) per_stream.deallocate(block, bytes);
  }
  per_stream.end();
  per_stream.begin(1);
  return subject;
}

std::vector<testing::contract_case> planned() {
  std::vector<testing::contract_case> all(2);
  all[0].name = "planned_resource";
  all[0].make = over_a_pool;
  all[1].name = "planned_resource_in_an_iteration";
  all[1].make = in_an_iteration;
  return all;
}

}  // namespace
namespace testing {
INSTANTIATE_TEST_SUITE_P(planned, resource_contract, ::testing::ValuesIn(planned()), contract_name);
}  // namespace testing
namespace {

// --- Streams and captures
// -------------------------------------------------------------------------------

class planned_order : public sim_test {
 protected:
  void start(planned_options options = {}) {
    simulated_gpu_options steady;
    steady.times = simulated_gpu_options::call_times::median;
    make(std::move(steady));
    auto made = pool::create(gpu, {});
    ASSERT_TRUE(made.has_value()) << made.error().message;
    below = *made;
    memory = std::make_unique<planned_resource>(*below, options);
  }
  void TearDown() override {
    if (memory != nullptr) {
      EXPECT_EQ(memory->deallocation_errors(), 0u);
    }
    memory.reset();
    below.reset();
    sim_test::TearDown();
  }

  // Three layers of `unit` bytes or so: each writes its output, the checker is informed of every
  // block.
  void run(planned_stream per_stream, std::uint64_t key, std::uint64_t unit, stream_handle s,
           std::uint64_t kernel_ns = 1000) {
    per_stream.begin(key);
    void* before = take(per_stream, unit, s);
    work(before, unit, s, kernel_ns);
    for (std::uint64_t layer = 1; layer <= 3; ++layer) {
      void* const output = take(per_stream, unit * layer, s);
      work(output, unit * layer, s, kernel_ns);
      give(per_stream, before, layer == 1 ? unit : unit * (layer - 1), s);
      before = output;
    }
    give(per_stream, before, unit * 3, s);
    per_stream.end();
  }
  void* take(planned_stream per_stream, std::uint64_t bytes, stream_handle s) {
    void* ptr = nullptr;
    {
      const simulated_gpu::library_scope library;
      ptr = per_stream.allocate(bytes);
    }
    gpu->note_allocate(reinterpret_cast<device_address>(ptr), bytes, s, "planned");
    taken.push_back(ptr);
    return ptr;
  }
  void give(planned_stream per_stream, void* ptr, std::uint64_t bytes, stream_handle s) {
    gpu->note_free(reinterpret_cast<device_address>(ptr), bytes, s, "planned");
    const simulated_gpu::library_scope library;
    per_stream.deallocate(ptr, bytes);
  }
  void work(void* ptr, std::uint64_t bytes, stream_handle s, std::uint64_t kernel_ns) {
    kernel_description kernel;
    kernel.name = "work";
    kernel.duration_ns = kernel_ns;
    kernel.accesses.push_back({reinterpret_cast<device_address>(ptr), bytes, access_kind::write});
    ok(gpu->launch(std::move(kernel), s));
  }
  graph_exec_handle capture(planned_stream per_stream, std::uint64_t key, std::uint64_t unit,
                            stream_handle s) {
    ok(gpu->capture_begin(s, capture_mode::global));
    capture_info info;
    ok(gpu->stream_capture(s, &info));
    for (const std::uint64_t before : captures)
      gpu->note_shared_captures(before, info.id);  // as documented: graphs of one per_stream
    captures.push_back(info.id);
    run(per_stream, key, unit, s);
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    graph_exec_handle exec = nullptr;
    ok(gpu->graph_instantiate(&exec, graph));
    ok(gpu->graph_destroy(graph));
    return exec;
  }

  std::shared_ptr<pool> below;
  std::unique_ptr<planned_resource> memory;
  std::vector<void*> taken;  // in order
  std::vector<std::uint64_t> captures;
};

TEST_F(planned_order, a_graphs_memory_is_planned_and_nothing_else_is_put_there_while_it_lives) {
  start();
  const stream_handle s = stream(), other = stream();
  planned_stream per_stream = memory->on_stream(s);
  run(per_stream, 1, MiB, s);
  EXPECT_EQ(per_stream.counters().arena_bytes, 5 * MiB);
  ok(gpu->stream_synchronize(s));
  const graph_exec_handle exec = capture(per_stream, 1, MiB, s);
  EXPECT_EQ(per_stream.counters().served, 4u);
  EXPECT_EQ(per_stream.counters().arena_bytes, 5 * MiB) << "the arena is the graph's now";
  for (int round = 0; round < 3; ++round) {
    ok(gpu->graph_launch(exec, other));  // on any stream, at any time
    run(per_stream, 1, MiB, s);
    run(per_stream, 2, 8 * MiB, s);
  }
  EXPECT_EQ(per_stream.counters().served, 4u + 3 * 4 + 2 * 4);
  EXPECT_EQ(per_stream.counters().arena_bytes, 5 * MiB + 40 * MiB);
  ok(gpu->stream_synchronize(other));
  ok(gpu->graph_exec_destroy(exec));
  ok(gpu->context_synchronize());
  run(per_stream, 3, 16 * MiB, s);  // growing again, it finds the graph gone
  EXPECT_EQ(per_stream.counters().arena_bytes, 80 * MiB);
}

TEST_F(planned_order, a_capture_takes_the_arena_only_when_the_stream_was_seen_idle) {
  start();
  const stream_handle s = stream();
  planned_stream per_stream = memory->on_stream(s);
  run(per_stream, 1, MiB, s);
  run(per_stream, 1, MiB, s, 5'000'000);
  const graph_exec_handle exec = capture(per_stream, 1, MiB, s);
  EXPECT_EQ(per_stream.counters().served, 4u) << "the capture is the upstream's";
  EXPECT_EQ(per_stream.counters().stream_waits, 1u);
  ok(gpu->graph_launch(exec, s));
  ok(gpu->stream_synchronize(s));
  ok(gpu->graph_exec_destroy(exec));
}

TEST_F(planned_order, a_block_used_after_its_iteration_keeps_the_arena_from_a_capture) {
  start();
  const stream_handle s = stream();
  planned_stream per_stream = memory->on_stream(s);
  run(per_stream, 1, MiB, s);
  per_stream.begin(1);
  void* const block = take(per_stream, MiB, s);
  per_stream.end();
  ok(gpu->stream_synchronize(s));
  work(block, MiB, s, 5'000'000);
  give(per_stream, block, MiB, s);
  const graph_exec_handle exec = capture(per_stream, 1, MiB, s);
  EXPECT_EQ(per_stream.counters().served, 1u) << "the capture is the upstream's";
  EXPECT_EQ(per_stream.counters().stream_waits, 1u);
  ok(gpu->graph_launch(exec, s));
  ok(gpu->stream_synchronize(s));
  ok(gpu->graph_exec_destroy(exec));
}

TEST_F(planned_order, graphs_of_several_batches_share_one_arena) {
  start();
  const stream_handle s = stream();
  planned_stream per_stream = memory->on_stream(s);
  for (std::uint64_t batch = 4; batch >= 1; --batch) run(per_stream, batch, batch * MiB, s);
  ok(gpu->stream_synchronize(s));
  std::vector<graph_exec_handle> graphs;
  for (std::uint64_t batch = 4; batch >= 1; --batch) {
    graphs.push_back(capture(per_stream, batch, batch * MiB, s));
    ok(gpu->context_synchronize());
  }
  EXPECT_EQ(per_stream.counters().served, 4u * 4);
  EXPECT_EQ(per_stream.counters().arena_bytes, 20 * MiB);
  for (const graph_exec_handle each : graphs) ok(gpu->graph_launch(each, s));
  ok(gpu->stream_synchronize(s));
  for (const graph_exec_handle each : graphs) ok(gpu->graph_exec_destroy(each));
}

TEST_F(planned_order, an_iteration_captured_before_it_was_learned_is_the_upstreams) {
  start();
  const stream_handle s = stream();
  planned_stream per_stream = memory->on_stream(s);
  const graph_exec_handle exec = capture(per_stream, 1, MiB, s);
  EXPECT_EQ(per_stream.counters().served, 0u);
  EXPECT_EQ(per_stream.counters().arena_bytes, 0u)
      << "an arena made in a capture would be the graph's";
  ok(gpu->graph_launch(exec, s));
  run(per_stream, 1, MiB, s);
  EXPECT_EQ(per_stream.counters().served, 4u);
  ok(gpu->stream_synchronize(s));
  ok(gpu->graph_exec_destroy(exec));
}

TEST_F(planned_order, a_stream_whose_handle_came_back_waits_for_the_work_of_the_old_one) {
  start();
  const stream_handle old = stream();
  planned_stream per_stream = memory->on_stream(old);
  run(per_stream, 1, MiB, old);
  run(per_stream, 1, MiB, old, 5'000'000);
  EXPECT_EQ(per_stream.counters().served, 4u);
  ok(gpu->stream_destroy(old));
  forget(old);
  const stream_handle back = stream();
  ASSERT_EQ(back, old) << "the simulated GPU gives handles again, as the card does";
  run(per_stream, 1, MiB, back);
  EXPECT_EQ(per_stream.counters().served, 4u);
  EXPECT_EQ(per_stream.counters().stream_waits, 1u);
  gpu->advance(100'000'000);
  run(per_stream, 1, MiB, back);
  EXPECT_EQ(per_stream.counters().served, 8u);
  EXPECT_EQ(per_stream.counters().stream_waits, 1u);
}

TEST_F(planned_order, a_stream_destroyed_in_the_middle_of_an_iteration_leaves_its_arena_behind) {
  start();
  const stream_handle old = stream();
  planned_stream per_stream = memory->on_stream(old);
  run(per_stream, 1, MiB, old);
  per_stream.begin(1);
  void* const block = take(per_stream, MiB, old);
  work(block, MiB, old, 5'000'000);
  ok(gpu->stream_destroy(old));
  forget(old);
  const stream_handle back = stream();
  ASSERT_EQ(back, old);
  run(per_stream, 1, MiB, back);  // the block is live still: the upstream's
  EXPECT_EQ(per_stream.counters().served, 1u);
  ok(gpu->context_synchronize());
  give(per_stream, block, MiB, back);
  run(per_stream, 1, MiB, back);
  EXPECT_EQ(per_stream.counters().served, 1u + 4);
  EXPECT_EQ(per_stream.counters().arena_bytes, 2u * 5 * MiB);
}

TEST_F(planned_order, iterations_overlap_with_nothing_but_their_own_stream) {
  start();
  const stream_handle a = stream(), b = stream();
  planned_stream on_a = memory->on_stream(a), on_b = memory->on_stream(b);
  for (int round = 0; round < 6; ++round) {
    run(on_a, 1, 2 * MiB, a, 300'000);
    run(on_b, 1, 2 * MiB, b, 100'000);
  }
  EXPECT_EQ(memory->counters().served, 2u * 5 * 4);
}

// --- Threads and forks
// ----------------------------------------------------------------------------------

TEST_F(planned_order, threads_with_a_cache_each_are_served_while_another_reads_the_counters) {
  start();
  constexpr std::size_t thread_count = 4;
  constexpr std::uint64_t rounds = 60;
  std::vector<stream_handle> streams;
  for (std::size_t t = 0; t < thread_count; ++t) streams.push_back(stream());
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      EXPECT_TRUE(gpu->bind_thread().ok());
      planned_stream per_stream =
          memory->on_stream(streams[t]);  // streams are made while others serve
      for (std::uint64_t round = 0; round < rounds; ++round) {
        per_stream.begin(round % 3);
        std::vector<std::pair<void*, std::uint64_t>> live;
        for (std::uint64_t k = 0; k < 20; ++k) {
          const std::uint64_t bytes = 1000 * (1 + (k * 7 + round % 3) % 11);
          // Half by the per_stream, half through the interface.
          live.emplace_back(
              k % 2 == 0 ? per_stream.allocate(bytes) : memory->allocate(bytes, streams[t]), bytes);
          if (k % 3 != 2) continue;
          memory->deallocate(live.front().first, live.front().second, streams[t]);
          live.erase(live.begin());
        }
        for (const auto& [ptr, bytes] : live) per_stream.deallocate(ptr, bytes);
        per_stream.end();
      }
    });
  }
  std::uint64_t seen = 0;
  std::thread reader([&] {
    while (!over.load()) {
      const std::uint64_t served = memory->counters().served;
      EXPECT_GE(served, seen);
      seen = served;
    }
  });
  for (std::thread& each : threads) each.join();
  over.store(true);
  reader.join();
  const planned_counters counted = memory->counters();
  EXPECT_EQ(counted.served, thread_count * (rounds - 3) * 20);
  EXPECT_EQ(counted.deviations + counted.late_frees + counted.skipped, 0u);
}

TEST_F(planned_order, a_forked_child_is_refused_by_caches_too) {
  start();
  const stream_handle s = stream();
  planned_stream per_stream = memory->on_stream(s);
  run(per_stream, 1, MiB, s);
  per_stream.begin(1);
  void* const block = per_stream.allocate(MiB);
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto answer = per_stream.try_allocate(MiB);
    const bool refused = !answer && answer.error().code == error_code::not_permitted;
    memory->set_error_sink([](const error&) {});
    per_stream.deallocate(block, MiB);
    per_stream.end();
    _exit(refused && memory->deallocation_errors() == 1 && per_stream.counters().served == 1 ? 0
                                                                                             : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  per_stream.deallocate(block, MiB);
  per_stream.end();
}

}  // namespace
}  // namespace millpond
