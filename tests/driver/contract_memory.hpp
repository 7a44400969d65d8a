// What every driver must do with memory: part of driver_contract.hpp.
#pragma once
#include "driver/contract_fixture.hpp"

namespace millpond {

// --- The device and plain memory
// ----------------------------------------------------------------------

TEST_P(driver_contract, says_what_the_device_is) {
  const device_info& info = gpu_->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GT(info.total_bytes, 0u);
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_EQ(info.granularity & (info.granularity - 1), 0u);
  std::uint64_t free = 0, total = 0;
  OK(gpu_->memory_info(&free, &total));
  EXPECT_LE(free, total);
  EXPECT_LE(total, info.total_bytes);
}

TEST_P(driver_contract, device_memory_is_taken_set_copied_and_given_back) {
  constexpr std::uint64_t bytes = 64 * MiB;
  std::uint64_t before = 0, after = 0, total = 0;
  OK(gpu_->memory_info(&before, &total));
  device_address at = no_address;
  OK(gpu_->memory_allocate(&at, bytes));
  OK(gpu_->memory_info(&after, &total));
  EXPECT_LT(after, before);
  OK(gpu_->set_async(at, 0x5a, bytes, stream_));
  std::vector<unsigned char> host = read(at + bytes - 100, 100);
  EXPECT_TRUE(std::all_of(host.begin(), host.end(), [](unsigned char b) { return b == 0x5a; }));
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<unsigned char>(i);
  OK(gpu_->copy_async(at, address_of(host.data()), host.size(), stream_));
  OK(gpu_->copy_async(at + MiB, at, host.size(), stream_));
  EXPECT_EQ(read(at + MiB, host.size()), host);
  OK(gpu_->memory_free(at));
}

TEST_P(driver_contract, a_failed_call_says_which_it_was_and_leaves_the_device_alive) {
  device_address at = no_address;
  const call_result too_much = gpu_->memory_allocate(&at, gpu_->info().total_bytes * 2);
  EXPECT_EQ(too_much.status, driver_status::out_of_memory);
  EXPECT_EQ(to_string(too_much), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)");
  const call_result not_ours = gpu_->memory_free(0x1230);
  EXPECT_EQ(not_ours.status, driver_status::invalid_value);
  EXPECT_STREQ(not_ours.call, "cuMemFree");
  physical_handle handle = 0;
  const call_result odd =
      gpu_->physical_create(&handle, 12345, memory_location::device, driver::shareable::no);
  EXPECT_EQ(odd.status, driver_status::invalid_value);
  EXPECT_STREQ(odd.call, "cuMemCreate");
  EXPECT_TRUE(gpu_->alive());
}

TEST_P(driver_contract, a_pointer_knows_its_kind_and_its_allocation) {
  constexpr std::uint64_t bytes = 3 * MiB;
  driver::pointer_facts facts;
  device_address at = no_address;
  OK(gpu_->memory_allocate(&at, bytes));
  OK(gpu_->pointer_info(at + 1000, &facts));
  EXPECT_EQ(facts.kind, memory_kind::device);
  EXPECT_EQ(facts.start, at);
  EXPECT_GE(facts.bytes, bytes);
  OK(gpu_->memory_free(at));

  void* pinned = nullptr;
  OK(gpu_->host_allocate(&pinned, bytes, driver::host_flags::none));
  OK(gpu_->pointer_info(address_of(pinned) + 8, &facts));
  EXPECT_EQ(facts.kind, memory_kind::pinned);
  EXPECT_EQ(facts.start, address_of(pinned));
  OK(gpu_->host_free(pinned));

  OK(gpu_->managed_allocate(&at, bytes));
  OK(gpu_->pointer_info(at, &facts));
  EXPECT_EQ(facts.kind, memory_kind::managed);
  OK(gpu_->memory_free(at));

  pool_handle pool = nullptr;
  OK(gpu_->pool_create(&pool, memory_location::device, 0));
  OK(gpu_->pool_allocate(&at, bytes, pool, stream_));
  OK(gpu_->pointer_info(at, &facts));
  EXPECT_EQ(facts.kind, memory_kind::driver_pool);
  OK(gpu_->pool_free(at, stream_));
  wait();
  OK(gpu_->pool_destroy(pool));

  const std::vector<char> pageable(4096);
  OK(gpu_->pointer_info(address_of(pageable.data()), &facts));
  EXPECT_EQ(facts.kind, memory_kind::pageable);
  EXPECT_EQ(facts.bytes, 0u);
}

// --- The identity kernels
// -----------------------------------------------------------------------------

TEST_P(driver_contract, identity_covers_any_size_and_alignment_and_nothing_else) {
  constexpr std::uint64_t room = 16 * KiB;
  constexpr std::uint64_t sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 100, 4096, 4099, 12345};
  device_address base = no_address;
  OK(gpu_->memory_allocate(&base, room * max_identity_blocks));
  for (std::uint64_t offset : {0, 1, 4, 8, 12, 16, 23}) {
    OK(gpu_->set_async(base, 0xee, room * max_identity_blocks, stream_));
    std::vector<identity_block> blocks;
    for (std::uint64_t i = 0; i < max_identity_blocks; ++i) {
      blocks.push_back({base + i * room + offset, sizes[i % std::size(sizes)], 1000 * offset + i});
    }
    OK(gpu_->identity_write(blocks, stream_));
    EXPECT_EQ(mismatches(blocks), 0u) << "offset " << offset;
    EXPECT_EQ(report_->address, 0u);
    const std::vector<unsigned char> host = read(base, room * max_identity_blocks);
    for (std::uint64_t i = 0; i < max_identity_blocks; ++i) {
      const identity_block& block = blocks[i];
      const unsigned char* mine = host.data() + i * room;
      identity_report seen;
      EXPECT_EQ(verify_identity(mine + offset, block.bytes, block.identity, &seen), 0u)
          << "the device's bytes are the host's, offset " << offset << ", bytes " << block.bytes;
      const auto untouched = [](unsigned char b) { return b == 0xee; };
      EXPECT_TRUE(std::all_of(mine, mine + offset, untouched));
      EXPECT_TRUE(std::all_of(mine + offset + block.bytes, mine + room, untouched));
    }
  }
  OK(gpu_->memory_free(base));
}

