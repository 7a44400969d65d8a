// Staged copies: contents, order, and what they refuse.
#include "millpond/pinned/staging.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/random.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pinned/pinned_pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace {

using ::testing::HasSubstr;

struct staged : ::testing::Test {
  staged() {
    simulated_gpu_options options;
    options.mode = simulated_gpu_options::contents::bytes;
    gpu = *simulated_gpu::create(options);
    memory = *make_pinned_pool(gpu, {.pinning = {.threads = 2, .budget_bytes = 256 * MiB}});
    EXPECT_TRUE(gpu->stream_create(&stream).ok());
  }
  std::unique_ptr<staging> make(staging_options options = {.threads = 3,
                                                           .buffer_bytes = 256 * KiB,
                                                           .least_bytes = 4 * KiB}) {
    auto made = staging::create(gpu, *memory, options);
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  std::shared_ptr<simulated_gpu> gpu;
  std::shared_ptr<pool> memory;
  stream_handle stream = nullptr;
};

std::vector<unsigned char> noise(std::uint64_t bytes, std::uint64_t seed) {
  random numbers(seed);
  std::vector<unsigned char> made(bytes);
  for (auto& each : made) each = static_cast<unsigned char>(numbers.next());
  return made;
}

TEST_F(staged, what_went_to_the_device_comes_back) {
  const auto through = make();
  device_address device = 0;
  ASSERT_TRUE(gpu->memory_allocate(&device, 4 * MiB).ok());
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, 4 * KiB - 1, 64 * KiB, 64 * KiB + 1, MiB + 12345, 4 * MiB}) {
    auto out = noise(bytes, bytes);
    const auto wanted = out;
    ASSERT_TRUE(through->to_device(device, out.data(), bytes, stream));
    std::fill(out.begin(), out.end(), static_cast<unsigned char>(0));  // it may be changed at once
    std::vector<unsigned char> back(bytes);
    ASSERT_TRUE(through->to_host(back.data(), device, bytes, stream));
    EXPECT_EQ(back, wanted) << bytes;
  }
  const staging_statistics done = through->statistics();
  EXPECT_EQ(done.transfers, 12u);
  EXPECT_EQ(done.plain_transfers, 4u);
  EXPECT_GT(done.pieces, 100u);
  EXPECT_GT(done.copies, 50u);
  EXPECT_EQ(gpu->violation_count(), 0u);
}

TEST_F(staged, copies_keep_their_place_in_the_stream) {
  const auto through = make();
  const std::uint64_t bytes = MiB;
  device_address device = 0;
  ASSERT_TRUE(gpu->memory_allocate(&device, bytes).ok());
  const auto data = noise(bytes, 1);
  ASSERT_TRUE(gpu->spin(5'000'000, stream).ok());
  ASSERT_TRUE(
      gpu->set_async(device, 0, bytes, stream).ok());  // before the copy, however long it waits
  ASSERT_TRUE(through->to_device(device, data.data(), bytes, stream));
  std::vector<unsigned char> back(bytes);
  ASSERT_TRUE(through->to_host(back.data(), device, bytes, stream));
  EXPECT_EQ(back, data);
}

