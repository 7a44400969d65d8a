#include "bindings/torch/device_memory.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "support/others_capture.hpp"

namespace millpond::torch {
namespace {

class torch_memory : public ::testing::Test {
 protected:
  void SetUp() override {
    simulated_gpu_options options;
    options.memory_bytes = GiB;
    gpu = simulated_gpu::create(options).value();
    memory = device_memory::create(gpu, {}).value();
    ASSERT_TRUE(gpu->stream_create(&stream).ok());
    ASSERT_TRUE(gpu->stream_create(&capturing).ok());
  }
  // What a test leaves live goes with the pool, as tensors at the end of a process; that is
  // reported, and is no fault here.
  void TearDown() override {
    testing::internal::CaptureStderr();
    memory.reset();
    static_cast<void>(testing::internal::GetCapturedStderr());
    for (const violation& v : gpu->violations()) ADD_FAILURE() << v.text;
  }
  void* take(std::uint64_t bytes, stream_handle on) {
    const auto got = memory->allocate(bytes, on);
    EXPECT_TRUE(got.has_value()) << got.error().message;
    return got ? *got : nullptr;
  }
  void give(void* ptr, std::uint64_t bytes, stream_handle on) {
    const auto freed = memory->deallocate(ptr, bytes, on);
    EXPECT_TRUE(freed.has_value()) << freed.error().message;
  }
  // As PyTorch captures: its filter asks whether the stream is in this graph's capture.
  void begin(graph_pool_id id, stream_handle on) {
    memory->begin_graph_pool(id, [this](stream_handle asked) {
      capture_info capture;
      return gpu->stream_capture(asked, &capture).ok() && capture.status == capture_status::active;
    });
    ASSERT_TRUE(gpu->capture_begin(on, capture_mode::global).ok());
    library.emplace();  // from here to the end nothing that this thread calls may end up in the
                        // capture
  }
  graph_handle end(graph_pool_id id, stream_handle on) {
    library.reset();
    graph_handle graph = nullptr;
    EXPECT_TRUE(gpu->capture_end(on, &graph).ok());
    memory->end_graph_pool(id);
    return graph;
  }
  // PyTorch lets go of the graph pool first.
  void destroy(graph_pool_id id, graph_handle graph) {
    memory->release_graph_pool(id);
    EXPECT_TRUE(gpu->graph_destroy(graph).ok());
  }
  [[nodiscard]] std::uint64_t of_graphs() { return memory->statistics().graph_bytes; }