TEST_P(driver_contract, identity_finds_one_changed_byte_wherever_it_is) {
  constexpr std::uint64_t bytes = 64 * MiB + 5;
  device_address base = no_address;
  OK(gpu_->memory_allocate(&base, bytes + 1));
  for (std::uint64_t offset : {0, 1}) {
    const identity_block block{base + offset, bytes, 7};
    for (std::uint64_t at : {std::uint64_t{0}, std::uint64_t{12345677}, bytes - 6, bytes - 1}) {
      write(block);
      const unsigned char was = read(block.address + at, 1)[0];
      OK(gpu_->set_async(block.address + at, static_cast<unsigned char>(was ^ 1), 1, stream_));
      EXPECT_EQ(mismatches(block), 1u) << "at " << at;
      EXPECT_EQ(report_->address, block.address + at / 8 * 8);
      EXPECT_EQ(report_->expected, 7u);
      EXPECT_EQ((report_->found_word >> (at % 8 * 8)) & 0xff, was ^ 1u);
    }
  }
  OK(gpu_->memory_free(base));
}

TEST_P(driver_contract, identity_tells_another_blocks_contents_and_adds_up_over_checks) {
  device_address base = no_address;
  OK(gpu_->memory_allocate(&base, MiB));
  const identity_block good[] = {{base, 4096, 1}, {base + 4096, 4096, 2}};
  const identity_block wrong[] = {{base, 4096, 1}, {base + 4096, 4096, 3}};
  OK(gpu_->identity_write(good, stream_));
  EXPECT_EQ(mismatches(good), 0u);
  EXPECT_EQ(mismatches(wrong), 512u);
  EXPECT_EQ(report_->expected, 3u);
  EXPECT_GE(report_->address, base + 4096);
  OK(gpu_->identity_check(wrong, report_, stream_));
  wait();
  EXPECT_EQ(report_->mismatches, 1024u);
  OK(gpu_->memory_free(base));
}

// --- Host memory
// --------------------------------------------------------------------------------------

TEST_P(driver_contract, pinned_memory_is_seen_by_host_and_device) {
  constexpr std::uint64_t bytes = MiB + 3;
  for (const auto flags : {driver::host_flags::none, driver::host_flags::write_combined}) {
    void* pinned = nullptr;
    OK(gpu_->host_allocate(&pinned, bytes, flags));
    fill_identity(pinned, bytes, 11);
    EXPECT_EQ(mismatches({address_of(pinned), bytes, 11}), 0u);
    write({address_of(pinned), bytes, 12});
    wait();
    identity_report seen;
    EXPECT_EQ(verify_identity(pinned, bytes, 12, &seen), 0u);
    OK(gpu_->host_free(pinned));
  }
}

TEST_P(driver_contract, ordinary_memory_can_be_registered) {
  constexpr std::uint64_t bytes = 2 * MiB;
  void* memory = std::aligned_alloc(4096, bytes);
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 0, bytes);
  OK(gpu_->host_register(memory, bytes));
  driver::pointer_facts facts;
  OK(gpu_->pointer_info(address_of(memory), &facts));
  EXPECT_EQ(facts.kind, memory_kind::pinned);
  write({address_of(memory), bytes, 21});
  wait();
  identity_report seen;
  EXPECT_EQ(verify_identity(memory, bytes, 21, &seen), 0u);
  OK(gpu_->host_unregister(memory));
  std::free(memory);
}

