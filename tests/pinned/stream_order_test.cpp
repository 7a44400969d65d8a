// Memory that comes from a stream is written by the CPU only behind what the stream still does with
// it, and no call of pinned memory breaks a capture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "millpond/base/units.hpp"
#include "millpond/pinned/pinned_pool.hpp"
#include "millpond/pinned/staging.hpp"
#include "millpond/pool/sleep.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "support/forwarding_driver.hpp"
#include "support/others_capture.hpp"

namespace millpond {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t millisecond = 1'000'000;

struct pinned_order : ::testing::Test {
  pinned_order() {
    simulated_gpu_options options;
    options.times = simulated_gpu_options::call_times::median;
    options.mode = simulated_gpu_options::contents::bytes;
    gpu = *simulated_gpu::create(options);
    memory = *make_pinned_pool(gpu, {.pinning = {.threads = 1, .budget_bytes = 256 * MiB}});
    EXPECT_TRUE(gpu->stream_create(&stream).ok());
  }
  device_address on_device(std::uint64_t bytes) {
    device_address at = 0;
    EXPECT_TRUE(gpu->memory_allocate(&at, bytes).ok());
    return at;
  }
  std::unique_ptr<staging> make_staging(staging_options options) { return made_over(gpu, options); }
  std::unique_ptr<staging> made_over(std::shared_ptr<driver> through, staging_options options) {
    auto made = staging::create(std::move(through), *memory, options);
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }
  std::shared_ptr<simulated_gpu> gpu;
  std::shared_ptr<pool> memory;
  stream_handle stream = nullptr;
};

// --- Behind the stream

TEST_F(pinned_order, the_buffer_of_staging_waits_for_the_copy_that_still_reads_it) {
  const std::uint64_t bytes = 8 * MiB;
  const device_address first = on_device(bytes), second = on_device(bytes);
  void* const before = memory->allocate(bytes, nullptr);
  std::memset(before, 1, bytes);
  ASSERT_TRUE(gpu->spin(50 * millisecond, nullptr).ok());
  ASSERT_TRUE(
      gpu->copy_async(first, reinterpret_cast<device_address>(before), bytes, nullptr).ok());
  memory->deallocate(before, bytes, nullptr);  // in the stream's order: the copy keeps it
  const auto through = make_staging({.threads = 1, .buffer_bytes = bytes, .least_bytes = 1});
  const std::vector<unsigned char> other(bytes, 2);
  ASSERT_TRUE(through->to_device(second, other.data(), bytes, stream));
  ASSERT_TRUE(gpu->context_synchronize().ok());
  std::vector<unsigned char> copied(bytes);
  ASSERT_TRUE(through->to_host(copied.data(), first, bytes, stream));
  EXPECT_EQ(std::count(copied.begin(), copied.end(), 1), static_cast<std::ptrdiff_t>(bytes));
}

TEST_F(pinned_order, a_control_block_waits_for_the_kernel_that_still_writes_it) {
  {
    const control_block<std::uint32_t> before(*memory, stream, 0);
    auto* const at = reinterpret_cast<std::uint32_t*>(before.address());
    kernel_description kernel{"says 7", 10 * millisecond, {}};
    kernel.accesses.push_back({before.address(), 4, access_kind::write});
    kernel.body = [at] { *at = 7; };
    ASSERT_TRUE(gpu->launch(std::move(kernel), stream).ok());
  }  // freed on its stream
  const control_block<std::uint32_t> fresh(*memory, stream, 42);
  ASSERT_TRUE(gpu->stream_synchronize(stream).ok());
  EXPECT_EQ(fresh.load(), 42u);
}

TEST_F(pinned_order, a_control_block_in_a_capture_is_refused_and_the_capture_intact) {
  ASSERT_TRUE(gpu->capture_begin(stream, capture_mode::relaxed).ok());
  try {
    const control_block<std::uint32_t> refused(*memory, stream, 1);
    ADD_FAILURE() << "nobody can wait for the capture's work";
  } catch (const memory_error& why) {
    EXPECT_EQ(why.code(), error_code::not_permitted);
    EXPECT_THAT(why.what(), HasSubstr("before the capture"));
  }
  graph_handle graph = nullptr;
  EXPECT_TRUE(gpu->capture_end(stream, &graph).ok());
  EXPECT_TRUE(gpu->graph_destroy(graph).ok());
  EXPECT_EQ(memory->statistics().live_bytes, 0u);
}

TEST_F(pinned_order, staging_is_refused_where_a_capture_holds_the_default_stream) {
  others_capture capture(*gpu, capture_mode::relaxed, per_thread_stream);
  const auto refused = staging::create(gpu, *memory, {.threads = 1});
  EXPECT_EQ(refused.error().code, error_code::not_permitted) << refused.error().message;
  EXPECT_TRUE(capture.end().ok());
}

TEST_F(pinned_order, the_default_stream_of_another_context_is_refused_by_staging) {
  const auto through = make_staging({.threads = 1});
  const device_address device = on_device(MiB);
  const std::vector<unsigned char> data(MiB);
  const another_context other(*gpu);
  const auto refused = through->to_device(device, data.data(), MiB, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, error_code::invalid_argument);
  EXPECT_TRUE(through->to_device(device, data.data(), MiB, stream));
}

// --- Forks

TEST_F(pinned_order, staging_in_a_forked_child_is_refused_and_ends_at_once) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a forked child that lets go of its parent's threads";
#endif
  auto through = make_staging({.threads = 2, .looks_before_sleep = 0});
  const device_address device = on_device(4 * MiB);
  std::vector<unsigned char> data(4 * MiB, 3), back(4 * MiB);
  ASSERT_TRUE(through->to_device(device, data.data(), data.size(), stream));
  const std::uint64_t calls = gpu->calls("cuEventSynchronize") + gpu->calls("cuEventDestroy");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(10);  // one that waits for a thread that did not come along dies
    const auto refused = through->to_device(device, data.data(), data.size(), stream);
    int bad = !refused && refused.error().code == error_code::not_permitted ? 0 : 1;
    bad += through->to_host(back.data(), device, back.size(), stream) ? 2 : 0;
    bad += through->statistics().transfers == 0 ? 0 : 4;
    through.reset();
    const std::uint64_t now = gpu->calls("cuEventSynchronize") + gpu->calls("cuEventDestroy");
    bad += now == calls ? 0 : 8;
    ::_exit(bad);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ASSERT_TRUE(through->to_host(back.data(), device, back.size(), stream)) << "the parent goes on";
  EXPECT_EQ(back, data);
}

