// Pinned pools, control blocks, staged copies and managed buffers on a real card.
#include <gtest/gtest.h>

#include <vector>

#include "base/random.hpp"
#include "millpond/base/units.hpp"
#include "millpond/managed/managed_buffer.hpp"
#include "millpond/pinned/pinned_pool.hpp"
#include "millpond/pinned/staging.hpp"

namespace millpond {
namespace {

struct host_side : ::testing::Test {
  void SetUp() override {
    auto opened = open_cuda_driver(0);
    if (!opened) GTEST_SKIP() << opened.error().message;
    gpu = *opened;
    ASSERT_TRUE(gpu->bind_thread().ok());
    ASSERT_TRUE(gpu->stream_create(&stream).ok());
  }
  void TearDown() override {
    if (stream == nullptr) return;
    EXPECT_TRUE(gpu->stream_destroy(stream).ok());
  }
  std::shared_ptr<driver> gpu;
  stream_handle stream = nullptr;
};

TEST_F(host_side, pinned_blocks_are_written_by_the_gpu_and_read_by_the_cpu) {
  auto made =
      make_pinned_pool(gpu, {.pinning = {.budget_bytes = 512 * MiB, .keep_ready_bytes = 32 * MiB}});
  ASSERT_TRUE(made) << made.error().message;
  auto* const words = static_cast<std::uint64_t*>((*made)->allocate(MiB, stream));
  const identity_block block{reinterpret_cast<device_address>(words), MiB, 7};
  ASSERT_TRUE(gpu->identity_write({&block, 1}, stream).ok());
  ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
  for (std::size_t i = 0; i < MiB / 8; ++i) ASSERT_EQ(words[i], identity_word(7, i)) << i;
  (*made)->deallocate(words, MiB, stream);
  control_block<std::uint64_t> state(**made, stream, 1);
  ASSERT_TRUE(gpu->set_async(state.address(), 0x11, 8, stream).ok());
  ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
  EXPECT_EQ(state.load(), 0x1111111111111111u);
}

TEST_F(host_side, staged_copies_keep_their_contents) {
  auto made = make_pinned_pool(gpu, {.pinning = {.budget_bytes = 512 * MiB}});
  ASSERT_TRUE(made) << made.error().message;
  auto through = staging::create(gpu, **made);
  ASSERT_TRUE(through) << through.error().message;
  for (const std::uint64_t bytes : {100 * KiB, 5 * MiB + 7, 300 * MiB}) {
    device_address device = 0;
    ASSERT_TRUE(gpu->memory_allocate(&device, bytes).ok());
    std::vector<unsigned char> out(bytes), back(bytes);
    random numbers(bytes);
    for (auto& each : out) each = static_cast<unsigned char>(numbers.next());
    ASSERT_TRUE((*through)->to_device(device, out.data(), bytes, stream));
    ASSERT_TRUE((*through)->to_host(back.data(), device, bytes, stream));
    EXPECT_EQ(out, back) << bytes;
    ASSERT_TRUE(gpu->memory_free(device).ok());
  }
}

TEST_F(host_side, the_drivers_counts_tell_of_a_contradicted_use) {
  if (!gpu->info().concurrent_managed_access) GTEST_SKIP() << "no concurrent managed access";
  auto watch = managed_watch::start(gpu);
  if (!watch) {
    // A clear answer where there is no CUPTI, or a profiler has it.
    EXPECT_EQ(watch.error().code, error_code::not_supported);
    GTEST_SKIP() << watch.error().message;
  }
  EXPECT_EQ(managed_watch::start(gpu).error().code, error_code::not_permitted);
  managed_resource memory(gpu, nullptr,
                          {managed_intent::gpu_resident, memory_side::device, memory_side::both});
  auto buffer = managed_buffer<unsigned char>::create(16 * MiB, memory, stream).value();
  ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
  ASSERT_TRUE(buffer.watch(*watch));
  unsigned char* stray = nullptr;
  {
    auto view = buffer.device_view(stream).value();
    stray = view.data();
    ASSERT_TRUE(gpu->set_async(view.address(), 3, 16 * MiB, stream).ok());
  }
  ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
  ASSERT_TRUE(buffer.look());
  EXPECT_TRUE(buffer.history().contradictions.empty()) << buffer.history().contradictions.front();
  unsigned sum = 0;
  for (std::uint64_t i = 0; i < 16 * MiB; i += 4096)
    sum += static_cast<volatile unsigned char*>(stray)[i];
  EXPECT_EQ(sum, 3u * 4096);
  const auto counted = (*watch)->counts(reinterpret_cast<device_address>(stray), 16 * MiB);
  ASSERT_TRUE(counted) << counted.error().message;
  EXPECT_GE(counted->host_faults, 8u);
  EXPECT_GE(counted->bytes_to_host, 16 * MiB);
  ASSERT_TRUE(buffer.look());
  ASSERT_FALSE(buffer.history().contradictions.empty());
  EXPECT_NE(buffer.history().contradictions.front().find("stated as gpu-resident"),
            std::string::npos);
  // Memory whose use is kept is not spoken of.
  auto other = managed_buffer<unsigned char>::create(16 * MiB, memory, stream).value();
  ASSERT_TRUE(other.watch(*watch));
  ASSERT_TRUE(other.look());
  EXPECT_TRUE(other.history().contradictions.empty());
}

TEST_F(host_side, views_of_managed_memory_pass_data_both_ways) {
  if (!gpu->info().concurrent_managed_access) GTEST_SKIP() << "no concurrent managed access";
  for (const managed_use use :
       {managed_use{managed_intent::ping_pong},
        managed_use{managed_intent::gpu_resident, memory_side::device, memory_side::both},
        managed_use{managed_intent::cpu_resident}, managed_use{}}) {
    managed_resource memory(gpu, nullptr, use);
    auto made = managed_buffer<std::uint64_t>::create(MiB, memory, stream);
    ASSERT_TRUE(made) << made.error().message;
    for (std::uint64_t round = 1; round <= 3; ++round) {
      {
        auto view = made->device_view(stream).value();
        const identity_block block{view.address(), made->size_bytes(), round};
        ASSERT_TRUE(gpu->identity_write({&block, 1}, stream).ok());
      }
      auto cpu = made->host_view_to_read().value();
      for (std::size_t i = 0; i < made->size(); i += 97)
        ASSERT_EQ(cpu.span()[i], identity_word(round, i)) << to_string(use.intent);
    }
  }
}

}  // namespace
}  // namespace millpond
