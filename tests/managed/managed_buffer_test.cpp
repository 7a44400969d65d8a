// Stated uses of managed memory: what they advise and refuse, and views that cannot be forgotten to
// wait.
#include "millpond/managed/managed_buffer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millpond/base/units.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct managed_memory : ::testing::Test {
  std::shared_ptr<simulated_gpu> gpu = *simulated_gpu::create();
  stream_handle stream = make_stream();
  stream_handle make_stream() {
    stream_handle made = nullptr;
    EXPECT_TRUE(gpu->stream_create(&made).ok());
    return made;
  }
  std::unique_ptr<managed_resource> resource(managed_use use) {
    return std::make_unique<managed_resource>(gpu, nullptr, use);
  }
  void kernel(device_address at, std::uint64_t bytes, access_kind kind, stream_handle on,
              std::uint64_t ns = 1000) {
    ASSERT_TRUE(gpu->launch({"work", ns, {{at, bytes, kind}}}, on).ok());
  }
};
using enum managed_intent;
constexpr auto host = memory_side::host, device = memory_side::device, both = memory_side::both;

TEST_F(managed_memory, each_intent_has_its_plan) {
  const auto plan = [&](managed_use use, std::uint64_t bytes = 64 * MiB) {
    return plan_managed(use, bytes, gpu->info());
  };
  EXPECT_FALSE(plan({})->align_blocks);
  const auto streams = plan({streaming, host, device});
  EXPECT_TRUE(streams->prefetch_to_device);
  EXPECT_FALSE(streams->prefetch_to_host);
  EXPECT_THAT(streams->advices, IsEmpty());
  EXPECT_TRUE(plan({streaming, device, host})->prefetch_to_host);
  ASSERT_THAT(plan({read_mostly, host, both})->advices, SizeIs(1));
  EXPECT_EQ(plan({read_mostly, host, both})->advices[0].what, managed_advice::set_read_mostly);
  EXPECT_TRUE(plan({gpu_resident, device, device})->start_on_device);
  EXPECT_THAT(plan({gpu_resident, device, device})->warnings, IsEmpty());
  EXPECT_THAT(plan({gpu_resident, both, device})->warnings, SizeIs(1));
  const auto stays = plan({cpu_resident, host, both}, MiB);
  EXPECT_EQ(stays->advices[0].location, memory_location::host);
  EXPECT_EQ(stays->advices[1].what, managed_advice::set_accessed_by);
  EXPECT_THAT(stays->warnings, IsEmpty());
  EXPECT_THAT(plan({cpu_resident, host, both})->warnings[0], HasSubstr("42 GB/s"));
  EXPECT_THAT(plan({ping_pong, both, both}, 4 * KiB)->warnings[0], HasSubstr("control_block"));
  EXPECT_THAT(plan({ping_pong, both, both})->warnings[0], HasSubstr("pinned copies"));
}

TEST_F(managed_memory, what_is_slow_by_construction_is_refused) {
  const auto refused = plan_managed({read_mostly, both, both}, MiB, gpu->info());
  EXPECT_EQ(refused.error().code, error_code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("the device writes"));
  EXPECT_EQ(plan_managed({streaming, both, both}, MiB, gpu->info()).error().code,
            error_code::invalid_argument);
  EXPECT_EQ(plan_managed({gpu_resident, device, device}, 200 * GiB, gpu->info()).error().code,
            error_code::out_of_memory);
  device_info old = gpu->info();
  old.concurrent_managed_access = false;
  EXPECT_EQ(plan_managed({streaming, host, device}, MiB, old).error().code,
            error_code::not_supported);
  EXPECT_TRUE(plan_managed({}, MiB, old));
  auto memory = resource({read_mostly, both, both});
  EXPECT_EQ(memory->try_allocate(MiB, 512, stream).error().code, error_code::invalid_argument);
  EXPECT_EQ(memory->usage().failed_allocations, 1u);
}

TEST_F(managed_memory, a_stated_use_aligns_advises_and_prefetches) {
  auto memory = resource({gpu_resident, device, device});
  void* const block = memory->allocate(3 * MiB, stream);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % (2 * MiB), 0u);
  EXPECT_EQ(gpu->calls("cuMemAdvise"), 1u);
  ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
  EXPECT_EQ(gpu->managed_resident_bytes(reinterpret_cast<device_address>(block), 4 * MiB), 4 * MiB);
  memory->deallocate(block, 3 * MiB, stream);
  EXPECT_EQ(memory->deallocation_errors(), 0u);
}