// --- Marks

// Copies at once, the end first, as an engine may; nothing is ever on its way.
struct copies_at_once final : forwarding_driver {
  using forwarding_driver::forwarding_driver;
  call_result copy_async(device_address to, device_address from, std::uint64_t bytes,
                         stream_handle) noexcept override {
    constexpr std::uint64_t part = 64 * KiB;
    for (std::uint64_t end = bytes; end > 0;) {
      const std::uint64_t here = std::min(end, part);
      end -= here;
      std::memcpy(reinterpret_cast<char*>(to) + end, reinterpret_cast<const char*>(from) + end,
                  here);
    }
    return {};
  }
  call_result event_record(event_handle, stream_handle) noexcept override { return {}; }
  call_result event_query(event_handle) noexcept override { return {}; }
  call_result event_synchronize(event_handle) noexcept override { return {}; }
};

// staging::next_place_, to be as far as months of transfers bring it.
template <auto Member>
struct reached {
  friend std::uint64_t& place_of(staging& of) { return of.*Member; }
};
std::uint64_t& place_of(staging& of);
template struct reached<&staging::next_place_>;

TEST_F(pinned_order, no_transfer_takes_the_marks_of_an_earlier_one_for_its_own) {
  const std::uint64_t bytes = 4 * MiB, least_piece = 16 * KiB;
  std::vector<unsigned char> from(bytes), to(bytes);
  // Between the two are so many of one piece that numbers of 16, 24, 32 and 40 bits begin again.
  for (const unsigned bits : {16u, 24u, 32u, 40u}) {
    const auto through = made_over(std::make_shared<copies_at_once>(gpu),
                                   {.threads = 1, .buffer_bytes = bytes, .least_bytes = 1});
    for (unsigned char value = 1; value <= 2; ++value) {
      std::fill(from.begin(), from.end(), value);
      ASSERT_TRUE(through->to_device(reinterpret_cast<device_address>(to.data()), from.data(),
                                     bytes, stream));
      EXPECT_EQ(std::count(to.begin(), to.end(), value), static_cast<std::ptrdiff_t>(bytes))
          << "2^" << bits << " transfers later";
      place_of(*through) = (std::uint64_t{1} << bits) * least_piece;
    }
  }
}

