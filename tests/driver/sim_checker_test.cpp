// Each rule of the checker: a program that breaks exactly it, and one that only just does not.
#include <gtest/gtest.h>

#include "driver/sim_checker_fixture.hpp"

namespace millpond {
namespace {

// --- reuse_before_order
// -----------------------------------------------------------------------------

TEST_F(sim_checker, reuse_on_another_stream_before_any_fence) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  allocate(at, 4096, b, "three");
  expect_only("reuse_before_order", "two", "three");
  free(at, 4096, b, "four");
}

TEST_F(sim_checker, reuse_on_the_same_stream_is_fine) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  allocate(at, 4096, a, "three");
  free(at, 4096, a, "four");
  clean();
}

TEST_F(sim_checker, reuse_after_a_passed_fence_is_fine_and_an_unasked_fence_is_not_enough) {
  const event_handle e = event();
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  ok(gpu->event_record(e, a));
  gpu->advance(1'000'000);  // it has passed, but nobody has asked
  allocate(at, 4096, b, "three");
  expect_only("reuse_before_order", "two", "three");
  free(at, 4096, b, "four");
  ok(gpu->event_record(e, b));
  EXPECT_TRUE(gpu->event_query(e).ok());
  allocate(at, 4096, a, "five");
  free(at, 4096, a, "six");
  clean();
}

TEST_F(sim_checker, a_fence_recorded_before_the_last_work_does_not_cover_it) {
  const event_handle e = event();
  allocate(at, 4096, a, "one");
  ok(gpu->event_record(e, a));
  write(at, 4096, a);
  free(at, 4096, a, "two");
  gpu->advance(1'000'000);
  ok(gpu->event_query(e));
  allocate(at, 4096, b, "three");
  expect_only("reuse_before_order", "two", "three");
  free(at, 4096, b, "four");
}

TEST_F(sim_checker, a_stream_that_waits_for_the_fence_may_reuse) {
  const event_handle e = event();
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  ok(gpu->event_record(e, a));
  ok(gpu->stream_wait_event(b, e));
  allocate(at, 4096, b, "three");
  free(at, 4096, b, "four");
  clean();
}

TEST_F(sim_checker, order_is_carried_from_stream_to_stream) {
  const stream_handle c = stream();
  const event_handle e = event(), f = event();
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  ok(gpu->event_record(e, a));
  ok(gpu->stream_wait_event(c, e));
  ok(gpu->event_record(f, c));
  ok(gpu->stream_wait_event(b, f));
  allocate(at, 4096, b, "three");
  free(at, 4096, b, "four");
  clean();
}

TEST_F(sim_checker, a_part_of_a_freed_block_is_its_memory_too) {
  allocate(at, 1 * MiB, a, "one");
  write(at, 1 * MiB, a);
  free(at, 1 * MiB, a, "two");
  allocate(at + 512 * KiB, 4096, b, "three");
  expect_only("reuse_before_order", "two", "three");
  free(at + 512 * KiB, 4096, b, "four");
}

TEST_F(sim_checker, a_recorded_use_must_be_over_too) {
  const event_handle e = event();
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  gpu->note_use(at, b, "used on b");
  ok(gpu->spin(1000, b));
  free(at, 4096, a, "two");
  allocate(at, 4096, a, "three");  // even on its own stream
  expect_only("reuse_before_order", "used on b", "three");
  gpu->note_use(at, b, "used again");
  ok(gpu->spin(1000, b));
  free(at, 4096, a, "four");
  ok(gpu->event_record(e, b));
  ok(gpu->stream_wait_event(a, e));
  allocate(at, 4096, a, "five");
  free(at, 4096, a, "six");
  clean();
}

TEST_F(sim_checker, a_dead_streams_frees_need_a_context_event) {
  const event_handle mine = event(), context = event();
  allocate(at, 4096, b, "one");
  ok(gpu->spin(1'000'000, b));
  free(at, 4096, b, "two");
  forget(b);
  ok(gpu->stream_destroy(b));
  const stream_handle same_handle = stream();
  EXPECT_EQ(same_handle, b);
  ok(gpu->event_record(mine, same_handle));
  ok(gpu->event_query(mine));
  allocate(at, 4096, same_handle, "three");
  expect_only("reuse_before_order", "two", "three");
  free(at, 4096, same_handle, "four");
  ok(gpu->context_record_event(context));
  gpu->advance(2'000'000);
  ok(gpu->event_query(context));
  allocate(at, 4096, a, "five");
  free(at, 4096, a, "six");
  clean();
}

TEST_F(sim_checker, waiting_for_the_device_orders_everything) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  ok(gpu->context_synchronize());
  allocate(at, 4096, b, "three");
  free(at, 4096, b, "four");
  clean();
}

