#include "adapters/torch/device_memory.hpp"

#include <gtest/gtest.h>

#include "millpond/simulated_gpu.hpp"
#include "millpond/units.hpp"

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
  // What a test leaves live goes with the pool, as tensors at the end of a process; that is told, and is no fault here.
  void TearDown() override {
    testing::internal::CaptureStderr();
    memory.reset();
    static_cast<void>(testing::internal::GetCapturedStderr());
  }
  void* take(std::uint64_t bytes, stream_handle on) {
    const auto got = memory->allocate(bytes, on);
    EXPECT_TRUE(got.has_value()) << got.error().message;
    return got ? *got : nullptr;
  }
  device_memory::stream_filter only(stream_handle which) {
    return [which](stream_handle asked) { return asked == which; };
  }

  std::shared_ptr<simulated_gpu> gpu;
  std::unique_ptr<device_memory> memory;
  stream_handle stream = nullptr, capturing = nullptr;
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
  memory->begin_graph_pool({0, 7}, only(capturing));
  void* const inside = take(MiB, capturing);
  void* const still_outside = take(MiB, stream);
  EXPECT_EQ(memory->statistics().graph_bytes, MiB);
  EXPECT_TRUE(memory->deallocate(inside, MiB, capturing).has_value());
  EXPECT_EQ(take(MiB, capturing), inside);  // the same graph has it again
  memory->end_graph_pool({0, 7});
  EXPECT_NE(take(MiB, capturing), inside);  // after the capture the stream is like any other
  EXPECT_EQ(memory->find(static_cast<char*>(inside) + 100).value().start, inside);
  for (void* const p : {outside, still_outside}) EXPECT_TRUE(memory->deallocate(p, MiB, stream).has_value());
}

TEST_F(torch_memory, what_graphs_keep_counts_as_needed_after_it_is_freed) {
  memory->begin_graph_pool({0, 3}, only(capturing));
  void* const inside = take(2 * MiB, capturing);
  EXPECT_TRUE(memory->deallocate(inside, 2 * MiB, capturing).has_value());
  EXPECT_EQ(take(MiB, capturing), inside);  // in what the graph has anyway
  memory->end_graph_pool({0, 3});
  void* const outside = take(3 * MiB, stream);
  EXPECT_EQ(memory->statistics().peak_requested, 4 * MiB);
  EXPECT_EQ(memory->statistics().peak_needed, 5 * MiB);
  EXPECT_TRUE(memory->deallocate(outside, 3 * MiB, stream).has_value());
  EXPECT_TRUE(memory->deallocate(inside, MiB, capturing).has_value());
  memory->release_graph_pool({0, 3});
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

TEST_F(torch_memory, a_tensor_outlives_its_graph) {
  memory->begin_graph_pool({0, 1}, only(capturing));
  void* const kept = take(MiB, capturing);
  memory->end_graph_pool({0, 1});
  memory->release_graph_pool({0, 1});
  memory->empty_cache();
  EXPECT_EQ(memory->statistics().graph_bytes, MiB);
  EXPECT_EQ(memory->find(kept).value().start, kept);
  EXPECT_TRUE(memory->deallocate(kept, MiB, capturing).has_value());
  memory->empty_cache();
  EXPECT_EQ(memory->statistics().graph_bytes, 0u);
  EXPECT_FALSE(memory->serves_graphs());
  EXPECT_FALSE(memory->deallocate(kept, MiB, capturing).has_value());
}

TEST_F(torch_memory, nothing_of_a_graph_goes_back_while_another_capture_runs) {
  memory->begin_graph_pool({0, 1}, only(capturing));
  EXPECT_TRUE(memory->deallocate(take(MiB, capturing), MiB, capturing).has_value());
  memory->end_graph_pool({0, 1});
  memory->release_graph_pool({0, 1});
  memory->begin_graph_pool({0, 2}, only(capturing));
  const auto waits = gpu->device_waits();
  memory->empty_cache();
  EXPECT_EQ(gpu->device_waits(), waits);
  EXPECT_EQ(memory->statistics().graph_bytes, MiB);
  memory->end_graph_pool({0, 2});
  memory->empty_cache();
  EXPECT_EQ(memory->statistics().graph_bytes, 0u);
}

TEST_F(torch_memory, pressure_takes_back_what_dead_graphs_left) {
  memory->begin_graph_pool({0, 1}, only(capturing));
  EXPECT_TRUE(memory->deallocate(take(600 * MiB, capturing), 600 * MiB, capturing).has_value());
  memory->end_graph_pool({0, 1});
  memory->release_graph_pool({0, 1});
  void* const large = take(800 * MiB, stream);  // of 1 GiB: not beside the graph's 600 MiB
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(memory->statistics().out_of_memory, 0u);
}

TEST_F(torch_memory, running_out_in_a_capture_is_an_error_and_not_a_deadlock) {
  memory->begin_graph_pool({0, 1}, only(capturing));
  const auto got = memory->allocate(2 * GiB, capturing);
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code, error_code::out_of_memory);
  EXPECT_NE(got.error().message.find("captured graph"), std::string::npos);
  memory->end_graph_pool({0, 1});
}

TEST_F(torch_memory, a_real_capture_on_the_simulated_gpu_breaks_no_rule) {
  memory->begin_graph_pool({0, 3}, only(capturing));
  ASSERT_TRUE(gpu->capture_begin(capturing, capture_mode::global).ok());
  void* ptr = nullptr;
  {
    const simulated_gpu::library_scope library;
    ptr = take(5 * MiB, capturing);
    EXPECT_TRUE(memory->deallocate(take(MiB, capturing), MiB, capturing).has_value());
    EXPECT_TRUE(memory->deallocate(take(MiB, stream), MiB, stream).has_value());
  }
  ASSERT_TRUE(gpu->set_async(reinterpret_cast<device_address>(ptr), 1, MiB, capturing).ok());
  graph_handle graph = nullptr;
  ASSERT_TRUE(gpu->capture_end(capturing, &graph).ok());
  memory->end_graph_pool({0, 3});
  EXPECT_TRUE(gpu->graph_destroy(graph).ok());
  for (const violation& v : gpu->violations()) ADD_FAILURE() << v.text;
}

}  // namespace
}  // namespace millpond::torch