// --- Beside captures of others

struct pinned_beside_a_capture : pinned_order {
  // What runs beside a capture in each mode, and the capture is whole afterwards.
  template <class Work>
  void beside(Work work) {
    for (const capture_mode mode :
         {capture_mode::global, capture_mode::thread_local_, capture_mode::relaxed}) {
      others_capture capture(*gpu, mode);
      work();
      EXPECT_TRUE(capture.end().ok()) << "mode " << static_cast<int>(mode);
    }
  }
};

TEST_F(pinned_beside_a_capture, staging_is_made_moves_both_ways_and_ends) {
  const device_address device = on_device(MiB);
  beside([&] {
    const auto through =
        make_staging({.threads = 1, .buffer_bytes = 256 * KiB, .least_bytes = 4 * KiB});
    std::vector<unsigned char> out(MiB, 3), back(MiB);
    EXPECT_TRUE(through->to_device(device, out.data(), MiB, stream));
    EXPECT_TRUE(through->to_device(device, out.data(), MiB, stream));
    EXPECT_TRUE(through->to_host(back.data(), device, MiB, stream));
    EXPECT_EQ(back, out);
  });
}

TEST_F(pinned_beside_a_capture, the_pinner_pins_and_unpins_and_so_does_its_own_thread) {
  beside([&] {
    auto pinner = *host_pinner::create(
        gpu, {.threads = 1, .budget_bytes = 64 * MiB, .keep_ready_bytes = 4 * MiB});
    pinner->wait_until_ready();
    const auto ready = pinner->allocate(4 * MiB);  // the next is pinned by the pinner's thread
    pinner->wait_until_ready();
    const auto more = pinner->allocate(8 * MiB);
    EXPECT_EQ(pinner->usage().background_failure, "");
    EXPECT_EQ(pinner->usage().ready_bytes, 4 * MiB);
    ASSERT_TRUE(ready && more);
    EXPECT_TRUE(pinner->free(*ready, 4 * MiB));
    EXPECT_TRUE(pinner->free(*more, 8 * MiB));
  });
}

TEST_F(pinned_beside_a_capture, write_combined_memory_comes) {
  std::vector<std::shared_ptr<pool>> made;
  beside([&] {
    pinned_pool_options options{.pinning = {.threads = 1, .budget_bytes = 64 * MiB}};
    options.caching = driver::host_flags::write_combined;
    options.initial_bytes = 2 * MiB;
    auto combined = make_pinned_pool(gpu, options);
    ASSERT_TRUE(combined) << combined.error().message;
    made.push_back(*combined);
  });
}

TEST_F(pinned_beside_a_capture, a_store_for_sleep_is_made_and_ends) {
  beside([&] {
    const auto store = pinned_store::create(gpu, MiB, 1);
    EXPECT_TRUE(store) << store.error().message;
  });
}

}  // namespace
}  // namespace millpond