TEST_P(driver_contract, managed_memory_moves_both_ways_and_takes_advice) {
  constexpr std::uint64_t bytes = 4 * MiB;
  device_address at = no_address;
  OK(gpu_->managed_allocate(&at, bytes));
  void* host = reinterpret_cast<void*>(at);
  fill_identity(host, bytes, 31);
  if (gpu_->info().concurrent_managed_access) {
    OK(gpu_->prefetch_async(at, bytes, memory_location::device, stream_));
  }
  EXPECT_EQ(mismatches({at, bytes, 31}), 0u);
  write({at, bytes, 32});
  if (gpu_->info().concurrent_managed_access) {
    OK(gpu_->prefetch_async(at, bytes, memory_location::host, stream_));
  }
  wait();
  identity_report seen;
  EXPECT_EQ(verify_identity(host, bytes, 32, &seen), 0u);
  if (gpu_->info().concurrent_managed_access) {
    for (const auto location : {memory_location::device, memory_location::host}) {
      for (const auto advice :
           {managed_advice::set_read_mostly, managed_advice::unset_read_mostly,
            managed_advice::set_preferred_location, managed_advice::unset_preferred_location,
            managed_advice::set_accessed_by, managed_advice::unset_accessed_by}) {
        const call_result answer = gpu_->advise(at, bytes, advice, location);
        EXPECT_TRUE(answer) << to_string(answer) << " advice " << static_cast<int>(advice);
      }
    }
  }
  OK(gpu_->memory_free(at));
}

// --- Driver pools
// -------------------------------------------------------------------------------------

TEST_P(driver_contract, a_pool_keeps_what_its_threshold_says) {
  constexpr std::uint64_t bytes = 48 * MiB;
  for (const std::uint64_t threshold : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    pool_handle pool = nullptr;
    OK(gpu_->pool_create(&pool, memory_location::device, 0));
    OK(gpu_->pool_set_release_threshold(pool, threshold));
    device_address at = no_address;
    OK(gpu_->pool_allocate(&at, bytes, pool, stream_));
    write({at, bytes, 41});
    EXPECT_EQ(mismatches({at, bytes, 41}), 0u);
    driver::pool_usage usage;
    OK(gpu_->pool_get_usage(pool, &usage));
    EXPECT_GE(usage.used, bytes);
    EXPECT_GE(usage.reserved, usage.used);
    OK(gpu_->pool_free(at, stream_));
    wait();
    OK(gpu_->pool_get_usage(pool, &usage));
    EXPECT_EQ(usage.used, 0u);
    EXPECT_GE(usage.used_high, bytes);
    EXPECT_GE(usage.reserved_high, bytes);
    if (threshold == 0) {
      EXPECT_EQ(usage.reserved, 0u);
    } else {
      EXPECT_GE(usage.reserved, bytes);
      OK(gpu_->pool_trim(pool, 0));
      OK(gpu_->pool_get_usage(pool, &usage));
      EXPECT_EQ(usage.reserved, 0u);
    }
    OK(gpu_->pool_destroy(pool));
  }
}

TEST_P(driver_contract, a_host_pool_serves_host_and_device) {
  constexpr std::uint64_t bytes = MiB;
  pool_handle pool = nullptr;
  OK(gpu_->pool_create(&pool, memory_location::host, 0));
  device_address at = no_address;
  OK(gpu_->pool_allocate(&at, bytes, pool, stream_));
  wait();
  fill_identity(reinterpret_cast<void*>(at), bytes, 51);
  EXPECT_EQ(mismatches({at, bytes, 51}), 0u);
  OK(gpu_->pool_free(at, stream_));
  wait();
  OK(gpu_->pool_destroy(pool));
}

// --- Virtual memory
// -----------------------------------------------------------------------------------

