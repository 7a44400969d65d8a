// Virtual memory, pools and contents.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "driver/sim_fixture.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

class sim_memory : public sim_test {
 protected:
  physical_handle handle(std::uint64_t bytes, memory_location location = memory_location::device) {
    physical_handle h = 0;
    ok(gpu->physical_create(&h, bytes, location, driver::shareable::no));
    return h;
  }
  device_address window(std::uint64_t bytes) {
    device_address at = 0;
    ok(gpu->address_reserve(&at, bytes, 0));
    return at;
  }
  void map(device_address at, std::uint64_t bytes, physical_handle h,
           memory_location location = memory_location::device) {
    ok(gpu->map(at, bytes, h));
    ok(gpu->set_access(at, bytes, location));
  }
  std::uint64_t mismatches(std::span<const identity_block> blocks, stream_handle s) {
    identity_report report;
    ok(gpu->identity_check(blocks, &report, s));
    ok(gpu->stream_synchronize(s));
    last = report;
    return report.mismatches;
  }
  identity_report last;
};

TEST_F(sim_memory, a_mapping_covers_a_whole_handle_in_a_reservation) {
  make();
  const physical_handle h = handle(4 * MiB);
  const device_address at = window(16 * MiB);
  EXPECT_EQ(gpu->map(at, 2 * MiB, h).status, driver_status::invalid_value);
  EXPECT_EQ(gpu->map(at + 1 * MiB, 4 * MiB, h).status, driver_status::invalid_value);
  EXPECT_EQ(gpu->map(at + 14 * MiB, 4 * MiB, h).status, driver_status::invalid_value);
  EXPECT_EQ(gpu->map(0x4000000, 4 * MiB, h).status, driver_status::invalid_value);
  EXPECT_EQ(gpu->map(at, 4 * MiB, h + 77).status, driver_status::invalid_value);
  ok(gpu->map(at, 4 * MiB, h));
  EXPECT_EQ(gpu->map(at + 2 * MiB, 4 * MiB, h).status, driver_status::invalid_value);
  EXPECT_EQ(gpu->unmap(at, 2 * MiB).status, driver_status::invalid_value);
  EXPECT_EQ(gpu->unmap(at + 4 * MiB, 4 * MiB).status, driver_status::invalid_value);
  EXPECT_EQ(gpu->address_free(at, 16 * MiB).status, driver_status::invalid_value);
  ok(gpu->unmap(at, 4 * MiB));
  EXPECT_EQ(gpu->unmap(at, 4 * MiB).status, driver_status::invalid_value);
  EXPECT_EQ(gpu->address_free(at, 8 * MiB).status, driver_status::invalid_value);
  ok(gpu->address_free(at, 16 * MiB));
  ok(gpu->physical_release(h));
  EXPECT_EQ(gpu->physical_release(h).status, driver_status::invalid_value);
}

TEST_F(sim_memory, a_released_handle_lives_until_it_is_unmapped) {
  make();
  const physical_handle h = handle(2 * MiB);
  const device_address at = window(4 * MiB);
  map(at, 2 * MiB, h);
  ok(gpu->physical_release(h));
  EXPECT_EQ(gpu->physical_bytes(), 2 * MiB);
  EXPECT_EQ(gpu->leaks().handles, 0u);
  ok(gpu->unmap(at, 2 * MiB));
  EXPECT_EQ(gpu->physical_bytes(), 0u);
  ok(gpu->address_free(at, 4 * MiB));
}

TEST_F(sim_memory, sizes_and_alignments_that_no_device_takes_are_refused) {
  make();
  physical_handle h = 0;
  device_address at = 0;
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, 3 * MiB}) {
    EXPECT_EQ(
        gpu->physical_create(&h, bytes, memory_location::device, driver::shareable::no).status,
        driver_status::invalid_value);
    EXPECT_EQ(gpu->address_reserve(&at, bytes, 0).status, driver_status::invalid_value);
  }
  EXPECT_EQ(gpu->physical_create(&h, ~std::uint64_t{0} / (4 * MiB) * (2 * MiB),
                                 memory_location::device, driver::shareable::no)
                .status,
            driver_status::out_of_memory);
  EXPECT_EQ(gpu->address_reserve(&at, 2 * MiB, 3 * MiB).status, driver_status::invalid_value);
  ok(gpu->address_reserve(&at, 2 * MiB, 64 * MiB));
  EXPECT_EQ(at % (64 * MiB), 0u);
  ok(gpu->address_free(at, 2 * MiB));
}