TEST_F(managed_memory, a_refused_advice_leaves_no_block_behind) {
  auto memory = resource({read_mostly, host, both});
  fault_plan plan;
  plan.faults.push_back({.call = "cuMemAdvise", .status = driver_status::invalid_value});
  gpu->set_faults(plan);
  EXPECT_FALSE(memory->try_allocate(MiB, 512, stream));
  EXPECT_EQ(gpu->leaks().managed_allocations, 0u);
}

TEST_F(managed_memory, a_host_view_waits_for_the_kernel_and_a_device_view_prefetches) {
  auto memory = resource({streaming, host, device});
  auto buffer = managed_buffer<float>::create(16 * MiB / 4, *memory, stream).value();
  {
    auto cpu = buffer.host_view().value();
    cpu.span()[0] = 1;
    gpu->touch_managed(reinterpret_cast<device_address>(cpu.data()), buffer.size_bytes());
  }
  {
    auto view = buffer.device_view_to_read(stream).value();
    kernel(view.address(), buffer.size_bytes(), access_kind::read, stream, 5'000'000);
    EXPECT_EQ(gpu->managed_counts().device_faults, 0u);
  }
  const std::uint64_t before = gpu->now_ns();
  {
    auto cpu = buffer.host_view().value();
    EXPECT_GE(gpu->now_ns() - before, 5'000'000u);
  }
  EXPECT_EQ(buffer.history().host_waits, 1u);
  EXPECT_EQ(buffer.history().prefetches, 1u);
  EXPECT_THAT(buffer.history().contradictions, IsEmpty());
}

TEST_F(managed_memory, views_exclude_each_other_unless_both_read) {
  auto memory = resource({read_mostly, host, both});
  auto buffer = managed_buffer<int>::create(MiB, *memory, stream).value();
  {
    auto cpu = buffer.host_view().value();
    EXPECT_EQ(buffer.device_view_to_read(stream).error().code, error_code::not_permitted);
  }
  auto view = buffer.device_view_to_read(stream).value();
  EXPECT_EQ(buffer.host_view().error().code, error_code::not_permitted);
  EXPECT_TRUE(buffer.host_view_to_read());
  EXPECT_THAT(buffer.device_view(stream).error().message, HasSubstr("read-mostly"));
}

TEST_F(managed_memory, a_second_stream_waits_for_the_one_that_wrote) {
  auto memory = resource({ping_pong, both, both});
  auto buffer = managed_buffer<int>::create(MiB, *memory, stream).value();
  const stream_handle other = make_stream();
  {
    auto view = buffer.device_view(stream).value();
    kernel(view.address(), buffer.size_bytes(), access_kind::write, stream, 3'000'000);
  }
  {
    auto view = buffer.device_view(other).value();
    kernel(view.address(), buffer.size_bytes(), access_kind::read_write, other);
  }
  const std::uint64_t before = gpu->now_ns();
  ASSERT_TRUE(gpu->stream_synchronize(other).ok());
  EXPECT_GE(gpu->now_ns() - before, 2'900'000u);
}

TEST_F(managed_memory, a_contradicted_use_is_reported_once) {
  auto memory = resource({streaming, device, host});
  auto buffer = managed_buffer<int>::create(MiB, *memory, stream).value();
  for (int i = 0; i < 3; ++i) auto cpu = buffer.host_view().value();
  ASSERT_THAT(buffer.history().contradictions, SizeIs(1));
  EXPECT_THAT(buffer.history().contradictions[0], HasSubstr("add the host to its writers"));
  EXPECT_EQ(buffer.history().host_writes, 3u);
}

TEST_F(managed_memory, a_watch_sees_what_no_view_tells) {
  auto watch = managed_watch::start(gpu).value();
  auto memory = resource({gpu_resident, device, both});
  auto buffer = managed_buffer<unsigned char>::create(16 * MiB, *memory, stream).value();
  EXPECT_EQ(buffer.look().error().code, error_code::invalid_argument);
  ASSERT_TRUE(buffer.watch(watch));
  device_address at = 0;
  {
    auto view = buffer.device_view(stream).value();
    at = view.address();
    kernel(at, 16 * MiB, access_kind::write, stream);
  }
  ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
  ASSERT_TRUE(buffer.look());
  EXPECT_THAT(buffer.history().contradictions, IsEmpty());
  // A stray pointer of the CPU: six faults a block.
  gpu->touch_managed(at, 16 * MiB);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(buffer.look());
  ASSERT_THAT(buffer.history().contradictions, SizeIs(1));
  EXPECT_THAT(buffer.history().contradictions[0], HasSubstr("48 faults"));
  // And a kernel without a view.
  kernel(at, 16 * MiB, access_kind::read, stream);
  ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
  ASSERT_TRUE(buffer.look());
  ASSERT_THAT(buffer.history().contradictions, SizeIs(2));
  EXPECT_THAT(buffer.history().contradictions[1], HasSubstr("take a device view"));
}