TEST_F(staged, two_threads_take_turns) {
  const auto through = make();
  std::vector<std::thread> threads;
  std::vector<int> wrong(2);
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      stream_handle own = nullptr;
      device_address device = 0;
      if (!gpu->stream_create(&own).ok() || !gpu->memory_allocate(&device, MiB).ok())
        ++wrong[static_cast<std::size_t>(t)];
      const auto data = noise(MiB, static_cast<std::uint64_t>(t) + 5);
      for (int i = 0; i < 10; ++i) {
        std::vector<unsigned char> back(MiB);
        if (!through->to_device(device, data.data(), MiB, own) ||
            !through->to_host(back.data(), device, MiB, own) || back != data) {
          ++wrong[static_cast<std::size_t>(t)];
        }
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(wrong, std::vector<int>(2));
}

TEST_F(staged, any_number_of_threads_and_any_buffer_keeps_the_contents) {
  device_address device = 0;
  ASSERT_TRUE(gpu->memory_allocate(&device, 2 * MiB).ok());
  for (const unsigned threads : {1u, 2u, 7u}) {
    const buffer_writes writes = threads == 1   ? buffer_writes::past_caches
                                 : threads == 2 ? buffer_writes::demoted
                                                : buffer_writes::chosen;
    for (const std::uint64_t buffer : {64 * KiB, 192 * KiB, 832 * KiB, 8 * MiB}) {
      // Threads that sleep at once are woken too late for most of these, and the caller does it
      // alone.
      const auto through = make({.threads = threads,
                                 .buffer_bytes = buffer,
                                 .least_bytes = 1,
                                 .looks_before_sleep = threads == 2 ? 1000u : 0u,
                                 .writes = writes});
      for (const std::uint64_t bytes : {std::uint64_t{1}, 300 * KiB + 7, 2 * MiB - 1}) {
        const auto out = noise(bytes, bytes + threads);
        std::vector<unsigned char> back(bytes);
        // Twice there: the second finds parts of the buffer whose copies may be on their way.
        ASSERT_TRUE(through->to_device(device, out.data(), bytes, stream));
        ASSERT_TRUE(through->to_device(device, out.data(), bytes, stream));
        ASSERT_TRUE(through->to_host(back.data(), device, bytes, stream));
        ASSERT_EQ(back, out) << threads << " threads, a buffer of " << buffer << ", " << bytes
                             << " bytes";
      }
      EXPECT_LE(through->statistics().pieces_of_caller, through->statistics().pieces);
    }
  }
  EXPECT_EQ(gpu->violation_count(), 0u);
}

// A copy has a fixed cost of several microseconds: a transfer makes few, however many pieces the
// threads move.
TEST_F(staged, pieces_that_are_filled_together_go_as_one_copy) {
  const auto through = make({.threads = 2, .buffer_bytes = 32 * MiB, .least_bytes = 1});
  device_address device = 0;
  const std::uint64_t bytes = 16 * MiB;
  ASSERT_TRUE(gpu->memory_allocate(&device, bytes).ok());
  const auto out = noise(bytes, 9);
  ASSERT_TRUE(through->to_device(device, out.data(), bytes, stream));
  const staging_statistics there = through->statistics();
  EXPECT_GE(there.pieces, 64u);
  EXPECT_LE(there.copies,
            34u);  // at least 512 KiB each, but for what the buffer's end and the transfer's cut
  std::vector<unsigned char> back(bytes);
  ASSERT_TRUE(through->to_host(back.data(), device, bytes, stream));
  EXPECT_LE(through->statistics().copies - there.copies, 16u);
  EXPECT_EQ(back, out);
}

TEST_F(staged, a_capturing_stream_is_refused_and_its_capture_intact) {
  const auto through = make();
  device_address device = 0;
  ASSERT_TRUE(gpu->memory_allocate(&device, MiB).ok());
  const auto data = noise(MiB, 2);
  ASSERT_TRUE(gpu->capture_begin(stream, capture_mode::relaxed).ok());
  const auto refused = through->to_device(device, data.data(), MiB, stream);
  EXPECT_EQ(refused.error().code, error_code::not_permitted);
  graph_handle graph = nullptr;
  EXPECT_TRUE(gpu->capture_end(stream, &graph).ok());
  EXPECT_TRUE(gpu->graph_destroy(graph).ok());
}

TEST_F(staged, a_failing_copy_is_reported_and_the_next_one_works) {
  const auto through = make();
  device_address device = 0;
  ASSERT_TRUE(gpu->memory_allocate(&device, MiB).ok());
  const auto data = noise(MiB, 3);
  fault_plan plan;
  plan.faults.push_back({.call = "cuMemcpyAsync", .at = 4, .status = driver_status::unknown});
  gpu->set_faults(plan);
  const auto failed = through->to_device(device, data.data(), MiB, stream);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("cuMemcpyAsync"));
  gpu->set_faults({});
  std::vector<unsigned char> back(MiB);
  EXPECT_TRUE(through->to_device(device, data.data(), MiB, stream));
  EXPECT_TRUE(through->to_host(back.data(), device, MiB, stream));
  EXPECT_EQ(back, data);
}

TEST_F(staged, refuses_a_buffer_that_is_not_pinned_and_null_addresses) {
  auto device = pool::create(gpu);
  EXPECT_EQ(staging::create(gpu, **device).error().code, error_code::wrong_kind);
  EXPECT_EQ(staging::create(gpu, *memory, {.buffer_bytes = 7}).error().code,
            error_code::invalid_argument);
  const auto through = make();
  EXPECT_EQ(through->to_device(0, &device, 8, stream).error().code, error_code::invalid_argument);
  EXPECT_TRUE(through->to_device(0, nullptr, 0, stream));
}

}  // namespace
}  // namespace millpond
