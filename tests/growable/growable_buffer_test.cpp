// growable_buffer: grows in place, never copies, shrinks in the stream's order, and loses nothing
// when a call fails.
#include "millpond/growable/growable_buffer.hpp"

#include <algorithm>
#include <set>

#include "driver/sim_fixture.hpp"
#include "support/failing_driver.hpp"

namespace millpond {
namespace {

constexpr std::uint64_t millisecond = 1'000'000;

class growable : public sim_test {
 protected:
  using words = growable_buffer<std::uint64_t>;
  static constexpr std::size_t a_mib = MiB / sizeof(std::uint64_t);

  void begin(simulated_gpu_options options = {}) {
    options.times = simulated_gpu_options::call_times::median;
    make(std::move(options));
    s = stream();
    void* host = nullptr;
    ok(gpu->host_allocate(&host, sizeof(identity_report), driver::host_flags::none));
    report = new (host) identity_report;
  }
  void TearDown() override {
    if (report != nullptr) ok(gpu->host_free(report));
    report = nullptr;
    sim_test::TearDown();
  }
  void write(const words& b, std::uint64_t identity) {
    const identity_block block{b.address(), b.size_bytes(), identity};
    ok(gpu->identity_write({&block, 1}, s));
  }
  std::uint64_t wrong(const words& b, std::uint64_t bytes, std::uint64_t identity) {
    *report = {};
    const identity_block block{b.address(), bytes, identity};
    ok(gpu->identity_check({&block, 1}, report, s));
    ok(gpu->stream_synchronize(s));
    return report->mismatches;
  }
  void busy(std::uint64_t nanoseconds, device_address at = 0, std::uint64_t bytes = 0) {
    kernel_description kernel;
    kernel.name = "busy";
    kernel.duration_ns = nanoseconds;
    if (bytes > 0) kernel.accesses.push_back({at, bytes, access_kind::write});
    ok(gpu->launch(std::move(kernel), s));
  }

