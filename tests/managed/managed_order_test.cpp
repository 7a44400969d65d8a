// Managed buffers on streams that others write on, that capture, and that are gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"
#include "millpond/managed/managed_buffer.hpp"
#include "support/dead_streams.hpp"
#include "support/forwarding_driver.hpp"
#include "support/others_capture.hpp"

namespace millpond {
namespace {

using enum managed_intent;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t millisecond = 1'000'000;
constexpr managed_use both_sides{ping_pong, memory_side::both, memory_side::both};

class managed_order : public sim_test {
 protected:
  void SetUp() override {
    simulated_gpu_options options;
    options.times = simulated_gpu_options::call_times::median;
    options.race_check = simulated_gpu_options::races::reported;
    make(std::move(options));
    watched = std::make_shared<dead_streams>(gpu);
    a = stream();
    b = stream();
    from = std::make_unique<managed_resource>(watched, nullptr, both_sides);
  }
  void TearDown() override {
    EXPECT_THAT(watched->named(), IsEmpty());
    EXPECT_EQ(from->usage().live_blocks, 0u);
    EXPECT_EQ(from->deallocation_errors(), 0u);
    from.reset();
    sim_test::TearDown();
  }
  void destroy(stream_handle s) {
    ok(watched->stream_destroy(s));
    forget(s);
  }
  void kernel(device_address at, stream_handle on, std::uint64_t ns) {
    ok(gpu->launch({"work", ns, {{at, MiB, access_kind::write}}}, on));
  }
  managed_buffer<int> buffer_on(stream_handle s) {
    return managed_buffer<int>::create(MiB, *from, s).value();
  }
  std::uint64_t took(const std::function<void()>& what) {
    const std::uint64_t before = gpu->now_ns();
    what();
    return gpu->now_ns() - before;
  }