TEST_P(driver_contract, one_handle_at_two_addresses_is_one_memory) {
  if (!gpu_->info().virtual_memory) GTEST_SKIP() << "no virtual memory management";
  const std::uint64_t bytes = gpu_->info().granularity * 2;
  const mapping one = make_mapping(bytes, memory_location::device);
  device_address alias = no_address;
  OK(gpu_->address_reserve(&alias, bytes, 0));
  OK(gpu_->map(alias, bytes, one.handle));
  OK(gpu_->set_access(alias, bytes, memory_location::device));
  EXPECT_NE(alias, one.at);
  write({one.at, bytes, 61});
  EXPECT_EQ(mismatches({alias, bytes, 61}), 0u);
  write({alias, bytes, 62});
  EXPECT_EQ(mismatches({one.at, bytes, 62}), 0u);
  OK(gpu_->unmap(one.at, bytes));
  EXPECT_EQ(mismatches({alias, bytes, 62}), 0u) << "the other mapping stays";
  OK(gpu_->physical_release(one.handle));
  EXPECT_EQ(mismatches({alias, bytes, 62}), 0u) << "the mapping keeps the memory";
  OK(gpu_->unmap(alias, bytes));
  OK(gpu_->address_free(alias, bytes));
  OK(gpu_->address_free(one.at, bytes));
}

TEST_P(driver_contract, a_handle_moves_to_another_address_with_its_contents) {
  if (!gpu_->info().virtual_memory) GTEST_SKIP() << "no virtual memory management";
  const std::uint64_t granule = gpu_->info().granularity;
  // Two handles side by side under one access call, then the second in the first's place.
  device_address at = no_address;
  OK(gpu_->address_reserve(&at, granule * 2, granule));
  EXPECT_EQ(at % granule, 0u);
  physical_handle handles[2] = {};
  for (std::uint64_t i = 0; i < 2; ++i) {
    OK(gpu_->physical_create(&handles[i], granule, memory_location::device, driver::shareable::no));
    OK(gpu_->map(at + i * granule, granule, handles[i]));
  }
  OK(gpu_->set_access(at, granule * 2, memory_location::device));
  write({at, granule * 2, 71});
  const std::vector<unsigned char> second = read(at + granule, granule);
  OK(gpu_->unmap(at, granule * 2));
  OK(gpu_->map(at, granule, handles[1]));
  OK(gpu_->set_access(at, granule, memory_location::device));
  EXPECT_EQ(read(at, granule), second);
  OK(gpu_->unmap(at, granule));
  for (const physical_handle each : handles) OK(gpu_->physical_release(each));
  OK(gpu_->address_free(at, granule * 2));
}

TEST_P(driver_contract, what_virtual_memory_refuses) {
  if (!gpu_->info().virtual_memory) GTEST_SKIP() << "no virtual memory management";
  const std::uint64_t granule = gpu_->info().granularity;
  const mapping two = make_mapping(granule * 2, memory_location::device);
  EXPECT_FALSE(gpu_->unmap(two.at, granule)) << "part of a handle";
  EXPECT_FALSE(gpu_->map(two.at, granule * 2, two.handle)) << "an address that is taken";
  EXPECT_FALSE(gpu_->address_free(two.at, granule * 2)) << "a range that is mapped";
  write({two.at, two.bytes, 72});
  EXPECT_EQ(mismatches({two.at, two.bytes, 72}), 0u) << "the mapping is as it was";
  drop(two);
}

TEST_P(driver_contract, host_memory_by_handle_is_seen_by_host_and_device) {
  const std::uint64_t bytes = gpu_->info().host_granularity;
  if (bytes == 0) GTEST_SKIP() << "no host memory by cuMemCreate";
  const mapping host = make_mapping(bytes, memory_location::host);
  fill_identity(reinterpret_cast<void*>(host.at), bytes, 81);
  EXPECT_EQ(mismatches({host.at, bytes, 81}), 0u);
  write({host.at, bytes, 82});
  wait();
  identity_report seen;
  EXPECT_EQ(verify_identity(reinterpret_cast<void*>(host.at), bytes, 82, &seen), 0u);
  drop(host);
}

TEST_P(driver_contract, a_handle_goes_out_and_in_as_a_file_descriptor) {
  if (!gpu_->info().posix_fd_export) GTEST_SKIP() << "no export by file descriptor";
  const std::uint64_t bytes = gpu_->info().granularity;
  const mapping one = make_mapping(bytes, memory_location::device, driver::shareable::posix_fd);
  write({one.at, bytes, 91});
  wait();
  int fd = -1;
  OK(gpu_->export_handle(&fd, one.handle));
  EXPECT_GE(fd, 0);
  mapping other;
  other.bytes = bytes;
  OK(gpu_->import_handle(&other.handle, fd));
  EXPECT_EQ(::close(fd), 0);
  OK(gpu_->address_reserve(&other.at, bytes, 0));
  OK(gpu_->map(other.at, bytes, other.handle));
  OK(gpu_->set_access(other.at, bytes, memory_location::device));
  EXPECT_EQ(mismatches({other.at, bytes, 91}), 0u);
  drop(one);
  EXPECT_EQ(mismatches({other.at, bytes, 91}), 0u) << "the importer keeps the memory";
  drop(other);
}

}  // namespace millpond
