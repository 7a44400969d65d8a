// Streams, events, plain memory, costs: what every other test stands on.
#include <gtest/gtest.h>

#include <cstring>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

class sim_basics : public sim_test {};

TEST_F(sim_basics, a_stream_is_done_when_its_virtual_time_has_come) {
  make();
  const stream_handle s = stream();
  ok(gpu->spin(1'000'000, s));
  EXPECT_EQ(gpu->stream_query(s).status, driver_status::not_ready);
  gpu->advance(900'000);
  EXPECT_EQ(gpu->stream_query(s).status, driver_status::not_ready);
  gpu->advance(200'000);
  ok(gpu->stream_query(s));
}

TEST_F(sim_basics, synchronize_waits_in_virtual_time) {
  make();
  const stream_handle s = stream();
  const std::uint64_t before = gpu->now_ns();
  ok(gpu->spin(5'000'000, s));
  ok(gpu->stream_synchronize(s));
  EXPECT_GE(gpu->now_ns() - before, 5'000'000u);
  EXPECT_LT(gpu->now_ns() - before, 5'100'000u);
}

TEST_F(sim_basics, streams_run_side_by_side_and_events_order_them) {
  make();
  const stream_handle a = stream(), b = stream();
  const event_handle e = event();
  ok(gpu->spin(1'000'000, a));
  ok(gpu->event_record(e, a));
  ok(gpu->stream_wait_event(b, e));
  ok(gpu->spin(1'000'000, b));
  const stream_handle c = stream();
  ok(gpu->spin(1'500'000, c));
  gpu->advance(1'600'000);
  ok(gpu->stream_query(a));
  ok(gpu->stream_query(c));
  ok(gpu->event_query(e));
  EXPECT_EQ(gpu->stream_query(b).status, driver_status::not_ready);
  gpu->advance(500'000);
  ok(gpu->stream_query(b));
}

TEST_F(sim_basics, an_event_that_was_never_recorded_is_complete) {
  make();
  const event_handle e = event();
  ok(gpu->event_query(e));
  ok(gpu->event_synchronize(e));
}

TEST_F(sim_basics, a_destroyed_streams_handle_comes_back_with_another_identity) {
  make();
  const stream_handle old = stream();
  std::uint64_t first = 0, second = 0;
  ok(gpu->stream_id(old, &first));
  ok(gpu->spin(1'000'000, old));
  const event_handle context = event(), other = event();
  forget(old);
  ok(gpu->stream_destroy(old));
  const stream_handle fresh = stream();
  EXPECT_EQ(fresh, old);
  ok(gpu->stream_id(fresh, &second));
  EXPECT_NE(first, second);
  // The old work is still pending: only a context event covers it.
  ok(gpu->event_record(other, fresh));
  ok(gpu->context_record_event(context));
  ok(gpu->event_query(other));
  EXPECT_EQ(gpu->event_query(context).status, driver_status::not_ready);
  gpu->advance(1'100'000);
  ok(gpu->event_query(context));
}

TEST_F(sim_basics, a_destroyed_handle_is_refused_while_nothing_has_it) {
  make();
  const stream_handle s = stream();
  forget(s);
  ok(gpu->stream_destroy(s));
  EXPECT_EQ(gpu->spin(1, s).status, driver_status::invalid_handle);
  EXPECT_EQ(gpu->stream_destroy(s).status, driver_status::invalid_handle);
}

TEST_F(sim_basics, the_legacy_stream_waits_for_per_thread_streams_and_not_for_others) {
  make();
  simulated_gpu::set_thread(1);
  const stream_handle s = stream();
  ok(gpu->spin(10'000'000, s));
  ok(gpu->spin(1'000'000, per_thread_stream));
  ok(gpu->spin(1'000'000, legacy_stream));
  gpu->advance(1'100'000);
  EXPECT_EQ(gpu->stream_query(nullptr).status, driver_status::not_ready);
  gpu->advance(1'000'000);
  ok(gpu->stream_query(nullptr));
  EXPECT_EQ(gpu->stream_query(s).status, driver_status::not_ready);
}

TEST_F(sim_basics, each_thread_has_a_per_thread_stream_of_its_own) {
  make();
  std::uint64_t one = 0, two = 0, again = 0, legacy = 0;
  simulated_gpu::set_thread(1);
  ok(gpu->stream_id(per_thread_stream, &one));
  simulated_gpu::set_thread(2);
  ok(gpu->stream_id(per_thread_stream, &two));
  simulated_gpu::set_thread(1);
  ok(gpu->stream_id(per_thread_stream, &again));
  ok(gpu->stream_id(nullptr, &legacy));
  EXPECT_EQ(one, again);
  EXPECT_NE(one, two);
  EXPECT_NE(one, legacy);
}

TEST_F(sim_basics, freeing_device_or_pinned_memory_waits_for_the_whole_device) {
  make();
  device_address d = 0;
  void* h = nullptr;
  ok(gpu->memory_allocate(&d, 1 * MiB));
  ok(gpu->host_allocate(&h, 4 * KiB, driver::host_flags::none));
  const stream_handle s = stream();
  ok(gpu->spin(10'000'000, s));
  std::uint64_t before = gpu->now_ns();
  ok(gpu->memory_free(d));
  EXPECT_NEAR(static_cast<double>(gpu->now_ns() - before), 10.04e6, 0.1e6);
  ok(gpu->spin(10'000'000, s));
  before = gpu->now_ns();
  ok(gpu->host_free(h));
  EXPECT_GT(gpu->now_ns() - before, 10'000'000u);
  EXPECT_EQ(gpu->device_waits(), 2u);
}

TEST_F(sim_basics, a_call_costs_what_the_profile_says) {
  simulated_gpu_options options;
  options.times = simulated_gpu_options::call_times::median;
  make(options);
  device_address d = 0;
  const std::uint64_t before = gpu->now_ns();
  ok(gpu->memory_allocate(&d, 64 * MiB));
  EXPECT_EQ(gpu->now_ns() - before, 51'000u);
  EXPECT_EQ(gpu->calls("cuMemAlloc"), 1u);
  ok(gpu->memory_free(d));
  EXPECT_EQ(gpu->total_calls(), 2u);
  EXPECT_EQ(gpu->call_time_ns(), 51'000u + 88'000u);
}

TEST_F(sim_basics, sampled_times_have_the_tables_median_and_tail) {
  make();
  std::vector<std::uint64_t> times;
  for (int i = 0; i < 4000; ++i) {
    device_address d = 0;
    const std::uint64_t before = gpu->now_ns();
    ok(gpu->memory_allocate(&d, 1 * GiB));
    times.push_back(gpu->now_ns() - before);
    ok(gpu->memory_free(d));
  }
  std::sort(times.begin(), times.end());
  EXPECT_NEAR(static_cast<double>(times[2000]), 183e3, 5e3);
  EXPECT_NEAR(static_cast<double>(times[3960]), 465e3, 40e3);
}

TEST_F(sim_basics, the_same_seed_gives_the_same_run) {
  const auto run = [&](std::uint64_t seed) {
    simulated_gpu_options options;
    options.seed = seed;
    auto one = simulated_gpu::create(options).value();
    stream_handle s = nullptr;
    (void)one->stream_create(&s);
    for (int i = 0; i < 200; ++i) {
      device_address d = 0;
      (void)one->memory_allocate(&d, 1000 * static_cast<std::uint64_t>(i + 1));
      (void)one->set_async(d, 1, 1000, s);
      (void)one->memory_free(d);
    }
    return one->now_ns();
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

TEST_F(sim_basics, memory_is_limited_and_small_blocks_share_pages) {
  simulated_gpu_options options;
  options.memory_bytes = 16 * MiB;
  make(options);
  std::uint64_t free = 0, total = 0;
  device_address a = 0, b = 0, c = 0;
  ok(gpu->memory_allocate(&a, 1000));
  ok(gpu->memory_allocate(&b, 1000));
  ok(gpu->memory_info(&free, &total));
  EXPECT_EQ(total, 16 * MiB);
  EXPECT_EQ(free, 14 * MiB);
  EXPECT_EQ(gpu->memory_allocate(&c, 15 * MiB).status, driver_status::out_of_memory);
  ok(gpu->memory_allocate(&c, 14 * MiB));
  EXPECT_EQ(gpu->physical_bytes(), 16 * MiB);
  ok(gpu->memory_free(a));
  ok(gpu->memory_free(b));
  ok(gpu->memory_free(c));
  EXPECT_EQ(gpu->physical_bytes(), 0u);
  EXPECT_EQ(gpu->physical_peak(), 16 * MiB);
}

TEST_F(sim_basics, pointer_info_knows_the_kind_and_the_range) {
  make();
  device_address d = 0, m = 0;
  void* h = nullptr;
  ok(gpu->memory_allocate(&d, 3000));
  ok(gpu->managed_allocate(&m, 5 * MiB));
  ok(gpu->host_allocate(&h, 100, driver::host_flags::none));
  driver::pointer_facts facts;
  ok(gpu->pointer_info(d + 10, &facts));
  EXPECT_EQ(facts.kind, memory_kind::device);
  EXPECT_EQ(facts.start, d);
  EXPECT_EQ(facts.bytes, 3000u);
  ok(gpu->pointer_info(m + 4 * MiB, &facts));
  EXPECT_EQ(facts.kind, memory_kind::managed);
  ok(gpu->pointer_info(reinterpret_cast<device_address>(h), &facts));
  EXPECT_EQ(facts.kind, memory_kind::pinned);
  int local = 0;
  ok(gpu->pointer_info(reinterpret_cast<device_address>(&local), &facts));
  EXPECT_EQ(facts.kind, memory_kind::pageable);
  EXPECT_EQ(facts.bytes, 0u);
  ok(gpu->memory_free(d));
  ok(gpu->memory_free(m));
  ok(gpu->host_free(h));
}

TEST_F(sim_basics, registered_memory_is_pinned_until_it_is_unregistered) {
  make();
  alignas(4096) static char page[8192];
  const auto at = reinterpret_cast<device_address>(&page[0]);
  ok(gpu->host_register(page, sizeof page));
  EXPECT_FALSE(gpu->host_register(page, sizeof page).ok());
  driver::pointer_facts facts;
  ok(gpu->pointer_info(at + 5000, &facts));
  EXPECT_EQ(facts.kind, memory_kind::pinned);
  EXPECT_EQ(gpu->host_memory_bytes(), 8192u);
  ok(gpu->host_unregister(page));
  EXPECT_FALSE(gpu->host_unregister(page).ok());
}

TEST_F(sim_basics, freeing_by_the_wrong_call_is_refused_and_loses_nothing) {
  make();
  device_address d = 0;
  void* h = nullptr;
  ok(gpu->memory_allocate(&d, 4096));
  ok(gpu->host_allocate(&h, 4096, driver::host_flags::none));
  EXPECT_EQ(gpu->memory_free(reinterpret_cast<device_address>(h)).status,
            driver_status::invalid_value);
  EXPECT_EQ(gpu->host_free(reinterpret_cast<void*>(d)).status, driver_status::invalid_value);
  EXPECT_EQ(gpu->memory_free(d + 512).status, driver_status::invalid_value);
  EXPECT_EQ(gpu->leaks().device_allocations, 1u);
  EXPECT_EQ(gpu->leaks().host_allocations, 1u);
  gpu->clear_violations();
  ok(gpu->memory_free(d));
  ok(gpu->host_free(h));
  EXPECT_EQ(gpu->memory_free(d).status, driver_status::invalid_value);
}

TEST_F(sim_basics, copies_take_the_links_time_and_share_it) {
  make();
  const std::uint64_t bytes = 256 * MiB;
  device_address d = 0, d2 = 0;
  void* h = nullptr;
  ok(gpu->memory_allocate(&d, bytes));
  ok(gpu->memory_allocate(&d2, bytes));
  ok(gpu->host_allocate(&h, bytes, driver::host_flags::none));
  const auto from = reinterpret_cast<device_address>(h);
  const stream_handle a = stream(), b = stream();
  std::uint64_t before = gpu->now_ns();
  ok(gpu->copy_async(d, from, bytes, a));
  EXPECT_LT(gpu->now_ns() - before, 100'000u);
  ok(gpu->stream_synchronize(a));
  EXPECT_NEAR(static_cast<double>(gpu->now_ns() - before), 4.86e6, 0.1e6);
  before = gpu->now_ns();
  ok(gpu->copy_async(d, from, bytes, a));
  ok(gpu->copy_async(d2, from, bytes, b));
  ok(gpu->context_synchronize());
  EXPECT_NEAR(static_cast<double>(gpu->now_ns() - before), 9.72e6, 0.2e6);
  ok(gpu->memory_free(d));
  ok(gpu->memory_free(d2));
  ok(gpu->host_free(h));
}

TEST_F(sim_basics, a_pageable_copy_is_slower_and_holds_the_host) {
  make();
  const std::uint64_t bytes = 8 * MiB;
  device_address d = 0;
  ok(gpu->memory_allocate(&d, bytes));
  std::vector<char> host(bytes);
  const std::uint64_t before = gpu->now_ns();
  ok(gpu->copy_async(d, reinterpret_cast<device_address>(host.data()), bytes, stream()));
  EXPECT_NEAR(static_cast<double>(gpu->now_ns() - before), 8.0 * 1.048576e6 / 8.0, 0.02e6);
  ok(gpu->memory_free(d));
}

TEST_F(sim_basics, managed_memory_faults_in_slowly_and_prefetches_fast) {
  make();
  const std::uint64_t bytes = 256 * MiB;
  device_address m = 0;
  ok(gpu->managed_allocate(&m, bytes));
  const stream_handle s = stream();
  const auto kernel_time = [&] {
    const std::uint64_t before = gpu->now_ns();
    EXPECT_TRUE(gpu->launch({"touch", 120'000, {{m, bytes, access_kind::read_write}}, {}}, s).ok());
    EXPECT_TRUE(gpu->stream_synchronize(s).ok());
    return static_cast<double>(gpu->now_ns() - before) / 1e6;
  };
  EXPECT_NEAR(kernel_time(), 27, 7);  // 21 to 34 on three hosts
  EXPECT_LT(kernel_time(), 0.3);
  EXPECT_EQ(gpu->managed_resident_bytes(m, bytes), bytes);
  gpu->touch_managed(m, bytes);
  EXPECT_EQ(gpu->managed_resident_bytes(m, bytes), 0u);
  const std::uint64_t before = gpu->now_ns();
  ok(gpu->prefetch_async(m, bytes, memory_location::device, s));
  EXPECT_LT(kernel_time(), 6);
  EXPECT_NEAR(static_cast<double>(gpu->now_ns() - before) / 1e6, 5.6, 0.3);
  ok(gpu->memory_free(m));
}

TEST_F(sim_basics, advice_about_managed_memory_has_its_effect) {
  make();
  const std::uint64_t bytes = 64 * MiB;
  const stream_handle s = stream();
  const auto kernel = [&](device_address m, access_kind kind) {
    const std::uint64_t before = gpu->now_ns();
    EXPECT_TRUE(gpu->launch({"touch", 30'000, {{m, bytes, kind}}, {}}, s).ok());
    EXPECT_TRUE(gpu->stream_synchronize(s).ok());
    return static_cast<double>(gpu->now_ns() - before) / 1e6;
  };
  device_address stays = 0, copied = 0;
  ok(gpu->managed_allocate(&stays, bytes));
  ok(gpu->advise(stays, bytes, managed_advice::set_preferred_location, memory_location::host));
  gpu->touch_managed(stays, bytes);
  EXPECT_GT(kernel(stays, access_kind::read_write), 30);     // a fault for each 4 KiB
  EXPECT_NEAR(kernel(stays, access_kind::write), 1.6, 0.3);  // then over the link
  EXPECT_EQ(gpu->managed_resident_bytes(stays, bytes), 0u);

  ok(gpu->managed_allocate(&copied, bytes));
  ok(gpu->advise(copied, bytes, managed_advice::set_read_mostly, memory_location::device));
  gpu->touch_managed(copied, bytes);
  ok(gpu->prefetch_async(copied, bytes, memory_location::device, s));
  EXPECT_LT(kernel(copied, access_kind::read), 6);  // the prefetch that duplicates, no faults
  const std::uint64_t host_faults = gpu->managed_counts().host_faults;
  gpu->touch_managed(copied, bytes, access_kind::read);
  EXPECT_EQ(gpu->managed_counts().host_faults, host_faults);
  EXPECT_EQ(gpu->managed_counts().collapses, 0u);
  EXPECT_GT(kernel(copied, access_kind::write), 10);
  EXPECT_EQ(gpu->managed_counts().collapses, bytes / (4 * KiB));
  ok(gpu->memory_free(stays));
  ok(gpu->memory_free(copied));
}

TEST_F(sim_basics, host_functions_run_in_stream_order_and_may_make_no_calls) {
  make();
  const stream_handle s = stream();
  struct context {
    simulated_gpu* gpu;
    std::uint64_t ran_at = 0;
    driver_status inner{};
  } data{gpu.get()};
  ok(gpu->spin(1'000'000, s));
  ok(gpu->host_function(
      s,
      [](void* p) {
        auto* c = static_cast<context*>(p);
        c->ran_at = c->gpu->now_ns();
        std::uint64_t id = 0;
        c->inner = c->gpu->stream_id(nullptr, &id).status;
      },
      &data));
  EXPECT_EQ(data.ran_at, 0u);
  ok(gpu->stream_synchronize(s));
  EXPECT_GE(data.ran_at, 1'000'000u);
  EXPECT_EQ(data.inner, driver_status::not_permitted);
}

TEST_F(sim_basics, a_kernel_on_unmapped_memory_kills_the_context) {
  make();
  EXPECT_EQ(gpu->launch({"bad", 0, {{0x1000000, 8, access_kind::write}}, {}}, stream()).status,
            driver_status::illegal_address);
  EXPECT_FALSE(gpu->alive());
  device_address d = 0;
  EXPECT_EQ(gpu->memory_allocate(&d, 1).status, driver_status::illegal_address);
  leak_check = false;
}

}  // namespace
}  // namespace millpond
