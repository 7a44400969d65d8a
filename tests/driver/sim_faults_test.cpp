// The fault plan: each fault happens where it was planned, and loses nothing.
#include <gtest/gtest.h>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

class sim_faults : public sim_test {
 protected:
  void SetUp() override { make(); }
  driver_status create(std::uint64_t bytes = 2 * MiB) {
    physical_handle h = 0;
    const call_result answer =
        gpu->physical_create(&h, bytes, memory_location::device, driver::shareable::no);
    if (answer.ok()) handles.push_back(h);
    return answer.status;
  }
  void TearDown() override {
    gpu->set_faults({});
    for (const physical_handle h : handles) {
      if (gpu->alive()) ok(gpu->physical_release(h));
    }
    sim_test::TearDown();
  }
  std::vector<physical_handle> handles;
};

TEST_F(sim_faults, the_nth_call_of_a_name_fails_and_no_other) {
  gpu->set_faults({.faults = {{.call = "cuMemCreate", .at = 3}}});
  EXPECT_EQ(create(), driver_status::success);
  event();  // other calls do not count
  EXPECT_EQ(create(), driver_status::success);
  EXPECT_EQ(create(), driver_status::out_of_memory);
  EXPECT_EQ(create(), driver_status::success);
  EXPECT_EQ(gpu->physical_bytes(), 6 * MiB);
  EXPECT_EQ(gpu->calls("cuMemCreate"), 4u);
}

TEST_F(sim_faults, several_in_a_row_with_a_status_of_choice) {
  gpu->set_faults(
      {.faults = {{.call = "cuMemCreate", .at = 2, .count = 2, .status = driver_status::unknown}}});
  EXPECT_EQ(create(), driver_status::success);
  EXPECT_EQ(create(), driver_status::unknown);
  EXPECT_EQ(create(), driver_status::unknown);
  EXPECT_EQ(create(), driver_status::success);
}

TEST_F(sim_faults, any_allocation_counts_calls_that_take_memory) {
  gpu->set_faults({.faults = {{.call = "allocation", .at = 2}}});
  device_address d = 0;
  ok(gpu->memory_allocate(&d, 4096));
  std::uint64_t id = 0;
  ok(gpu->stream_id(nullptr, &id));
  device_address window = 0;
  EXPECT_EQ(gpu->address_reserve(&window, 2 * MiB, 0).status, driver_status::out_of_memory);
  ok(gpu->memory_free(d));
}

TEST_F(sim_faults, any_call_at_all) {
  gpu->set_faults({.faults = {{.call = "", .at = 2, .status = driver_status::invalid_value}}});
  std::uint64_t id = 0;
  ok(gpu->stream_id(nullptr, &id));
  EXPECT_EQ(gpu->stream_id(nullptr, &id).status, driver_status::invalid_value);
  ok(gpu->stream_id(nullptr, &id));
}

TEST_F(sim_faults, a_failing_call_has_no_effect) {
  const physical_handle h = (create(), handles.back());
  device_address at = 0;
  ok(gpu->address_reserve(&at, 2 * MiB, 0));
  ok(gpu->map(at, 2 * MiB, h));
  gpu->set_faults({.faults = {{.call = "cuMemUnmap", .at = 1, .status = driver_status::unknown}}});
  EXPECT_FALSE(gpu->unmap(at, 2 * MiB).ok());
  EXPECT_EQ(gpu->leaks().mappings, 1u);
  ok(gpu->unmap(at, 2 * MiB));
  ok(gpu->address_free(at, 2 * MiB));
}

TEST_F(sim_faults, a_slow_call_takes_its_time_and_works) {
  gpu->set_faults(
      {.faults = {
           {.call = "cuMemCreate", .at = 1, .effect = fault::what::slow, .slow_ns = 7'000'000}}});
  const std::uint64_t before = gpu->now_ns();
  EXPECT_EQ(create(), driver_status::success);
  EXPECT_GE(gpu->now_ns() - before, 7'000'000u);
}

TEST_F(sim_faults, a_lost_device_fails_every_call_from_then_on) {
  gpu->set_faults({.faults = {{.call = "", .at = 2, .effect = fault::what::lose_device}}});
  EXPECT_EQ(create(), driver_status::success);
  EXPECT_TRUE(gpu->alive());
  EXPECT_EQ(create(), driver_status::launch_failed);
  EXPECT_FALSE(gpu->alive());
  gpu->set_faults({});
  std::uint64_t id = 0;
  EXPECT_EQ(gpu->stream_id(nullptr, &id).status, driver_status::launch_failed);
  EXPECT_EQ(gpu->context_synchronize().status, driver_status::launch_failed);
  leak_check = false;
}

