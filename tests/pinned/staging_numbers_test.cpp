// Staging at the ends of its numbers.
#include <gtest/gtest.h>

#include <climits>
#include <vector>

#include "millpond/base/units.hpp"
#include "millpond/pinned/pinned_pool.hpp"
#include "millpond/pinned/staging.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "support/no_threads.hpp"

namespace millpond {
namespace {

TEST(staging_numbers, any_number_of_threads_and_none_to_be_had_still_copy) {
  simulated_gpu_options of_gpu;
  of_gpu.mode = simulated_gpu_options::contents::bytes;
  const auto gpu = simulated_gpu::create(of_gpu).value();
  host_pinner_options pinning;
  pinning.budget_bytes = 64 * MiB;
  pinning.threads = 1;
  const auto memory = make_pinned_pool(gpu, {.pinning = pinning}).value();
  device_address device = 0;
  ASSERT_TRUE(gpu->memory_allocate(&device, 4 * MiB).ok());
  for (const unsigned threads : {UINT_MAX, UINT_MAX / 8, 1u}) {
    const no_threads now;
    auto made = staging::create(gpu, *memory, {.threads = threads, .buffer_bytes = MiB});
    ASSERT_TRUE(made) << made.error().message;
    const std::vector<unsigned char> from(4 * MiB, 7);
    std::vector<unsigned char> to(4 * MiB);
    ASSERT_TRUE((*made)->to_device(device, from.data(), from.size(), nullptr));
    ASSERT_TRUE((*made)->to_host(to.data(), device, to.size(), nullptr));
    EXPECT_EQ(to, from);
    const auto refused = (*made)->to_device(device, from.data(), UINT64_MAX, nullptr);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, error_code::invalid_argument);
  }
  EXPECT_TRUE(gpu->memory_free(device).ok());
}

}  // namespace
}  // namespace millpond