TEST_F(sim_memory, memory_without_access_kills_the_kernel_that_uses_it) {
  make();
  const physical_handle h = handle(2 * MiB);
  const device_address at = window(2 * MiB);
  ok(gpu->map(at, 2 * MiB, h));
  const identity_block block{at, 4096, 1};
  EXPECT_EQ(gpu->identity_write({&block, 1}, stream()).status, driver_status::illegal_address);
  leak_check = false;
}

TEST_F(sim_memory, set_access_costs_by_the_handle_and_unmap_does_too) {
  simulated_gpu_options options;
  options.times = simulated_gpu_options::call_times::median;
  make(options);
  const device_address at = window(1 * GiB);
  std::vector<physical_handle> handles;
  for (int i = 0; i < 32; ++i) {
    handles.push_back(handle(32 * MiB));
    ok(gpu->map(at + static_cast<std::uint64_t>(i) * 32 * MiB, 32 * MiB, handles.back()));
  }
  std::uint64_t before = gpu->now_ns();
  ok(gpu->set_access(at, 1 * GiB, memory_location::device));
  EXPECT_NEAR(static_cast<double>(gpu->now_ns() - before), 1082e3, 50e3);  // measured on an H200
  before = gpu->now_ns();
  ok(gpu->unmap(at, 1 * GiB));
  EXPECT_NEAR(static_cast<double>(gpu->now_ns() - before), 688e3, 40e3);
  for (const physical_handle h : handles) ok(gpu->physical_release(h));
  ok(gpu->address_free(at, 1 * GiB));
}

// Both ways of keeping contents must agree on what a program sees.
class sim_contents : public sim_memory,
                     public ::testing::WithParamInterface<simulated_gpu_options::contents> {
 protected:
  void make_contents() {
    simulated_gpu_options options;
    options.mode = GetParam();
    make(options);
  }
};
INSTANTIATE_TEST_SUITE_P(modes, sim_contents,
                         ::testing::Values(simulated_gpu_options::contents::tags,
                                           simulated_gpu_options::contents::bytes));