TEST_F(sim_faults, fragmented_memory_serves_only_small_pieces) {
  gpu->set_faults({.largest_piece = 8 * MiB});
  EXPECT_EQ(create(16 * MiB), driver_status::out_of_memory);
  EXPECT_EQ(create(8 * MiB), driver_status::success);
  device_address d = 0;
  EXPECT_EQ(gpu->memory_allocate(&d, 9 * MiB).status, driver_status::out_of_memory);
  // A pool's step is too large then, and it takes what it needs alone.
  pool_handle pool = nullptr;
  ok(gpu->pool_create(&pool, memory_location::device, 0));
  const stream_handle s = stream();
  ok(gpu->pool_allocate(&d, 4 * MiB, pool, s));
  EXPECT_EQ(gpu->physical_bytes(), 12 * MiB);
  ok(gpu->pool_free(d, s));
  ok(gpu->stream_synchronize(s));
  ok(gpu->pool_destroy(pool));
}

TEST_F(sim_faults, another_process_takes_memory_and_gives_it_back) {
  const std::uint64_t total = gpu->info().total_bytes;
  gpu->set_faults({.taken_bytes = total - 4 * MiB});
  std::uint64_t free = 0, all = 0;
  ok(gpu->memory_info(&free, &all));
  EXPECT_EQ(free, 4 * MiB);
  EXPECT_EQ(create(6 * MiB), driver_status::out_of_memory);
  EXPECT_EQ(create(4 * MiB), driver_status::success);
  gpu->set_faults({.taken_bytes = total});  // more than is left: nothing is free, nothing breaks
  ok(gpu->memory_info(&free, &all));
  EXPECT_EQ(free, 0u);
  gpu->set_faults({});
  EXPECT_EQ(create(6 * MiB), driver_status::success);
}

// Every call of a small program fails in turn: no crash, and the program's objects can still be
// given back.
TEST_F(sim_faults, any_call_of_a_program_may_fail_and_nothing_is_lost) {
  const auto program = [&](std::vector<call_result>& answers) {
    pool_handle pool = nullptr;
    device_address at = 0, block = 0;
    physical_handle h = 0;
    stream_handle s = nullptr;
    event_handle e = nullptr;
    const auto did = [&](call_result answer) {
      answers.push_back(answer);
      return answer.ok();
    };
    // Undone under no faults: what was made is given back whatever failed.
    const auto undo = [&](bool made, auto&& give) {
      if (!made) return;
      gpu->set_faults({});
      ok(give());
    };
    const bool stream_made = did(gpu->stream_create(&s));
    const bool event_made = did(gpu->event_create(&e));
    const bool reserved = did(gpu->address_reserve(&at, 4 * MiB, 0));
    const bool created =
        did(gpu->physical_create(&h, 4 * MiB, memory_location::device, driver::shareable::no));
    const bool mapped = reserved && created && did(gpu->map(at, 4 * MiB, h));
    const bool accessible = mapped && did(gpu->set_access(at, 4 * MiB, memory_location::device));
    const bool pool_made = did(gpu->pool_create(&pool, memory_location::device, 0));
    const bool block_made =
        pool_made && stream_made && did(gpu->pool_allocate(&block, 4096, pool, s));
    if (accessible && stream_made) did(gpu->set_async(at, 1, 4096, s));
    if (event_made && stream_made) did(gpu->event_record(e, s));
    if (event_made) did(gpu->event_synchronize(e));
    did(gpu->context_synchronize());
    undo(true, [&] { return gpu->context_synchronize(); });
    undo(block_made, [&] { return gpu->pool_free(block, s); });
    undo(pool_made, [&] { return gpu->pool_destroy(pool); });
    undo(mapped, [&] { return gpu->unmap(at, 4 * MiB); });
    undo(created, [&] { return gpu->physical_release(h); });
    undo(reserved, [&] { return gpu->address_free(at, 4 * MiB); });
    undo(event_made, [&] { return gpu->event_destroy(e); });
    undo(stream_made, [&] { return gpu->stream_destroy(s); });
  };
  std::vector<call_result> calm;
  program(calm);
  for (std::uint64_t at = 1; at <= calm.size(); ++at) {
    gpu->set_faults({.faults = {{.call = "", .at = at, .status = driver_status::unknown}}});
    std::vector<call_result> answers;
    program(answers);
    ASSERT_EQ(answers[at - 1].status, driver_status::unknown) << at;
    ASSERT_EQ(gpu->leaks().total(), 0u) << at << ": " << to_string(gpu->leaks());
    ASSERT_EQ(gpu->physical_bytes(), 0u) << at;
  }
}

}  // namespace
}  // namespace millpond