TEST_F(sim_checker, reuse_through_an_alias_is_reuse) {
  ok(gpu->map(at + 8 * MiB, 8 * MiB, handle));
  ok(gpu->set_access(at + 8 * MiB, 8 * MiB, memory_location::device));
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  allocate(at + 8 * MiB, 4096, b, "three");
  expect_only("reuse_before_order", "two", "three");
  free(at + 8 * MiB, 4096, b, "four");
  ok(gpu->context_synchronize());
  ok(gpu->unmap(at + 8 * MiB, 8 * MiB));
}

TEST_F(sim_checker, pages_that_moved_are_the_same_memory) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  ok(gpu->map(at + 32 * MiB, 8 * MiB, handle));
  ok(gpu->set_access(at + 32 * MiB, 8 * MiB, memory_location::device));
  allocate(at + 32 * MiB, 4096, a, "three");  // the stream's own: fine
  clean();
  free(at + 32 * MiB, 4096, a, "four");
  ok(gpu->context_synchronize());
  ok(gpu->unmap(at, 8 * MiB));
  at += 32 * MiB;
}

// --- overlap
// ----------------------------------------------------------------------------------------

TEST_F(sim_checker, two_live_blocks_share_bytes) {
  allocate(at, 4096, a, "one");
  allocate(at + 2048, 4096, a, "two");
  expect_only("overlap", "one", "two");
  free(at, 4096, a, "end");
  free(at + 2048, 4096, a, "end");
}

TEST_F(sim_checker, two_live_blocks_share_bytes_through_an_alias) {
  ok(gpu->map(at + 8 * MiB, 8 * MiB, handle));
  ok(gpu->set_access(at + 8 * MiB, 8 * MiB, memory_location::device));
  allocate(at, 4096, a, "one");
  allocate(at + 8 * MiB + 4096, 4096, a, "near miss");
  clean();
  allocate(at + 8 * MiB + 4095, 1, a, "two");
  expect_only("overlap", "one", "two");
  for (const auto& [where, bytes] :
       {std::pair{at, 4096}, {at + 8 * MiB + 4096, 4096}, {at + 8 * MiB + 4095, 1}}) {
    free(where, static_cast<std::uint64_t>(bytes), a, "end");
  }
  clean();
  ok(gpu->unmap(at + 8 * MiB, 8 * MiB));
}

TEST_F(sim_checker, neighbours_do_not_overlap) {
  allocate(at, 4096, a, "one");
  allocate(at + 4096, 4096, b, "two");
  free(at, 4096, a, "three");
  free(at + 4096, 4096, b, "four");
  clean();
}

TEST_F(sim_checker, a_block_that_is_not_mapped) {
  allocate(at + 7 * MiB, 2 * MiB, a, "one");
  expect_only("not_mapped", "one", "one");
}

TEST_F(sim_checker, a_second_free_and_a_free_of_another_size) {
  allocate(at, 4096, a, "one");
  free(at, 4096, a, "two");
  free(at, 4096, a, "three");
  expect_only("free_of_unknown", "", "three");
  allocate(at, 4096, a, "four");
  free(at, 8192, a, "five");
  expect_only("free_of_unknown", "four", "five");
}

// --- access_after_free, read_of_unwritten, unordered_access
// -----------------------------------------

TEST_F(sim_checker, work_queued_after_the_free) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  write(at, 4096, a);
  expect_only("access_after_free", "two", "identity write");
}

TEST_F(sim_checker, work_queued_before_the_free_may_still_run) {
  allocate(at, 4096, a, "one");
  ok(gpu->spin(1'000'000, a));
  write(at, 4096, a);
  free(at, 4096, a, "two");
  allocate(at + 4096, 4096, a, "three");
  write(at + 4096, 4096, a);  // a neighbour
  free(at + 4096, 4096, a, "four");
  clean();
}

TEST_F(sim_checker, a_block_of_the_drivers_pool_used_after_its_free) {
  pool_handle pool = nullptr;
  ok(gpu->pool_create(&pool, memory_location::device, 0));
  device_address block = 0;
  ok(gpu->pool_allocate(&block, 4096, pool, a));
  write(block, 4096, a);
  ok(gpu->pool_free(block, a));
  clean();
  write(block, 4096, a);
  expect_only("access_after_free", "the driver's pool", "identity write");
  ok(gpu->stream_synchronize(a));
  ok(gpu->pool_destroy(pool));
}

TEST_F(sim_checker, a_read_of_what_nothing_wrote) {
  allocate(at, 8192, a, "one");
  write(at, 4096, a);
  read(at, 4096, a);
  clean();
  read(at, 8192, a);
  expect_only("read_of_unwritten", "one", "identity check");
  free(at, 8192, a, "two");
  allocate(at, 8192, a, "three");  // what the last owner left is not the new one's
  read(at, 4096, a);
  expect_only("read_of_unwritten", "three", "identity check");
  free(at, 8192, a, "four");
}

