// What each kind does with its driver, call by call. The behaviour all kinds
// share is in the contract suite.
#include "millpond/memory/kinds.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "resource/host_room.hpp"
#include "support/bare_driver.hpp"

namespace millpond {
namespace {

using ::testing::AllOf;
using testing::bare_driver;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct kinds : ::testing::Test {
  std::shared_ptr<bare_driver> gpu = std::make_shared<bare_driver>();
  std::shared_ptr<pointer_registry> registry = std::make_shared<pointer_registry>();
};

TEST_F(kinds, a_driver_that_aligns_to_256_is_asked_again_with_room) {
  gpu->misaligned_by = 256;
  device_resource memory(gpu, registry);
  for (std::uint64_t alignment = 1; alignment <= max_alignment; alignment *= 2) {
    void* const block = memory.allocate(1000, alignment, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(block) % alignment, 0u) << alignment;
    memory.deallocate(block, 1000, nullptr);
  }
  EXPECT_EQ(gpu->live(), 0u);
  EXPECT_EQ(memory.usage().reserved_bytes, 0u);
  EXPECT_EQ(memory.deallocation_errors(), 0u);
}

TEST_F(kinds, each_kind_uses_its_own_calls) {
  const auto calls_of = [&](auto&& memory) {
    gpu->log.clear();
    void* const block = memory.allocate(64, 64, nullptr);
    memory.deallocate(block, 64, nullptr);
    std::erase(gpu->log, "cuThreadExchangeStreamCaptureMode");
    return gpu->log;
  };
  EXPECT_THAT(calls_of(device_resource(gpu)), ElementsAre("cuMemAlloc", "cuMemFree"));
  EXPECT_THAT(calls_of(pinned_resource(gpu)), ElementsAre("cuMemHostAlloc", "cuMemFreeHost"));
  EXPECT_THAT(calls_of(managed_resource(gpu)),
              ElementsAre("cuMemAllocManaged", "cuStreamGetCaptureInfo", "cuStreamSynchronize",
                          "cuMemFree"));
  EXPECT_THAT(calls_of(pageable_resource(gpu)),
              ElementsAre("cuStreamGetCaptureInfo", "cuStreamSynchronize"));
  EXPECT_THAT(calls_of(pageable_resource(gpu, nullptr, pageable_resource::on_free::nothing)),
              ElementsAre());
  EXPECT_THAT(calls_of(driver_pool_resource(gpu)),
              ElementsAre("cuMemAllocFromPoolAsync", "cuMemFreeAsync"));
}

TEST_F(kinds, sizes_beyond_the_machine_are_refused_with_numbers_before_the_driver_is_asked) {
  const auto simulated = *simulated_gpu::create({});
  const std::uint64_t ram = simulated->profile().host_bytes, device = simulated->info().total_bytes;
  const auto why = [](auto&& memory, std::uint64_t bytes) {
    auto got = memory.try_allocate(bytes, default_alignment, nullptr);
    EXPECT_FALSE(got);
    if (got) return std::string();
    EXPECT_EQ(got.error().code, error_code::out_of_memory);
    return got.error().message;
  };
  simulated->reset_counters();
  for (const managed_intent intent : {managed_intent::unstated, managed_intent::streaming}) {
    EXPECT_THAT(
        why(managed_resource(simulated, nullptr, {intent, memory_side::host, memory_side::device}),
            ram + device + 1),
        AllOf(HasSubstr(format_bytes(ram)), HasSubstr(format_bytes(device)),
              HasSubstr("more than")));
  }
  EXPECT_THAT(why(pinned_resource(simulated), ram + 1),
              AllOf(HasSubstr(format_bytes(ram)), HasSubstr("staging")));
  EXPECT_EQ(simulated->total_calls(), 0u);
  // This machine's own, on any driver.
  const machine_room room{64 * GiB, 8 * GiB, false};
  EXPECT_TRUE(pageable_can_exist(room, 72 * GiB, "memory"));
  EXPECT_THAT(pageable_can_exist(room, 72 * GiB + 1, "memory").error().message,
              AllOf(HasSubstr("64.0 GiB"), HasSubstr("8.00 GiB of swap")));
  EXPECT_TRUE(pageable_can_exist({64 * GiB, 0, true}, 100 * GiB,
                                 "memory"));               // where the system overcommits
  EXPECT_TRUE(pinned_can_exist({}, 100 * GiB, "memory"));  // where it is not known
  if (const machine_room here = room_of(nullptr); here.ram_bytes != 0 && !here.overcommits) {
    EXPECT_THAT(why(pageable_resource(nullptr), here.ram_bytes + here.swap_bytes + 1),
                HasSubstr(format_bytes(here.ram_bytes)));
  }
  // Managed memory may be larger than either alone.
  managed_resource memory(simulated);
  void* const block = memory.allocate(ram + GiB, default_alignment, nullptr);
  memory.deallocate(block, ram + GiB, nullptr);
}

TEST_F(kinds, write_combined_is_passed_on) {
  pinned_resource plain(gpu, registry);
  plain.deallocate(plain.allocate(64, nullptr), 64, nullptr);
  EXPECT_EQ(gpu->last_flags, driver::host_flags::none);
  pinned_resource combined(gpu, registry, pinned_resource::caching::write_combined);
  combined.deallocate(combined.allocate(64, nullptr), 64, nullptr);
  EXPECT_EQ(gpu->last_flags, driver::host_flags::write_combined);
}

TEST_F(kinds, a_free_on_a_capturing_stream_is_refused_before_it_breaks_the_capture) {
  managed_resource memory(gpu, registry);
  void* const block = memory.allocate(64, nullptr);
  gpu->capturing = true;
  gpu->log.clear();
  const auto refused = memory.try_deallocate(block, 64, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("cuStreamSynchronize: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"));
  EXPECT_THAT(gpu->log, ::testing::Not(::testing::Contains("cuStreamSynchronize")));
  gpu->capturing = false;
  EXPECT_TRUE(memory.try_deallocate(block, 64, nullptr));
}

TEST_F(kinds, blocks_that_outlive_their_resource_are_reported_and_given_back) {
  leak_report reported;
  pointer_registry::options options;
  options.leak_sink = [&](const leak_report& report) { reported = report; };
  const auto watched = std::make_shared<pointer_registry>(options);
  {
    pinned_resource memory(gpu, watched);
    for (int i = 0; i < 3; ++i) EXPECT_NE(memory.allocate(100, nullptr), nullptr);
    EXPECT_EQ(memory.live_blocks().size(), 3u);
  }
  EXPECT_EQ(gpu->live(), 0u);
  EXPECT_EQ(reported.blocks, 3u);
  EXPECT_EQ(reported.bytes, 300u);
  ASSERT_EQ(reported.lines.size(), 1u);
  EXPECT_THAT(reported.text(), HasSubstr("kinds_test.cpp:"));
  EXPECT_EQ(watched->count().leaked_blocks, 3u);
}

TEST_F(kinds, with_the_driver_gone_blocks_are_left_to_it_and_counted) {
  device_resource memory(gpu, registry);
  void* const block = memory.allocate(64, nullptr);
  gpu->die();
  gpu->log.clear();
  EXPECT_TRUE(memory.try_deallocate(block, 64, nullptr));
  EXPECT_THAT(gpu->log, ElementsAre());
  EXPECT_EQ(memory.usage().left_to_driver, 1u);
  EXPECT_EQ(memory.usage().live_blocks, 0u);
}

TEST_F(kinds, a_thread_without_a_context_is_given_one) {
  device_resource memory(gpu, registry);
  gpu->fail_call(2, driver_status::invalid_context);  // after the change of capture mode
  void* const block = memory.allocate(64, nullptr);
  EXPECT_THAT(gpu->log, ::testing::Contains("cuCtxSetCurrent"));
  memory.deallocate(block, 64, nullptr);
}

TEST_F(kinds, a_pool_that_cannot_be_set_up_is_not_left_behind) {
  for (std::uint64_t call = 1; call <= 4; ++call) {
    gpu->fail_call(call, driver_status::unknown);
    const auto made = driver_pool_resource::create(gpu);
    // The first call is the thread's way into a relaxed capture mode, which is tried again, the
    // fourth its way back, which nothing depends on.
    ASSERT_EQ(made.has_value(), call == 1 || call == 4) << gpu->failed_call();
    if (!made) {
      EXPECT_THAT(made.error().message, HasSubstr(gpu->failed_call()));
    }
    EXPECT_EQ(gpu->pools(), made ? 1u : 0u);
  }
  gpu->fail_call(0);
  EXPECT_EQ(gpu->pools(), 0u);
  gpu->fail_call(2, driver_status::not_supported);
  EXPECT_THROW(driver_pool_resource{gpu}, memory_error);
}

TEST_F(kinds, which_side_reaches_a_kind) {
  EXPECT_FALSE(device_resource(gpu).host_accessible());
  EXPECT_TRUE(pinned_resource(gpu).host_accessible());
  EXPECT_TRUE(pinned_resource(gpu).device_accessible());
  EXPECT_FALSE(pageable_resource(gpu).device_accessible());
  EXPECT_FALSE(driver_pool_resource(gpu).host_accessible());
  EXPECT_TRUE(driver_pool_resource(gpu, {.location = memory_location::host}).host_accessible());
}

}  // namespace
}  // namespace millpond