TEST_P(sim_contents, two_mappings_of_one_handle_are_one_memory) {
  make_contents();
  const physical_handle h = handle(2 * MiB);
  const device_address at = window(4 * MiB);
  map(at, 2 * MiB, h);
  map(at + 2 * MiB, 2 * MiB, h);
  const stream_handle s = stream();
  const identity_block block{at + 512, 100'003, 7};
  const identity_block alias{at + 2 * MiB + 512, 100'003, 7};
  ok(gpu->identity_write({&block, 1}, s));
  EXPECT_EQ(mismatches({{alias}}, s), 0u);
  // Written by the alias, the first view sees it.
  const identity_block other{at + 2 * MiB + 512 + std::uint64_t{8} * 100, 80, 9};
  ok(gpu->identity_write({&other, 1}, s));
  EXPECT_EQ(mismatches({{block}}, s), 10u);
  EXPECT_EQ(last.expected, 7u);
  EXPECT_EQ(last.address, at + 512 + 800);
  EXPECT_EQ(last.found_word, identity_word(9, 0));
  ok(gpu->unmap(at, 4 * MiB));
  ok(gpu->physical_release(h));
  ok(gpu->address_free(at, 4 * MiB));
}

TEST_P(sim_contents, a_block_over_several_handles_keeps_its_identity_when_one_moves) {
  make_contents();
  const physical_handle a = handle(2 * MiB), b = handle(4 * MiB);
  const device_address at = window(16 * MiB);
  map(at, 2 * MiB, a);
  map(at + 2 * MiB, 4 * MiB, b);
  const stream_handle s = stream();
  const identity_block block{at + 1 * MiB, 3 * MiB + 5, 3};
  ok(gpu->identity_write({&block, 1}, s));
  EXPECT_EQ(mismatches({{block}}, s), 0u);
  // The same pages in the other order are other contents.
  map(at + 8 * MiB, 4 * MiB, b);
  map(at + 12 * MiB, 2 * MiB, a);
  const identity_block moved{at + 9 * MiB, 3 * MiB + 5, 3};
  EXPECT_GT(mismatches({{moved}}, s), 0u);
  gpu->clear_violations();  // bytes that nothing wrote were read
  ok(gpu->unmap(at, 6 * MiB));
  ok(gpu->unmap(at + 8 * MiB, 6 * MiB));
  ok(gpu->physical_release(a));
  ok(gpu->physical_release(b));
  ok(gpu->address_free(at, 16 * MiB));
}

TEST_P(sim_contents, copies_and_memsets_carry_contents) {
  make_contents();
  device_address a = 0, b = 0;
  ok(gpu->memory_allocate(&a, 1 * MiB));
  ok(gpu->memory_allocate(&b, 1 * MiB));
  const stream_handle s = stream();
  const identity_block from{a, 1 * MiB, 5}, to{b, 1 * MiB, 5};
  ok(gpu->identity_write({&from, 1}, s));
  ok(gpu->copy_async(b, a, 1 * MiB, s));
  EXPECT_EQ(mismatches({{to}}, s), 0u);
  ok(gpu->set_async(b + 4096, 0xab, 64, s));
  EXPECT_EQ(mismatches({{to}}, s), 8u);
  EXPECT_EQ(last.found_word, 0xababababababababULL);
  // Shifted by a word, every word differs.
  ok(gpu->copy_async(b, a + 8, 1 * MiB - 8, s));
  const identity_block shifted{b, 1 * MiB - 8, 5};
  EXPECT_EQ(mismatches({{shifted}}, s), (1 * MiB - 8) / 8);
  ok(gpu->memory_free(a));
  ok(gpu->memory_free(b));
}

TEST_P(sim_contents, a_race_in_virtual_time_is_seen_in_the_contents) {
  make_contents();
  device_address d = 0;
  ok(gpu->memory_allocate(&d, 64 * KiB));
  const stream_handle a = stream(), b = stream();
  const identity_block mine{d, 64 * KiB, 1}, theirs{d, 64 * KiB, 2};
  ok(gpu->identity_write({&mine, 1}, a));
  ok(gpu->spin(100'000, a));
  ok(gpu->identity_write({&theirs, 1}, b));  // in no order with a
  EXPECT_GT(mismatches({{mine}}, a), 0u);
  EXPECT_EQ(last.found_word, identity_word(2, 0));
  ok(gpu->memory_free(d));
}

TEST_P(sim_contents, host_memory_is_real_in_both_modes) {
  make_contents();
  void* h = nullptr;
  ok(gpu->host_allocate(&h, 64 * KiB, driver::host_flags::write_combined));
  std::memset(h, 3, 64 * KiB);
  ok(gpu->set_async(reinterpret_cast<device_address>(h), 9, 10, stream()));
  ok(gpu->context_synchronize());
  EXPECT_EQ(static_cast<unsigned char*>(h)[9], 9);
  EXPECT_EQ(static_cast<unsigned char*>(h)[10], 3);
  ok(gpu->host_free(h));
  // A handle on the host's node, mapped: the CPU may use it.
  const physical_handle p = handle(2 * MiB, memory_location::host);
  const device_address at = window(2 * MiB);
  map(at, 2 * MiB, p);
  ok(gpu->set_access(at, 2 * MiB, memory_location::host));
  std::memset(reinterpret_cast<void*>(at), 1, 2 * MiB);
  EXPECT_EQ(gpu->host_memory_bytes(), 2 * MiB);
  ok(gpu->unmap(at, 2 * MiB));
  ok(gpu->physical_release(p));
  ok(gpu->address_free(at, 2 * MiB));
  EXPECT_EQ(gpu->host_memory_bytes(), 0u);
}

TEST_P(sim_contents, a_shareable_handle_is_imported_as_the_same_memory) {
  make_contents();
  physical_handle h = 0, again = 0, plain = handle(2 * MiB);
  ok(gpu->physical_create(&h, 2 * MiB, memory_location::device, driver::shareable::posix_fd));
  int fd = -1;
  EXPECT_EQ(gpu->export_handle(&fd, plain).status, driver_status::not_supported);
  ok(gpu->export_handle(&fd, h));
  ok(gpu->import_handle(&again, fd));
  EXPECT_EQ(gpu->import_handle(&again, 0).status, driver_status::invalid_value);
  ::close(fd);
  const device_address at = window(4 * MiB);
  map(at, 2 * MiB, h);
  map(at + 2 * MiB, 2 * MiB, again);
  const stream_handle s = stream();
  const identity_block block{at, 4096, 4}, alias{at + 2 * MiB, 4096, 4};
  ok(gpu->identity_write({&block, 1}, s));
  EXPECT_EQ(mismatches({{alias}}, s), 0u);
  ok(gpu->physical_release(h));
  ok(gpu->unmap(at, 4 * MiB));
  EXPECT_EQ(gpu->physical_bytes(), 4 * MiB);
  ok(gpu->physical_release(again));
  ok(gpu->physical_release(plain));
  ok(gpu->address_free(at, 4 * MiB));
}

TEST_F(sim_memory, another_process_imports_real_bytes) {
  make(in_bytes());
  physical_handle h = 0;
  ok(gpu->physical_create(&h, 2 * MiB, memory_location::device, driver::shareable::posix_fd));
  const device_address at = window(2 * MiB);
  map(at, 2 * MiB, h);
  std::memset(reinterpret_cast<void*>(at), 0x5a, 2 * MiB);
  int fd = -1;
  ok(gpu->export_handle(&fd, h));
  const pid_t child = ::fork();
  if (child == 0) {
    // A GPU of its own in the child: the file is foreign there.
    auto other = simulated_gpu::create(in_bytes());
    physical_handle theirs = 0;
    device_address there = 0;
    bool good = other.has_value() && (*other)->import_handle(&theirs, fd).ok() &&
                (*other)->address_reserve(&there, 2 * MiB, 0).ok() &&
                (*other)->map(there, 2 * MiB, theirs).ok() &&
                (*other)->set_access(there, 2 * MiB, memory_location::device).ok();
    auto* bytes = reinterpret_cast<unsigned char*>(there);
    good = good && bytes[12345] == 0x5a;
    if (good) bytes[12345] = 0x77;
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(reinterpret_cast<unsigned char*>(at)[12345], 0x77);
  ::close(fd);
  ok(gpu->unmap(at, 2 * MiB));
  ok(gpu->physical_release(h));
  ok(gpu->address_free(at, 2 * MiB));
}

TEST_F(sim_memory, a_kernels_body_works_on_real_bytes) {
  make(in_bytes());
  device_address d = 0;
  ok(gpu->memory_allocate(&d, 4096));
  auto* const words = reinterpret_cast<std::uint32_t*>(d);
  const stream_handle s = stream();
  ok(gpu->launch({"fill", 1000, {{d, 4096, access_kind::write}}, [=] { words[3] = 42; }}, s));
  EXPECT_EQ(words[3], 0u);  // not before it completes
  ok(gpu->stream_synchronize(s));
  EXPECT_EQ(words[3], 42u);
  ok(gpu->memory_free(d));
}

TEST_F(sim_memory, a_hundred_gigabytes_of_tags_take_little_memory) {
  make();
  const device_address at = window(100 * GiB);
  std::vector<physical_handle> handles;
  for (std::uint64_t i = 0; i < 3200; ++i) {
    handles.push_back(handle(32 * MiB));
    ok(gpu->map(at + i * 32 * MiB, 32 * MiB, handles.back()));
  }
  ok(gpu->set_access(at, 100 * GiB, memory_location::device));
  const stream_handle s = stream();
  const identity_block block{at, 100 * GiB, 11};
  ok(gpu->identity_write({&block, 1}, s));
  EXPECT_EQ(mismatches({{block}}, s), 0u);
  ok(gpu->unmap(at, 100 * GiB));
  for (const physical_handle h : handles) ok(gpu->physical_release(h));
  ok(gpu->address_free(at, 100 * GiB));
}

// --- Driver pools
// -----------------------------------------------------------------------------------

class sim_pools : public sim_memory {
 protected:
  void SetUp() override {
    simulated_gpu_options options;
    options.times = simulated_gpu_options::call_times::median;
    make(options);
    ok(gpu->pool_create(&pool, memory_location::device, 0));
  }
  device_address block(std::uint64_t bytes, stream_handle s) {
    device_address at = 0;
    const std::uint64_t before = gpu->now_ns();
    ok(gpu->pool_allocate(&at, bytes, pool, s));
    took = gpu->now_ns() - before;
    return at;
  }
  driver::pool_usage usage() {
    driver::pool_usage u;
    ok(gpu->pool_get_usage(pool, &u));
    return u;
  }
  pool_handle pool = nullptr;
  std::uint64_t took = 0;
};

TEST_F(sim_pools, a_kept_pool_serves_from_what_it_has) {
  ok(gpu->pool_set_release_threshold(pool, ~std::uint64_t{0}));
  const stream_handle s = stream();
  device_address at = block(1 * MiB, s);
  EXPECT_GT(took, 40'000u);
  EXPECT_EQ(usage().reserved, 32 * MiB);
  ok(gpu->pool_free(at, s));
  ok(gpu->stream_synchronize(s));
  EXPECT_EQ(block(1 * MiB, s), at);
  EXPECT_LT(took, 2'500u);
  ok(gpu->pool_free(at, s));
  ok(gpu->pool_trim(pool, 0));
  EXPECT_EQ(usage().reserved, 0u);
  EXPECT_EQ(usage().reserved_high, 32 * MiB);
  EXPECT_EQ(usage().used_high, 1 * MiB);
  ok(gpu->pool_destroy(pool));
}

TEST_F(sim_pools, the_default_threshold_gives_memory_back_at_every_synchronise) {
  const stream_handle s = stream();
  const device_address at = block(1 * MiB, s);
  ok(gpu->pool_free(at, s));
  EXPECT_EQ(gpu->physical_bytes(), 32 * MiB);
  ok(gpu->stream_synchronize(s));
  EXPECT_EQ(gpu->physical_bytes(), 0u);
  const device_address again = block(1 * MiB, s);
  EXPECT_NEAR(static_cast<double>(took), 46.3e3, 1e3);
  ok(gpu->pool_free(again, s));
  ok(gpu->pool_destroy(pool));
}

TEST_F(sim_pools, another_stream_waits_for_the_free_where_the_pool_cannot_grow) {
  ok(gpu->pool_destroy(pool));
  ok(gpu->pool_create(&pool, memory_location::device, 32 * MiB));
  ok(gpu->pool_set_release_threshold(pool, ~std::uint64_t{0}));
  const stream_handle a = stream(), b = stream();
  const device_address at = block(32 * MiB, a);
  ok(gpu->spin(1'000'000, a));
  ok(gpu->pool_free(at, a));
  EXPECT_EQ(block(32 * MiB, b), at);
  EXPECT_EQ(gpu->stream_query(b).status, driver_status::not_ready);  // chained behind a, silently
  gpu->advance(1'100'000);
  ok(gpu->stream_query(b));
  EXPECT_EQ(usage().reserved, 32 * MiB);
  ok(gpu->pool_free(at, b));
  ok(gpu->pool_destroy(pool));
}

TEST_F(sim_pools, another_stream_makes_the_pool_grow_rather_than_wait) {
  ok(gpu->pool_set_release_threshold(pool, ~std::uint64_t{0}));
  const stream_handle a = stream(), b = stream();
  const device_address at = block(32 * MiB, a);
  ok(gpu->spin(1'000'000, a));
  ok(gpu->pool_free(at, a));
  const device_address other = block(32 * MiB, b);
  EXPECT_NE(other, at);
  ok(gpu->stream_query(b));
  EXPECT_EQ(usage().reserved, 64 * MiB);
  ok(gpu->pool_free(other, b));
  ok(gpu->pool_destroy(pool));
}

TEST_F(sim_pools, a_pool_grows_at_its_end_by_what_is_missing_there) {
  ok(gpu->pool_set_release_threshold(pool, ~std::uint64_t{0}));
  const stream_handle s = stream();
  const device_address first = block(20 * MiB, s);
  const device_address second = block(40 * MiB, s);  // 12 MiB of the first step and one more
  EXPECT_EQ(second, first + 20 * MiB);
  EXPECT_EQ(usage().reserved, 64 * MiB);
  EXPECT_EQ(usage().used, 60 * MiB);
  const identity_block over_both{second, 40 * MiB, 3};
  ok(gpu->identity_write({&over_both, 1}, s));
  EXPECT_EQ(mismatches({{over_both}}, s), 0u);
  ok(gpu->pool_free(first, s));
  ok(gpu->pool_free(second, s));
  ok(gpu->pool_destroy(pool));
}

TEST_F(sim_pools, free_segments_are_moved_to_where_they_are_needed) {
  ok(gpu->pool_set_release_threshold(pool, ~std::uint64_t{0}));
  const stream_handle s = stream();
  const device_address first = block(64 * MiB, s);
  const device_address second = block(32 * MiB, s);
  ok(gpu->pool_free(first, s));
  ok(gpu->stream_synchronize(s));
  const device_address third =
      block(96 * MiB, s);  // two of its three segments were the first block's
  EXPECT_EQ(third, second + 32 * MiB);
  EXPECT_EQ(usage().reserved, 128 * MiB);
  EXPECT_EQ(gpu->physical_bytes(), 128 * MiB);
  ok(gpu->pool_free(second, s));
  ok(gpu->pool_free(third, s));
  ok(gpu->stream_synchronize(s));
  ok(gpu->pool_trim(pool, 40 * MiB));
  EXPECT_EQ(usage().reserved, 64 * MiB);
  ok(gpu->pool_trim(pool, 0));
  EXPECT_EQ(gpu->physical_bytes(), 0u);
  EXPECT_EQ(block(MiB, s), first);  // the addresses serve again
  ok(gpu->pool_free(first, s));
  ok(gpu->pool_destroy(pool));
}

TEST_F(sim_pools, free_space_that_is_ready_is_preferred_to_a_wait) {
  ok(gpu->pool_set_release_threshold(pool, ~std::uint64_t{0}));
  const stream_handle a = stream(), b = stream();
  const device_address first = block(16 * MiB, a);
  ok(gpu->spin(1'000'000, a));
  ok(gpu->pool_free(first, a));
  const device_address second = block(16 * MiB, b);
  EXPECT_NE(second, first);
  ok(gpu->stream_query(b));
  ok(gpu->pool_free(second, b));
  gpu->advance(2'000'000);
  const device_address all = block(32 * MiB, b);  // both halves are joined again
  EXPECT_EQ(usage().reserved, 32 * MiB);
  ok(gpu->pool_free(all, b));
  ok(gpu->pool_destroy(pool));
}

TEST_F(sim_pools, a_pool_has_its_limit_and_the_device_too) {
  pool_handle small = nullptr;
  ok(gpu->pool_create(&small, memory_location::device, 40 * MiB));
  const stream_handle s = stream();
  device_address a = 0, b = 0;
  ok(gpu->pool_allocate(&a, 33 * MiB + 777, small, s));
  EXPECT_EQ(gpu->pool_allocate(&b, 10 * MiB, small, s).status, driver_status::out_of_memory);
  EXPECT_EQ(gpu->pool_allocate(&b, 1000 * GiB, pool, s).status, driver_status::out_of_memory);
  EXPECT_EQ(gpu->pool_allocate(&b, 0, pool, s).status, driver_status::invalid_value);
  ok(gpu->pool_destroy(small));  // lives until its block is freed
  ok(gpu->pool_free(a, s));
  ok(gpu->pool_destroy(pool));
  EXPECT_EQ(gpu->leaks().pools, 0u);
}

TEST_F(sim_pools, blocks_may_be_freed_by_either_call_as_the_driver_accepts) {
  const stream_handle s = stream();
  const device_address pooled = block(1 * MiB, s);
  ok(gpu->memory_free(pooled));
  device_address plain = 0;
  ok(gpu->memory_allocate(&plain, 4 * MiB));
  ok(gpu->pool_free(plain, s));
  ok(gpu->stream_synchronize(s));
  EXPECT_EQ(gpu->leaks().device_allocations, 0u);
  ok(gpu->pool_destroy(pool));
}

}  // namespace
}  // namespace millpond