TEST_F(sim_checker, a_block_written_in_parts_is_written) {
  allocate(at, 8192, a, "one");
  write(at + 4096, 4096, a);
  write(at, 4096, a);
  read(at, 8192, a);
  clean();
  free(at, 8192, a, "two");
}

TEST_F(sim_checker, a_read_of_plain_memory_that_nothing_wrote) {
  device_address d = 0;
  ok(gpu->memory_allocate(&d, 4096));
  read(d, 4096, a);
  expect_only("read_of_unwritten", "the driver", "identity check");
  ok(gpu->memory_free(d));
  ok(gpu->memory_allocate(&d, 4096));
  ok(gpu->set_async(d, 0, 4096, a));
  read(d, 4096, a);
  clean();
  ok(gpu->memory_free(d));
}

TEST_F(sim_checker, what_the_cpu_may_have_written_is_not_unwritten) {
  void* h = nullptr;
  ok(gpu->host_allocate(&h, 8192, driver::host_flags::none));
  const auto where = reinterpret_cast<device_address>(h);
  read(where, 4096, a);
  allocate(where, 4096, a, "one");
  read(where, 4096, a);
  free(where, 4096, a, "two");
  clean();
  ok(gpu->host_free(h));
}

class sim_checker_races : public sim_checker {
 protected:
  void SetUp() override {
    simulated_gpu_options options;
    options.race_check = simulated_gpu_options::races::reported;
    start(options);
  }
};

TEST_F(sim_checker_races, two_streams_write_a_live_block_in_no_order) {
  allocate(at, 4096, a, "one");
  const event_handle e = event();
  ok(gpu->event_record(e, a));
  ok(gpu->stream_wait_event(b, e));  // after the allocation
  write(at, 4096, a);
  write(at, 4096, b);
  expect_only("unordered_access", "one", "identity write");
  ok(gpu->context_synchronize());
  free(at, 4096, a, "two");
}

TEST_F(sim_checker_races, two_streams_that_are_ordered_may_share_a_block) {
  allocate(at, 4096, a, "one");
  const event_handle e = event();
  write(at, 4096, a);
  ok(gpu->event_record(e, a));
  ok(gpu->stream_wait_event(b, e));
  read(at, 4096, b);
  read(at, 4096, a);  // two readers need no order
  clean();
  ok(gpu->event_record(e, b));
  ok(gpu->stream_wait_event(a, e));
  free(at, 4096, a, "two");
  clean();
}

TEST_F(sim_checker_races, a_free_in_no_order_with_an_unrecorded_use) {
  allocate(at, 4096, a, "one");
  const event_handle e = event();
  ok(gpu->event_record(e, a));
  ok(gpu->stream_wait_event(b, e));
  write(at, 4096, b);
  free(at, 4096, a, "two");
  expect_only("unordered_access", "one", "two");
}

TEST_F(sim_checker, races_are_not_reported_unless_asked) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  write(at, 4096, b);
  ok(gpu->context_synchronize());
  free(at, 4096, a, "two");
  clean();
}

// --- free_in_use
// ------------------------------------------------------------------------------------

TEST_F(sim_checker, unmapping_under_pending_work) {
  write(at, 4096, a);
  gpu->advance(1'000'000);  // it is over, but the host does not know
  ok(gpu->unmap(at, 8 * MiB));
  expect_only("free_in_use", "work on stream 2", "cuMemUnmap");
  ok(gpu->map(at, 8 * MiB, handle));
}

TEST_F(sim_checker, unmapping_after_a_fence_that_the_host_has_seen) {
  const event_handle e = event();
  write(at, 4096, a);
  ok(gpu->event_record(e, a));
  gpu->advance(1'000'000);
  ok(gpu->event_query(e));
  ok(gpu->unmap(at, 8 * MiB));
  clean();
  ok(gpu->map(at, 8 * MiB, handle));
}

TEST_F(sim_checker, unmapping_an_alias_that_no_pending_work_uses) {
  ok(gpu->map(at + 8 * MiB, 8 * MiB, handle));
  ok(gpu->set_access(at + 8 * MiB, 8 * MiB, memory_location::device));
  ok(gpu->spin(1'000'000, a));
  write(at, 4096, a);
  ok(gpu->unmap(at + 8 * MiB, 8 * MiB));
  clean();
}

TEST_F(sim_checker, unmapping_under_a_live_block) {
  allocate(at + 4096, 4096, a, "one");
  ok(gpu->unmap(at, 8 * MiB));
  expect_only("free_in_use", "one", "cuMemUnmap");
  ok(gpu->map(at, 8 * MiB, handle));
  free(at + 4096, 4096, a, "two");
}