  std::shared_ptr<simulated_gpu> gpu;
  std::unique_ptr<device_memory> memory;
  stream_handle stream = nullptr, capturing = nullptr;
  std::optional<simulated_gpu::library_scope> library;
};

TEST_F(torch_memory, counts_what_was_asked_for_to_the_byte) {
  void* const a = take(1001, stream);
  void* const b = take(1002, stream);
  EXPECT_EQ(memory->statistics().requested, 2003u);
  EXPECT_TRUE(memory->deallocate(a, 1001, stream).has_value());
  EXPECT_EQ(memory->statistics().requested, 1002u);
  EXPECT_EQ(memory->statistics().peak_requested, 2003u);
  memory->reset_peaks();
  EXPECT_EQ(memory->statistics().peak_requested, 1002u);
  EXPECT_TRUE(memory->deallocate(b, 1002, stream).has_value());
  EXPECT_TRUE(memory->deallocate(nullptr, 0, stream).has_value());
  EXPECT_EQ(memory->allocate(0, stream).value(), nullptr);
}

TEST_F(torch_memory, a_capture_takes_from_its_graph_pool_and_nobody_else_does) {
  void* const outside = take(MiB, stream);
  begin({0, 7}, capturing);
  void* const inside = take(MiB, capturing);
  void* const still_outside = take(MiB, stream);
  EXPECT_EQ(of_graphs(), MiB);
  give(inside, MiB, capturing);
  EXPECT_EQ(take(MiB, capturing), inside);  // the same graph has it again
  const graph_handle graph = end({0, 7}, capturing);
  EXPECT_NE(take(MiB, capturing), inside);  // after the capture the stream is like any other
  EXPECT_EQ(memory->find(static_cast<char*>(inside) + 100).value().start, inside);
  EXPECT_EQ(of_graphs(), MiB);
  for (void* const p : {outside, still_outside}) give(p, MiB, stream);
  destroy({0, 7}, graph);
}

TEST_F(torch_memory, graphs_of_one_pool_share_its_memory_and_others_do_not) {
  const auto layers = [&] {
    for (int n = 0; n < 4; ++n) give(take(50 * MiB, capturing), 50 * MiB, capturing);
  };
  std::vector<graph_handle> graphs;
  for (int n = 0; n < 3; ++n) {
    begin({0, 1}, capturing);
    layers();
    graphs.push_back(end({0, 1}, capturing));
  }
  EXPECT_EQ(of_graphs(), 50 * MiB);
  begin({0, 2}, capturing);
  layers();
  graphs.push_back(end({0, 2}, capturing));
  EXPECT_EQ(of_graphs(), 100 * MiB);
  EXPECT_EQ(memory->statistics().peak_needed, 100 * MiB);
  EXPECT_LE(memory->statistics().reserved, 120 * MiB);
  for (const graph_handle g : graphs) EXPECT_TRUE(gpu->graph_destroy(g).ok());
  memory->release_graph_pool({0, 1});
  memory->release_graph_pool({0, 2});
  memory->empty_cache();
  EXPECT_EQ(of_graphs(), 0u);
  EXPECT_EQ(memory->statistics().reserved, 0u);
}

// torch.cuda.use_mem_pool: a filter that takes a stream which captures nothing.
TEST_F(torch_memory, a_graph_pool_without_a_capture_is_served_as_everything_else) {
  memory->begin_graph_pool({1, 0}, [](stream_handle) { return true; });
  void* const ptr = take(MiB, stream);
  EXPECT_EQ(of_graphs(), 0u);
  memory->end_graph_pool({1, 0});
  memory->release_graph_pool({1, 0});
  give(ptr, MiB, stream);
  EXPECT_FALSE(memory->serves_graphs());
  memory->empty_cache();
  EXPECT_EQ(memory->statistics().reserved, 0u);
}

TEST_F(torch_memory, what_graphs_keep_counts_as_needed_after_it_is_freed) {
  begin({0, 3}, capturing);
  void* const inside = take(2 * MiB, capturing);
  give(inside, 2 * MiB, capturing);
  EXPECT_EQ(take(MiB, capturing), inside);  // in what the graph has anyway
  const graph_handle graph = end({0, 3}, capturing);
  void* const outside = take(3 * MiB, stream);
  EXPECT_EQ(memory->statistics().peak_requested, 4 * MiB);
  EXPECT_EQ(memory->statistics().peak_needed, 5 * MiB);
  give(outside, 3 * MiB, stream);
  give(inside, MiB, capturing);
  destroy({0, 3}, graph);
  memory->empty_cache();
  memory->reset_peaks();
  EXPECT_EQ(memory->statistics().peak_needed, 0u);
}

TEST_F(torch_memory, empty_cache_gives_back_what_streams_freed_before_they_fell_silent) {
  void* const a = take(100 * MiB, stream);
  void* const b = take(200 * MiB, capturing);
  EXPECT_TRUE(memory->deallocate(a, 100 * MiB, stream).has_value());
  EXPECT_TRUE(memory->deallocate(b, 200 * MiB, capturing).has_value());
  memory->empty_cache();
  EXPECT_EQ(memory->statistics().reserved, 0u);
  EXPECT_NE(take(900 * MiB, capturing), nullptr);
}

TEST_F(torch_memory, memory_that_another_stream_freed_serves_when_the_device_is_full) {
  void* const a = take(900 * MiB, stream);
  EXPECT_TRUE(memory->deallocate(a, 900 * MiB, stream).has_value());
  void* const b = take(900 * MiB, capturing);
  EXPECT_TRUE(memory->deallocate(b, 900 * MiB, capturing).has_value());
}

// No event is recorded and none is asked while one stream is all there is; a program that has used
// several and then emptied the cache is such a program again.
TEST_F(torch_memory, one_stream_asks_the_driver_for_no_fence_even_after_others_were_used) {
  const auto churn = [&](stream_handle on) {
    for (int n = 0; n < 40; ++n) {
      void* const a = take(static_cast<std::uint64_t>(1 + n % 7) * 5 * MiB, on);
      void* const b = take(static_cast<std::uint64_t>(1 + n % 5) * 3 * MiB, on);
      give(a, static_cast<std::uint64_t>(1 + n % 7) * 5 * MiB, on);
      give(b, static_cast<std::uint64_t>(1 + n % 5) * 3 * MiB, on);
    }
  };
  churn(stream);
  EXPECT_EQ(memory->statistics().pool.seals, 0u);
  EXPECT_EQ(memory->statistics().pool.fence_queries, 0u);
  churn(capturing);
  begin({0, 1}, capturing);
  give(take(MiB, capturing), MiB, capturing);
  destroy({0, 1}, end({0, 1}, capturing));
  churn(stream);
  EXPECT_GT(memory->statistics().pool.seals, 0u);
  memory->empty_cache();
  const pool_statistics before = memory->statistics().pool;
  churn(stream);
  EXPECT_EQ(memory->statistics().pool.seals, before.seals);
  EXPECT_EQ(memory->statistics().pool.fence_queries, before.fence_queries);
}

TEST_F(torch_memory, a_tensor_outlives_its_graph) {
  begin({0, 1}, capturing);
  void* const kept = take(MiB, capturing);
  give(take(2 * MiB, capturing), 2 * MiB, capturing);
  destroy({0, 1}, end({0, 1}, capturing));
  memory->empty_cache();
  EXPECT_EQ(of_graphs(), MiB);
  EXPECT_EQ(memory->statistics().peak_needed, 3 * MiB);
  EXPECT_EQ(memory->find(kept).value().start, kept);
  give(kept, MiB, capturing);
  memory->empty_cache();
  EXPECT_EQ(of_graphs(), 0u);
  EXPECT_EQ(memory->statistics().reserved, 0u);
  EXPECT_FALSE(memory->serves_graphs());
  EXPECT_FALSE(memory->deallocate(kept, MiB, capturing).has_value());
}

TEST_F(torch_memory, nothing_waits_for_the_device_while_another_capture_runs) {
  begin({0, 1}, capturing);
  give(take(MiB, capturing), MiB, capturing);
  destroy({0, 1}, end({0, 1}, capturing));
  begin({0, 2}, capturing);
  const auto waits = gpu->device_waits();
  memory->empty_cache();
  EXPECT_EQ(gpu->device_waits(), waits);
  EXPECT_GT(memory->statistics().reserved, 0u);
  const graph_handle second = end({0, 2}, capturing);
  memory->empty_cache();
  EXPECT_EQ(memory->statistics().reserved, 0u);
  destroy({0, 2}, second);
}

// PyTorch does not tell the end of a capture that failed.
TEST_F(torch_memory, a_capture_that_failed_and_was_never_ended_gives_its_memory_back) {
  begin({0, 1}, capturing);
  void* const inside = take(600 * MiB, capturing);
  library.reset();
  EXPECT_FALSE(gpu->stream_query(capturing).ok());  // breaks it
  graph_handle none = nullptr;
  EXPECT_FALSE(gpu->capture_end(capturing, &none).ok());
  gpu->clear_violations();
  give(inside, 600 * MiB, capturing);
  memory->release_graph_pool({0, 1});
  EXPECT_NE(take(800 * MiB, stream), nullptr);
  EXPECT_EQ(of_graphs(), 0u);
  EXPECT_FALSE(memory->serves_graphs());
  memory->end_graph_pool({0, 1});  // too late changes nothing
}

TEST_F(torch_memory, pressure_takes_back_what_dead_graphs_left) {
  begin({0, 1}, capturing);
  give(take(600 * MiB, capturing), 600 * MiB, capturing);
  destroy({0, 1}, end({0, 1}, capturing));
  void* const large = take(800 * MiB, stream);  // of 1 GiB: not beside the graph's 600 MiB
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(memory->statistics().out_of_memory, 0u);
}

// The driver lets go of such a graph when it has run: what the wait for it makes known is used as
// well.
TEST_F(torch_memory, pressure_takes_back_what_a_graph_leaves_that_still_runs) {
  begin({0, 1}, capturing);
  void* const inside = take(600 * MiB, capturing);
  library.reset();
  ASSERT_TRUE(
      gpu->set_async(reinterpret_cast<device_address>(inside), 1, 600 * MiB, capturing).ok());
  library.emplace();
  give(inside, 600 * MiB, capturing);
  const graph_handle graph = end({0, 1}, capturing);
  graph_exec_handle exec = nullptr;
  ASSERT_TRUE(gpu->graph_instantiate(&exec, graph).ok());
  for (int n = 0; n < 3; ++n) ASSERT_TRUE(gpu->graph_launch(exec, capturing).ok());
  destroy({0, 1}, graph);
  EXPECT_TRUE(gpu->graph_exec_destroy(exec).ok());
  EXPECT_NE(take(800 * MiB, stream), nullptr);
  EXPECT_EQ(memory->statistics().out_of_memory, 0u);
}

TEST_F(torch_memory, running_out_in_a_capture_is_an_error_and_not_a_deadlock) {
  begin({0, 1}, capturing);
  const auto got = memory->allocate(2 * GiB, capturing);
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code, error_code::out_of_memory);
  EXPECT_NE(got.error().message.find("captured graph"), std::string::npos);
  destroy({0, 1}, end({0, 1}, capturing));
}

// A thread captures graphs of one pool, another frees their tensors, two more allocate and free
// beside them.
TEST_F(torch_memory, threads_allocate_and_free_while_others_capture) {
  std::mutex mutex;
  std::vector<void*> tensors;
  std::atomic<bool> over{false};
  const auto plain = [&](stream_handle on, std::uint64_t seed) {
    simulated_gpu::set_thread(seed);
    const simulated_gpu::library_scope scope;
    std::mt19937 random(static_cast<std::uint32_t>(seed));
    while (!over.load()) {
      const std::uint64_t bytes = 1 + random() % (4 * MiB);
      give(take(bytes, on), bytes, on);
    }
  };
  std::vector<std::thread> threads;
  stream_handle others[2] = {stream, nullptr};
  ASSERT_TRUE(gpu->stream_create(&others[1]).ok());
  for (std::uint64_t t = 0; t < 2; ++t) threads.emplace_back(plain, others[t], 10 + t);
  threads.emplace_back([&] {
    simulated_gpu::set_thread(12);
    const simulated_gpu::library_scope scope;
    while (!over.load()) {
      void* freed = nullptr;
      {
        const std::lock_guard lock(mutex);
        if (!tensors.empty()) {
          freed = tensors.back();
          tensors.pop_back();
        }
      }
      if (freed != nullptr)
        give(freed, 2 * MiB, capturing);
      else
        std::this_thread::yield();
    }
  });
  std::vector<graph_handle> graphs;
  for (int n = 0; n < 40; ++n) {
    begin({0, 1}, capturing);
    void* const kept = take(2 * MiB, capturing);
    give(take(8 * MiB, capturing), 8 * MiB, capturing);
    graphs.push_back(end({0, 1}, capturing));
    const std::lock_guard lock(mutex);
    tensors.push_back(kept);
  }
  over = true;
  for (std::thread& t : threads) t.join();
  for (void* const left : tensors) give(left, 2 * MiB, capturing);
  memory->release_graph_pool({0, 1});
  for (const graph_handle g : graphs) EXPECT_TRUE(gpu->graph_destroy(g).ok());
  memory->empty_cache();
  EXPECT_EQ(of_graphs(), 0u);
  EXPECT_EQ(memory->statistics().reserved, 0u);
  EXPECT_EQ(memory->statistics().requested, 0u);
}

// What the graph writes when it runs is its own: nobody else has been given its memory, and the
// simulated GPU would tell.
TEST_F(torch_memory, a_graph_is_replayed_beside_the_program) {
  begin({0, 3}, capturing);
  void* const inside = take(5 * MiB, capturing);
  void* const scratch = take(MiB, capturing);
  library.reset();
  ASSERT_TRUE(gpu->set_async(reinterpret_cast<device_address>(inside), 1, MiB, capturing).ok());
  ASSERT_TRUE(gpu->set_async(reinterpret_cast<device_address>(scratch), 1, MiB, capturing).ok());
  library.emplace();
  give(scratch, MiB, capturing);
  give(take(MiB, stream), MiB, stream);
  const graph_handle graph = end({0, 3}, capturing);
  graph_exec_handle exec = nullptr;
  ASSERT_TRUE(gpu->graph_instantiate(&exec, graph).ok());
  for (int n = 0; n < 3; ++n) {
    void* const beside = take(MiB, stream);
    ASSERT_TRUE(gpu->graph_launch(exec, capturing).ok());
    ASSERT_TRUE(gpu->set_async(reinterpret_cast<device_address>(beside), 2, MiB, stream).ok());
    give(beside, MiB, stream);
  }
  give(inside, 5 * MiB, capturing);
  destroy({0, 3}, graph);
  EXPECT_TRUE(gpu->graph_exec_destroy(exec).ok());
  memory->empty_cache();
  EXPECT_EQ(of_graphs(), 0u);
}

TEST_F(torch_memory, made_with_another_context_current_it_stays_current) {
  const another_context other(*gpu);
  auto made = device_memory::create(gpu, {}).value();
  const auto block = made->allocate(3 * MiB, stream);
  ASSERT_TRUE(block.has_value()) << block.error().message;
  EXPECT_TRUE(made->deallocate(*block, 3 * MiB, stream).has_value());
  made.reset();
}

}  // namespace
}  // namespace millpond::torch