  std::shared_ptr<dead_streams> watched;
  stream_handle a = nullptr, b = nullptr;
  std::unique_ptr<managed_resource> from;
};

// --- Views at once

TEST_F(managed_order, device_views_on_two_streams_are_alive_at_once_only_where_both_read) {
  auto x = buffer_on(a);
  {
    const auto writes = x.device_view(a).value();
    const auto refused = x.device_view(b);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, error_code::not_permitted);
    EXPECT_THAT(refused.error().message, HasSubstr("another stream"));
    EXPECT_FALSE(x.device_view_to_read(b));
    EXPECT_TRUE(x.device_view(a)) << "one stream is in order with itself";
    kernel(writes.address(), a, 3 * millisecond);
  }
  {
    const auto reads = x.device_view_to_read(a).value();
    EXPECT_FALSE(x.device_view(b));
    EXPECT_TRUE(x.device_view_to_read(b));
  }
  const auto now = x.device_view(b).value();
  kernel(now.address(), b, 1);
  EXPECT_GE(took([&] { ok(gpu->stream_synchronize(b)); }), 2 * millisecond);
  EXPECT_THAT(rules(), IsEmpty());
}

TEST_F(managed_order, a_view_that_wrote_and_has_ended_excludes_nobody) {
  auto x = buffer_on(a);
  auto reads = x.host_view_to_read().value();
  {
    auto reads_too = x.host_view_to_read().value();
  }
  {
    auto writes = x.host_view().value();
  }
  EXPECT_TRUE(x.device_view_to_read(a));
}

// --- Captures

TEST_F(managed_order, a_host_view_leaves_the_capture_of_the_buffers_own_stream_whole) {
  auto x = buffer_on(a);
  {
    auto view = x.device_view(b).value();
  }
  ok(gpu->stream_synchronize(b));
  ok(gpu->capture_begin(a, capture_mode::relaxed));
  const auto view = x.host_view();
  EXPECT_TRUE(view) << view.error().message;
  EXPECT_EQ(x.history().prefetches, 2u);
  graph_handle graph = nullptr;
  ok(gpu->capture_end(a, &graph));
  ok(gpu->graph_destroy(graph));
}

TEST_F(managed_order, a_device_view_may_end_while_its_stream_captures_and_its_work_is_waited_for) {
  for (const bool by_another_stream : {false, true}) {
    auto x = buffer_on(a);
    {
      const auto view = x.device_view(b).value();
      kernel(view.address(), b, 5 * millisecond);
      ok(gpu->capture_begin(b, capture_mode::relaxed));
    }
    const std::uint64_t waited = took([&] {
      if (by_another_stream) {
        EXPECT_TRUE(x.device_view(a));
      } else {
        EXPECT_TRUE(x.host_view());
      }
    });
    EXPECT_GE(waited, 4 * millisecond);
    graph_handle graph = nullptr;
    ok(gpu->capture_end(b, &graph));
    ok(gpu->graph_destroy(graph));
  }
}

TEST_F(managed_order, a_buffer_ends_while_streams_of_its_views_and_its_own_capture) {
  device_address at = 0;
  {
    auto x = buffer_on(a);
    {
      const auto view = x.device_view(b).value();
      at = view.address();
      kernel(at, b, 5 * millisecond);
      ok(gpu->capture_begin(b, capture_mode::relaxed));
    }
    ok(gpu->capture_begin(a, capture_mode::relaxed));
  }
  EXPECT_EQ(from->usage().live_blocks, 0u);
  for (const stream_handle s : {a, b}) {
    graph_handle graph = nullptr;
    ok(gpu->capture_end(s, &graph));
    ok(gpu->graph_destroy(graph));
  }
}

TEST_F(managed_order, no_call_of_a_buffer_breaks_the_capture_of_another_thread) {
  const managed_use resident{gpu_resident, memory_side::both, memory_side::both};
  for (const managed_use& use : {both_sides, resident}) {
    for (const capture_mode mode :
         {capture_mode::global, capture_mode::thread_local_, capture_mode::relaxed}) {
      managed_resource memory(gpu, nullptr, use);
      others_capture capture(*gpu, mode);
      {
        auto x = managed_buffer<int>::create(MiB, memory, a).value();
        {
          auto cpu = x.host_view().value();
        }
        for (const stream_handle s : {a, b}) {
          const auto view = x.device_view(s).value();
          kernel(view.address(), s, millisecond);
        }
        {
          auto cpu = x.host_view().value();
        }
        const auto view = x.device_view(a).value();
        kernel(view.address(), a, millisecond);
      }
      EXPECT_TRUE(capture.end().ok()) << to_string(use.intent);
    }
  }
}

// --- Streams that are gone

TEST_F(managed_order, the_stream_it_was_made_on_may_be_destroyed) {
  {
    auto x = buffer_on(a);
    {
      auto view = x.device_view(b).value();
    }
    destroy(a);
    auto view = x.host_view();
    EXPECT_TRUE(view) << view.error().message;
  }
  EXPECT_EQ(from->usage().live_blocks, 0u) << "the block was freed";
}

TEST_F(managed_order, streams_of_ended_views_may_be_destroyed_with_work_pending) {
  auto x = buffer_on(a);
  {
    const auto view = x.device_view(b).value();
    kernel(view.address(), b, 5 * millisecond);
  }
  destroy(b);
  destroy(a);
  EXPECT_GE(took([&] { EXPECT_TRUE(x.host_view()); }), 4 * millisecond);
}

TEST_F(managed_order, the_first_prefetch_is_waited_for_though_its_stream_is_gone) {
  managed_resource resident(watched, nullptr, {gpu_resident, memory_side::both, memory_side::both});
  const stream_handle first = stream();
  ok(gpu->spin(5 * millisecond, first));
  auto x = managed_buffer<int>::create(MiB, resident, first).value();
  destroy(first);
  EXPECT_GE(took([&] { EXPECT_TRUE(x.host_view()); }), 4 * millisecond);
}

// Where the identity of a view's stream cannot be asked when the view ends, no event is behind its
// work.
struct no_identity final : forwarding_driver {
  using forwarding_driver::forwarding_driver;
  bool on = false;
  bool id_outside_capture(stream_handle s, std::uint64_t* id) noexcept override {
    return !on && to().id_outside_capture(s, id);
  }
  driver_status refuse(sim::call which) noexcept override {
    return on && which == sim::call::stream_id ? driver_status::unknown : driver_status::success;
  }
};

TEST_F(managed_order, the_work_of_a_stream_that_cannot_be_identified_is_waited_for) {
  const auto driver = std::make_shared<no_identity>(gpu);
  managed_resource memory(driver, nullptr, both_sides);
  auto x = managed_buffer<int>::create(MiB, memory, a).value();
  {
    const auto view = x.device_view(b).value();
    kernel(view.address(), b, 5 * millisecond);
    driver->on = true;
  }
  EXPECT_GE(took([&] { EXPECT_TRUE(x.host_view()); }), 4 * millisecond);
  driver->on = false;
  {
    const auto view = x.device_view(b).value();
    kernel(view.address(), b, 5 * millisecond);
    driver->on = true;
  }
}

TEST_F(managed_order, the_first_prefetch_on_a_stream_that_cannot_be_identified_is_waited_for) {
  const auto driver = std::make_shared<no_identity>(gpu);
  managed_resource resident(driver, nullptr, {gpu_resident, memory_side::both, memory_side::both});
  ok(gpu->spin(5 * millisecond, a));
  driver->on = true;
  auto x = managed_buffer<int>::create(MiB, resident, a).value();
  EXPECT_GE(took([&] { EXPECT_TRUE(x.host_view()); }), 4 * millisecond);
}

TEST_F(managed_order, a_forked_child_leaves_a_buffer_alone) {
  auto x = std::make_unique<managed_buffer<int>>(buffer_on(a));
  const std::uint64_t before = gpu->calls("cuEventQuery") + gpu->calls("cuEventDestroy");
  {
    const auto view = x->device_view(b).value();
  }
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    x.reset();
    ::_exit(gpu->calls("cuEventQuery") + gpu->calls("cuEventDestroy") == before ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(managed_order, the_default_stream_of_another_context_is_refused) {
  managed_resource memory(gpu, nullptr, both_sides);
  auto x = managed_buffer<int>::create(MiB, memory, a).value();
  const another_context other(*gpu);
  for (const stream_handle s : {stream_handle{}, legacy_stream, per_thread_stream})
    EXPECT_EQ(x.device_view(s).error().code, error_code::invalid_argument);
  EXPECT_TRUE(x.device_view(a));
}

// --- Sizes

TEST_F(managed_order, more_elements_than_any_memory_holds_are_out_of_memory) {
  for (const std::size_t count : {(std::size_t{1} << 61) + 1, ~std::size_t{0}}) {
    const auto refused = managed_buffer<double>::create(count, *from, a);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, error_code::out_of_memory);
    EXPECT_THAT(refused.error().message, HasSubstr(std::to_string(count) + " elements"));
  }
}

}  // namespace
}  // namespace millpond