  stream_handle s = nullptr;
  identity_report* report = nullptr;
};

TEST_F(growable, growth_keeps_the_address_and_the_contents_and_copies_nothing) {
  begin();
  words b(gpu, 4096 * a_mib, s);
  EXPECT_EQ(gpu->physical_bytes(), 0u);
  const std::uint64_t* const data = b.data();
  b.resize(10 * a_mib);
  write(b, 7);
  gpu->reset_counters();
  for (std::size_t mib = 20; mib <= 1000; mib += 20) b.resize(mib * a_mib);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(wrong(b, 10 * MiB, 7), 0u);
  EXPECT_EQ(gpu->calls("cuMemcpyAsync"), 0u);
  EXPECT_EQ(gpu->device_waits(), 0u);
  EXPECT_EQ(b.memory().bytes(), 1024 * MiB);
  EXPECT_EQ(gpu->physical_bytes(), 1024 * MiB);
  EXPECT_EQ(gpu->calls("cuMemCreate"), 31u) << "a handle a step";
}

TEST_F(growable, growing_a_gibibyte_by_a_step_costs_one_handle) {
  begin();
  words b(gpu, 2048 * a_mib, s);
  b.resize(1024 * a_mib);
  gpu->reset_counters();
  const std::uint64_t before = gpu->now_ns();
  b.resize(1056 * a_mib);
  EXPECT_LE(gpu->now_ns() - before, 100'000u) << "nanoseconds on the simulated H200";
  EXPECT_EQ(gpu->calls("cuMemCreate"), 1u);
  EXPECT_EQ(gpu->calls("cuMemSetAccess"), 1u);
}

TEST_F(growable, work_that_runs_goes_on_while_it_grows) {
  begin();
  words b(gpu, 1024 * a_mib, s);
  b.resize(64 * a_mib);
  const std::uint64_t start = gpu->now_ns();
  busy(50 * millisecond, b.address(), b.size_bytes());
  b.resize(512 * a_mib);
  EXPECT_LT(gpu->now_ns() - start, 5 * millisecond);
}

TEST_F(growable, shrinking_gives_back_whole_handles_once_the_stream_has_passed) {
  begin();
  words b(gpu, 1024 * a_mib, s);
  for (std::size_t mib = 32; mib <= 320; mib += 32) b.resize(mib * a_mib);
  write(b, 3);
  busy(10 * millisecond, b.address() + 300 * MiB, 1);
  b.resize(100 * a_mib);
  const std::uint64_t start = gpu->now_ns();
  b.shrink_to_fit();
  EXPECT_LT(gpu->now_ns() - start, millisecond) << "it does not wait";
  EXPECT_EQ(b.memory().bytes(), 128 * MiB);
  EXPECT_EQ(b.memory().retired_bytes(), 192 * MiB);
  EXPECT_EQ(gpu->physical_bytes(), 320 * MiB) << "a kernel may still read there";
  EXPECT_EQ(b.memory().give_back(), 0u);
  gpu->advance(20 * millisecond);
  EXPECT_EQ(b.memory().give_back(), 192 * MiB);
  EXPECT_EQ(gpu->physical_bytes(), 128 * MiB);
  EXPECT_EQ(wrong(b, 32 * MiB, 3), 0u);
}

TEST_F(growable, what_was_shrunk_off_and_is_still_there_serves_again) {
  begin();
  words b(gpu, 1024 * a_mib, s);
  for (std::size_t mib = 32; mib <= 320; mib += 32) b.resize(mib * a_mib);
  busy(10 * millisecond, b.address() + 300 * MiB, 1);
  b.resize(a_mib);
  b.shrink_to_fit();
  gpu->reset_counters();
  // On another stream, which has to wait for the first, on the GPU.
  const stream_handle t = stream();
  b.set_stream(t);
  const std::uint64_t start = gpu->now_ns();
  b.resize(200 * a_mib);
  EXPECT_LT(gpu->now_ns() - start, millisecond);
  EXPECT_EQ(gpu->calls("cuMemCreate"), 0u);
  EXPECT_EQ(gpu->calls("cuStreamWaitEvent"), 1u);
  const identity_block block{b.address(), b.size_bytes(), 9};
  ok(gpu->identity_write({&block, 1}, t));
  ok(gpu->stream_synchronize(t));
  EXPECT_GE(gpu->now_ns() - start, 9 * millisecond);
  b.set_stream(s);
}

TEST_F(growable, limits_are_reported_clearly) {
  simulated_gpu_options small;
  small.memory_bytes = 250 * MiB;
  begin(small);
  words b(gpu, 512 * a_mib, s, {.name = "cache"});
  b.resize(100 * a_mib);
  write(b, 4);
  const auto past = b.try_resize(600 * a_mib);
  EXPECT_EQ(past.error().code, error_code::out_of_memory);
  EXPECT_NE(past.error().message.find("512 MiB"), std::string::npos) << past.error().message;
  const auto device = b.try_resize(300 * a_mib);
  EXPECT_EQ(device.error().code, error_code::out_of_memory);
  EXPECT_NE(device.error().message.find("cuMemCreate"), std::string::npos)
      << device.error().message;
  EXPECT_NE(device.error().message.find("cache"), std::string::npos);
  EXPECT_EQ(b.size(), 100 * a_mib);
  EXPECT_EQ(wrong(b, 100 * MiB, 4), 0u);
  b.resize(250 * a_mib);  // less than a step is left: what is needed is taken
  EXPECT_EQ(b.memory().bytes(), 250 * MiB);
  EXPECT_THROW(b.resize(257 * a_mib), out_of_memory);
  EXPECT_EQ(words::create(nullptr, 1, s).error().code, error_code::invalid_argument);
  EXPECT_EQ(words::create(gpu, 0, s).error().code, error_code::invalid_argument);
  EXPECT_EQ(words::create(gpu, ~std::size_t{0}, s).error().code, error_code::out_of_memory);
}

TEST_F(growable, a_device_without_virtual_memory_is_reported) {
  simulated_gpu_options plain;
  plain.profile.device.virtual_memory = false;
  begin(plain);
  EXPECT_EQ(words::create(gpu, 100, s).error().code, error_code::not_supported);
}

TEST_F(growable, a_budget_is_shared_and_given_back) {
  begin();
  const auto budget = memory_budget::create({.hard_bytes = 200 * MiB});
  {
    words a(gpu, 512 * a_mib, s, {.budget = budget, .name = "a"});
    words b(gpu, 512 * a_mib, s, {.budget = budget, .name = "b"});
    a.resize(128 * a_mib);
    b.resize(64 * a_mib);
    EXPECT_EQ(budget->used_bytes(), 192 * MiB);
    const auto refused = b.try_resize(80 * a_mib);
    EXPECT_EQ(refused.error().code, error_code::out_of_memory);
    EXPECT_NE(refused.error().message.find("budget"), std::string::npos) << refused.error().message;
    b.resize(72 * a_mib);
    EXPECT_EQ(budget->used_bytes(), 200 * MiB);
    a.resize(0);
    a.shrink_to_fit();
    b.resize(190 * a_mib);
    EXPECT_EQ(budget->shares().size(), 2u);
  }
  EXPECT_EQ(budget->used_bytes(), 0u);
  EXPECT_EQ(budget->peak_bytes(), 200 * MiB);
}

TEST_F(growable, others_give_back_past_the_soft_limit_and_before_the_hard_one_refuses) {
  begin();
  const auto budget = memory_budget::create({.hard_bytes = 256 * MiB, .soft_bytes = 128 * MiB});
  std::shared_ptr<memory_budget::member> other;
  other = budget->join("other", [&](std::uint64_t bytes) {
    const std::uint64_t given = std::min(bytes, other->bytes());
    other->give(given);
    return given;
  });
  ASSERT_TRUE(other->try_take(120 * MiB));
  words b(gpu, 512 * a_mib, s, {.budget = budget});
  b.resize(32 * a_mib);
  EXPECT_EQ(other->bytes(), 88 * MiB) << "the soft limit would be passed";
  EXPECT_EQ(b.memory().bytes(), 32 * MiB);
  budget->set_limits({.hard_bytes = 256 * MiB});
  ASSERT_TRUE(other->try_take(100 * MiB));
  b.resize(150 * a_mib);
  EXPECT_LE(budget->used_bytes(), 256 * MiB);
  b.resize(0);
  b.shrink_to_fit();
  other->give(other->bytes());
}

TEST_F(growable, what_the_driver_keeps_at_the_end_stays_counted_by_the_budget) {
  for (const char* call : {"cuMemUnmap", "cuMemRelease", "cuEventSynchronize", "cuEventRecord"}) {
    begin();
    leak_check = false;
    const auto budget = memory_budget::create({.hard_bytes = 512 * MiB});
    {
      words b(gpu, 512 * a_mib, s, {.largest_handle_bytes = 64 * MiB, .budget = budget});
      b.resize(256 * a_mib);
      busy(millisecond, b.address(), 1);
      fault_plan plan;
      plan.faults.push_back({.call = call, .count = 100, .status = driver_status::unknown});
      gpu->set_faults(plan);
      ::testing::internal::CaptureStderr();
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("leaves 256 MiB to the driver"), std::string::npos) << call << ": " << said;
    EXPECT_EQ(gpu->physical_bytes(), 256 * MiB) << call;
    EXPECT_EQ(budget->used_bytes(), 256 * MiB) << call;
    EXPECT_EQ(budget->left_bytes(), 256 * MiB) << call;
    gpu->set_faults({});
    words later(gpu, 512 * a_mib, s, {.budget = budget});
    EXPECT_EQ(later.try_resize(300 * a_mib).error().code, error_code::out_of_memory) << call;
    later.resize(256 * a_mib);
    TearDown();
    forget(s);  // it went with its GPU
  }
}

TEST_F(growable, steps_of_any_size_serve) {
  struct {
    std::uint64_t step_mib, grown_mib;
  } const cases[] = {{0, 10}, {48, 48}, {6, 12}, {1024, 512}};
  begin();
  for (const auto& each : cases) {
    words b(gpu, 512 * a_mib, s, {.step_bytes = each.step_mib * MiB});
    b.resize(9 * a_mib);
    EXPECT_EQ(b.memory().bytes(), each.grown_mib * MiB) << "by steps of " << each.step_mib;
    b.resize(100 * a_mib);
    EXPECT_GE(b.memory().bytes(), 100 * MiB);
  }
  for (const std::uint64_t step : {UINT64_MAX, UINT64_MAX - 1, std::uint64_t{1} << 63}) {
    words b(gpu, 64 * a_mib, s, {.step_bytes = step, .largest_handle_bytes = UINT64_MAX});
    b.resize(1);
    EXPECT_EQ(b.memory().bytes(), 64 * MiB) << "all at once";
    EXPECT_EQ(b.memory().handles(), 1u);
  }
}

TEST_F(growable, in_a_capture_it_grows_and_refuses_to_shrink) {
  begin();
  words b(gpu, 512 * a_mib, s);
  b.resize(32 * a_mib);
  ok(gpu->capture_begin(s, capture_mode::global));
  b.resize(64 * a_mib);
  b.resize(1);
  EXPECT_EQ(b.try_shrink_to_fit().error().code, error_code::not_permitted);
  graph_handle graph = nullptr;
  ok(gpu->capture_end(s, &graph));
  ok(gpu->graph_destroy(graph));
  EXPECT_EQ(b.memory().bytes(), 64 * MiB);
}

TEST_F(growable, host_memory_grows_too_and_the_cpu_reads_it) {
  begin(in_bytes());
  words b(gpu, 64 * a_mib, s, {.step_bytes = 2 * MiB, .location = memory_location::host});
  b.resize(a_mib);
  b.data()[5] = 55;
  b.resize(20 * a_mib);
  b.data()[20 * a_mib - 1] = 66;
  EXPECT_EQ(b.data()[5], 55u);
}

TEST_F(growable, moves_leave_one_owner) {
  begin();
  words a(gpu, 64 * a_mib, s);
  a.resize(a_mib);
  const auto* const data = a.data();
  words b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.size(), 0u);  // NOLINT: what a moved-from buffer says of itself
  EXPECT_EQ(a.try_resize(1).error().code, error_code::not_permitted);
  words c(gpu, 32 * a_mib, s);
  c.resize(2);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(gpu->physical_bytes(), 32 * MiB);
}

// Every call fails in turn, once or with those that undo it: sizes, contents and memory are as they
// were.
class growable_faults : public growable {
 protected:
  void sweep(std::uint64_t failing_calls, driver_status status) {
    std::set<std::string> failed;
    for (std::uint64_t at = 1; at < 500; ++at) {
      begin();
      auto failing = std::make_shared<failing_driver>(gpu);
      bool done = false;
      {
        auto made = words::create(failing, 2048 * a_mib, s, {.largest_handle_bytes = 64 * MiB});
        ASSERT_TRUE(made.has_value());
        words& b = *made;
        b.resize(40 * a_mib);
        write(b, 11);
        ok(gpu->stream_synchronize(s));
        failing->fail(at, status, failing_calls);
        const auto attempt = [&](auto&& step) {
          const std::size_t size = b.size();
          const std::uint64_t bytes = b.memory().bytes();
          const auto answer = step();
          if (!answer) {
            if (failing_calls == 1) {
              EXPECT_NE(answer.error().message.find(failing->failed()), std::string::npos)
                  << answer.error().message;
            }
            EXPECT_EQ(b.size(), size);
            EXPECT_EQ(b.memory().bytes(), bytes);
          }
          EXPECT_EQ(wrong(b, 40 * MiB, 11), 0u);
        };
        attempt([&] { return b.try_resize(300 * a_mib); });
        attempt([&] { return b.try_resize(40 * a_mib); });
        attempt([&] { return b.try_shrink_to_fit(); });
        attempt([&] { return b.try_resize(200 * a_mib); });
        busy(millisecond, b.address() + b.memory().bytes() - 1, 1);
        attempt([&] { return b.try_resize(40 * a_mib); });
        attempt([&] { return b.try_shrink_to_fit(); });
        attempt([&] { return b.try_resize(90 * a_mib); });
        done = failing->failed().empty();
        if (!done) failed.insert(failing->failed());
        failing->fail(0, status);
        // Healed: it grows as if nothing had been.
        b.resize(500 * a_mib);
        EXPECT_EQ(wrong(b, 40 * MiB, 11), 0u);
        write(b, 12);
        EXPECT_EQ(wrong(b, 500 * MiB, 12), 0u);
      }
      TearDown();
      if (HasFailure()) {
        ADD_FAILURE() << "first at call " << at;
        return;
      }
      if (done) {
        EXPECT_GE(failed.size(), 7u);
        return;
      }
    }
    FAIL();
  }
};
TEST_F(growable_faults, any_call_may_fail) {
  sweep(1, driver_status::unknown);
}
TEST_F(growable_faults, any_call_may_run_out_of_memory) {
  sweep(1, driver_status::out_of_memory);
}
TEST_F(growable_faults, any_call_and_those_that_undo_it_may_fail) {
  sweep(4, driver_status::unknown);
}

TEST_F(growable_faults, any_call_of_its_end_may_fail_once) {
  for (std::uint64_t at = 1; at < 100; ++at) {
    begin();
    auto failing = std::make_shared<failing_driver>(gpu);
    {
      words b(failing, 2048 * a_mib, s, {.largest_handle_bytes = 64 * MiB});
      b.resize(200 * a_mib);
      failing->fail(at, driver_status::unknown);
    }
    const bool done = failing->failed().empty();
    TearDown();
    if (HasFailure() || done) return;
  }
  FAIL();
}

}  // namespace
}  // namespace millpond
