// The checker on memory that has several addresses, one after the other or at once.
#include <gtest/gtest.h>

#include "driver/sim_checker_fixture.hpp"

namespace millpond {
namespace {

class sim_checker_addresses : public sim_checker {
 protected:
  // The same 8 MiB at a second address.
  void SetUp() override {
    sim_checker::SetUp();
    second = at + 8 * MiB;
    ok(gpu->map(second, 8 * MiB, handle));
    ok(gpu->set_access(second, 8 * MiB, memory_location::device));
  }
  void TearDown() override {
    ok(gpu->context_synchronize());
    if (second != 0) ok(gpu->unmap(second, 8 * MiB));
    sim_checker::TearDown();
  }
  device_address second = 0;
};

TEST_F(sim_checker_addresses, work_by_the_old_address_of_pages_that_are_out_at_another) {
  allocate(at, 4096, a, "one");
  write(at, 4096, a);
  free(at, 4096, a, "two");
  allocate(second, 4096, a, "three");
  write(second, 4096, a);
  clean();
  write(at, 4096, a);
  expect_only("access_after_free", "two", "identity write");
  free(second, 4096, a, "four");
}

TEST_F(sim_checker_addresses, a_part_of_the_old_block_is_out_at_another_address) {
  allocate(at, 1 * MiB, a, "one");
  write(at, 1 * MiB, a);
  free(at, 1 * MiB, a, "two");
  allocate(second + 512 * KiB, 4096, a, "three");
  clean();
  write(at + 512 * KiB, 4096, a);
  expect_only("access_after_free", "two", "identity write");
  write(at, 1 * MiB, a);  // over what is out and what is not: one report
  expect_only("access_after_free", "two", "identity write");
  free(second + 512 * KiB, 4096, a, "four");
}

TEST_F(sim_checker_addresses, an_alias_that_never_was_a_block_is_the_programs_own) {
  allocate(at, 4096, a, "one");
  write(second, 4096, a);
  read(second, 4096, a);
  clean();
  free(at, 4096, a, "two");
}

TEST_F(sim_checker_addresses, an_address_that_is_handed_out_again_is_no_old_one) {
  allocate(at, 4096, a, "one");
  free(at, 4096, a, "two");
  allocate(second, 4096, a, "three");
  free(second, 4096, a, "four");
  allocate(at, 4096, a, "five");
  write(at, 4096, a);
  clean();
  write(second, 4096, a);
  expect_only("access_after_free", "four", "identity write");
  free(at, 4096, a, "six");
}

TEST_F(sim_checker_addresses, the_freed_address_shows_other_pages_by_now) {
  allocate(second, 4096, a, "one");
  write(second, 4096, a);
  free(second, 4096, a, "two");
  ok(gpu->context_synchronize());
  ok(gpu->unmap(second, 8 * MiB));
  physical_handle other = 0;
  ok(gpu->physical_create(&other, 8 * MiB, memory_location::device, driver::shareable::no));
  ok(gpu->map(second, 8 * MiB, other));
  ok(gpu->set_access(second, 8 * MiB, memory_location::device));
  write(second + 4096, 4096, a);  // no block's
  clean();
  write(second, 4096, a);
  expect_only("access_after_free", "two", "identity write");
  ok(gpu->physical_release(other));
}

TEST_F(sim_checker_addresses, addresses_that_went_back_to_the_driver_are_anybodys) {
  device_address d = 0, again = 0;
  ok(gpu->memory_allocate(&d, 4 * MiB));
  allocate(d, 4 * MiB, a, "one");
  write(d, 4 * MiB, a);
  free(d, 4 * MiB, a, "two");
  ok(gpu->memory_free(d));
  ok(gpu->memory_allocate(&again, 4 * MiB));
  EXPECT_EQ(again, d);
  write(again, 4 * MiB, a);
  ok(gpu->memory_free(again));
  clean();

  allocate(second, 4096, a, "three");
  free(second, 4096, a, "four");
  ok(gpu->unmap(second, 8 * MiB));
  second = 0;
  ok(gpu->unmap(at, 8 * MiB));
  ok(gpu->address_free(window, 64 * MiB));
  device_address reserved = 0;
  ok(gpu->address_reserve(&reserved, 64 * MiB, 0));
  EXPECT_EQ(reserved, window);
  window = reserved;
  physical_handle other = 0;
  ok(gpu->physical_create(&other, 8 * MiB, memory_location::device, driver::shareable::no));
  ok(gpu->map(window + 8 * MiB, 8 * MiB, other));
  ok(gpu->set_access(window + 8 * MiB, 8 * MiB, memory_location::device));
  write(window + 8 * MiB, 4096, a);
  clean();
  ok(gpu->context_synchronize());
  ok(gpu->unmap(window + 8 * MiB, 8 * MiB));
  ok(gpu->physical_release(other));
  ok(gpu->map(at, 8 * MiB, handle));
}

TEST_F(sim_checker_addresses, a_graph_captured_at_the_old_address) {
  allocate(at, 4096, a, "one");
  ok(gpu->capture_begin(b, capture_mode::relaxed));
  write(at, 4096, b);
  graph_handle graph = nullptr;
  ok(gpu->capture_end(b, &graph));
  graph_exec_handle exec = nullptr;
  ok(gpu->graph_instantiate(&exec, graph));
  ok(gpu->graph_destroy(graph));
  ok(gpu->graph_launch(exec, b));
  clean();
  ok(gpu->context_synchronize());
  free(at, 4096, a, "two");
  allocate(second, 4096, a, "three");
  ok(gpu->graph_launch(exec, b));
  expect_only("access_after_free", "two", "identity write");
  free(second, 4096, a, "four");
  ok(gpu->graph_exec_destroy(exec));
}

}  // namespace
}  // namespace millpond