// As CUPTI's: it knows nothing of memory that was there before it.
class late_watch final : public managed_watch {
 public:
  result<managed_page_counts> counts(device_address, std::uint64_t) override {
    return managed_page_counts{};
  }
};

TEST_F(managed_memory,
       a_watch_that_began_after_the_buffer_is_refused_where_it_would_count_nothing) {
  auto memory = resource({gpu_resident, device, both});
  auto buffer = managed_buffer<unsigned char>::create(MiB, *memory, stream).value();
  const auto refused = buffer.watch(std::make_shared<late_watch>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::not_permitted);
  EXPECT_THAT(refused.error().message, HasSubstr("start the watch first"));
  EXPECT_TRUE(
      buffer.watch(managed_watch::start(gpu).value()));  // the simulated GPU's counts know all
  const auto early = std::make_shared<late_watch>();
  auto later = managed_buffer<unsigned char>::create(MiB, *memory, stream).value();
  EXPECT_TRUE(later.watch(early));
}

TEST(managed_use, counts_are_held_against_each_intent) {
  const auto reported = [](managed_intent intent, const managed_page_counts& counts,
                           memory_side writers = device, memory_side readers = both) {
    const auto found = contradictions({intent, writers, readers}, counts, 64 * MiB);
    return found.empty() ? std::string() : found.front();
  };
  EXPECT_EQ(reported(unstated, {.device_faults = 1000, .host_faults = 1000, .throttles = 9}), "");
  EXPECT_EQ(reported(gpu_resident, {.host_faults = 8}), "");  // seldom
  EXPECT_THAT(reported(gpu_resident, {.host_faults = 9}), HasSubstr("state ping-pong"));
  EXPECT_THAT(reported(streaming, {.device_faults = 64}), HasSubstr("take a device view"));
  EXPECT_EQ(reported(cpu_resident, {.device_faults = 64}), "");
  EXPECT_THAT(reported(cpu_resident, {.bytes_to_device = 64 * MiB}), HasSubstr("moves"));
  EXPECT_THAT(reported(read_mostly, {.device_write_faults = 64}, host), HasSubstr("kernels write"));
  EXPECT_THAT(reported(ping_pong, {.host_faults = 64}), HasSubstr("take a host view"));
  EXPECT_THAT(reported(streaming, {.throttles = 1}), HasSubstr("to and fro"));
}

TEST_F(managed_memory, a_capturing_stream_gets_no_view_and_keeps_its_capture) {
  auto memory = resource({streaming, host, device});
  auto buffer = managed_buffer<int>::create(MiB, *memory, stream).value();
  ASSERT_TRUE(gpu->capture_begin(stream, capture_mode::relaxed).ok());
  EXPECT_EQ(buffer.device_view_to_read(stream).error().code, error_code::not_permitted);
  graph_handle graph = nullptr;
  EXPECT_TRUE(gpu->capture_end(stream, &graph).ok());
  EXPECT_TRUE(gpu->graph_destroy(graph).ok());
}

using managed_traps = managed_memory;
TEST_F(managed_traps, a_stray_pointer_is_caught_while_the_gpu_has_the_memory) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  auto memory = resource({streaming, host, device});
  auto buffer = managed_buffer<int>::create(MiB, *memory, stream, managed_debug::trap).value();
  int* stray = nullptr;
  {
    auto cpu = buffer.host_view().value();
    stray = cpu.data();
    *stray = 5;
  }
  *stray = 6;  // wrong style, but nothing runs yet
  {
    auto view = buffer.device_view_to_read(stream).value();
    kernel(view.address(), buffer.size_bytes(), access_kind::read, stream);
  }
  EXPECT_DEATH(*static_cast<volatile int*>(stray) = 7,
               "the CPU touched managed memory at 0x0000[0-9a-f]+ while the GPU may use it");
  auto cpu = buffer.host_view().value();
  EXPECT_EQ(*stray, 6);
}

TEST_F(managed_traps, need_a_stated_use) {
  managed_resource memory(gpu);
  EXPECT_EQ(managed_buffer<int>::create(4, memory, stream, managed_debug::trap).error().code,
            error_code::not_supported);
}

}  // namespace
}  // namespace millpond