TEST_F(sim_checker, unmapping_really_under_a_kernel_kills_the_context) {
  ok(gpu->spin(1'000'000, a));
  write(at, 4096, a);
  ok(gpu->unmap(at, 8 * MiB));
  expect_only("free_in_use", "work on stream 2", "cuMemUnmap");
  EXPECT_EQ(gpu->stream_synchronize(a).status, driver_status::illegal_address);
  EXPECT_FALSE(gpu->alive());
  leak_check = false;
  handle = 0;
  gpu = nullptr;
  make();
}

TEST_F(sim_checker, cuMemFree_waits_by_itself) {
  device_address d = 0;
  ok(gpu->memory_allocate(&d, 4 * MiB));
  write(d, 4 * MiB, a);
  ok(gpu->memory_free(d));
  clean();
}

// --- wrong_kind_free, alias_in_one_kernel
// -----------------------------------------------------------

TEST_F(sim_checker, a_free_by_another_kinds_call) {
  device_address d = 0;
  void* h = nullptr;
  ok(gpu->memory_allocate(&d, 4096));
  ok(gpu->host_allocate(&h, 4096, driver::host_flags::none));
  gpu->note_allocate(d, 4096, a, "device block");
  EXPECT_FALSE(gpu->host_free(reinterpret_cast<void*>(d)).ok());
  expect_only("wrong_kind_free", "device block", "cuMemFreeHost");
  EXPECT_FALSE(gpu->memory_free(reinterpret_cast<device_address>(h)).ok());
  expect_only("wrong_kind_free", "the driver", "cuMemFree");
  EXPECT_FALSE(gpu->pool_free(reinterpret_cast<device_address>(h), a).ok());
  expect_only("wrong_kind_free", "the driver", "cuMemFreeAsync");
  gpu->note_free(d, 4096, a, "end");
  ok(gpu->memory_free(d));
  ok(gpu->host_free(h));
  clean();
}

TEST_F(sim_checker, one_kernel_sees_a_page_by_two_addresses) {
  ok(gpu->map(at + 8 * MiB, 8 * MiB, handle));
  ok(gpu->set_access(at + 8 * MiB, 8 * MiB, memory_location::device));
  const auto kernel = [&](device_address one, device_address two) {
    ok(gpu->launch({"k", 0, {{one, 4096, access_kind::write}, {two, 4096, access_kind::write}}, {}},
                   a));
  };
  kernel(at, at + 10 * MiB);  // different pages
  kernel(at, at + 4096);      // one address range
  clean();
  kernel(at, at + 8 * MiB + 64 * KiB);  // the same page twice
  const auto all = gpu->violations();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].rule, "alias_in_one_kernel");
  EXPECT_EQ(all[0].second_call_site, "kernel k");
  gpu->clear_violations();
  ok(gpu->context_synchronize());
  ok(gpu->unmap(at + 8 * MiB, 8 * MiB));
}

TEST_F(sim_checker, the_alias_granule_can_be_the_cache_line) {
  ok(gpu->context_synchronize());
  finish();
  simulated_gpu_options options;
  options.alias_granule = 128;
  for (const stream_handle s : {a, b}) {
    forget(s);
    ok(gpu->stream_destroy(s));
  }
  start(options);
  ok(gpu->map(at + 8 * MiB, 8 * MiB, handle));
  ok(gpu->set_access(at + 8 * MiB, 8 * MiB, memory_location::device));
  ok(gpu->launch(
      {"k", 0, {{at, 512, access_kind::write}, {at + 8 * MiB + 512, 512, access_kind::write}}, {}},
      a));
  clean();
  ok(gpu->launch(
      {"k", 0, {{at, 520, access_kind::write}, {at + 8 * MiB + 576, 64, access_kind::write}}, {}},
      a));
  EXPECT_EQ(rules(), std::vector<std::string>{"alias_in_one_kernel"});
  gpu->clear_violations();
  ok(gpu->context_synchronize());
  ok(gpu->unmap(at + 8 * MiB, 8 * MiB));
}

TEST_F(sim_checker, the_text_of_a_violation_names_both_places) {
  allocate(at, 4096, a, "server.cpp:12");
  write(at, 4096, a);
  free(at, 4096, a, "server.cpp:40");
  allocate(at, 4096, b, "worker.cpp:7");
  const auto all = gpu->violations();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_NE(all[0].text.find("server.cpp:40"), std::string::npos) << all[0].text;
  EXPECT_NE(all[0].text.find("worker.cpp:7"), std::string::npos) << all[0].text;
  gpu->clear_violations();
  free(at, 4096, b, "end");
}

}  // namespace
}  // namespace millpond
