// What every driver must do, as one suite: included once by the test of the card and once by that of the
// simulated GPU, which so answer to the same sentences. Each including file instantiates it.
//
// It runs on a shared card: nothing here takes more than about a GiB, and free memory is compared only
// in the direction that others cannot change much.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "driver/identity.hpp"
#include "driver/relaxed_capture.hpp"
#include "millpond/driver.hpp"
#include "millpond/units.hpp"

namespace millpond {

struct contract_subject {
  std::string name;
  // A driver bound to the calling thread; null and a reason where there is none.
  std::function<std::shared_ptr<driver>(std::string& why_not)> open;
  // Looks for what a test left behind.
  std::function<void(driver&)> finish = [](driver&) {};
};
inline void PrintTo(const contract_subject& subject, std::ostream* out) { *out << subject.name; }

#define OK(call)                                          \
  do {                                                    \
    const ::millpond::call_result answer_ = (call);       \
    ASSERT_TRUE(answer_) << ::millpond::to_string(answer_); \
  } while (false)

class driver_contract : public testing::TestWithParam<contract_subject> {
 protected:
  static constexpr device_address no_address = 0;
  static constexpr std::uint64_t ten_ms = 10'000'000;

  void SetUp() override {
    std::string why_not;
    gpu_ = GetParam().open(why_not);
    if (gpu_ == nullptr) GTEST_SKIP() << why_not;
    stream_ = make_stream();
    void* report = nullptr;
    OK(gpu_->host_allocate(&report, sizeof(identity_report), driver::host_flags::none));
    report_ = new (report) identity_report{};
  }
  void TearDown() override {
    if (gpu_ == nullptr) return;
    EXPECT_TRUE(gpu_->context_synchronize());
    for (stream_handle each : streams_) EXPECT_TRUE(gpu_->stream_destroy(each));
    for (event_handle each : events_) EXPECT_TRUE(gpu_->event_destroy(each));
    EXPECT_TRUE(report_ == nullptr || gpu_->host_free(report_));
    EXPECT_TRUE(gpu_->alive());
    GetParam().finish(*gpu_);
  }

  stream_handle make_stream() {
    stream_handle made = nullptr;
    EXPECT_TRUE(gpu_->stream_create(&made));
    streams_.push_back(made);
    return made;
  }
  event_handle make_event() {
    event_handle made = nullptr;
    EXPECT_TRUE(gpu_->event_create(&made));
    events_.push_back(made);
    return made;
  }
  void forget(stream_handle stream) { std::erase(streams_, stream); }
  void wait() { OK(gpu_->stream_synchronize(stream_)); }

  // Words that differ, checked on the device. Waits.
  std::uint64_t mismatches(std::span<const identity_block> blocks) {
    *report_ = {};
    EXPECT_TRUE(gpu_->identity_check(blocks, report_, stream_));
    EXPECT_TRUE(gpu_->stream_synchronize(stream_));
    return report_->mismatches;
  }
  std::uint64_t mismatches(identity_block block) {
    return mismatches(std::span<const identity_block>(&block, 1));
  }
  void write(identity_block block) {
    EXPECT_TRUE(gpu_->identity_write(std::span<const identity_block>(&block, 1), stream_));
  }
  // Device bytes, read by a copy. Waits.
  std::vector<unsigned char> read(device_address at, std::uint64_t bytes) {
    std::vector<unsigned char> host(bytes);
    EXPECT_TRUE(gpu_->copy_async(address_of(host.data()), at, bytes, stream_));
    EXPECT_TRUE(gpu_->stream_synchronize(stream_));
    return host;
  }
  static device_address address_of(const void* at) { return reinterpret_cast<device_address>(at); }
  // A destructor of a graph's object runs on a thread of the driver's, some time after.
  static bool becomes(const std::atomic<int>& counter, int value) {
    for (int i = 0; i < 2000 && counter.load() != value; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return counter.load() == value;
  }
  static void count_up(void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); }

  // A handle mapped at a fresh address, with access.
  struct mapping {
    device_address at = 0;
    physical_handle handle = 0;
    std::uint64_t bytes = 0;
  };
  mapping make_mapping(std::uint64_t bytes, memory_place place,
                       driver::shareable share = driver::shareable::no) {
    mapping made;
    made.bytes = bytes;
    EXPECT_TRUE(gpu_->address_reserve(&made.at, bytes, 0));
    EXPECT_TRUE(gpu_->physical_create(&made.handle, bytes, place, share));
    EXPECT_TRUE(gpu_->map(made.at, bytes, made.handle));
    EXPECT_TRUE(gpu_->set_access(made.at, bytes, place));
    return made;
  }
  void drop(const mapping& made) {
    EXPECT_TRUE(gpu_->unmap(made.at, made.bytes));
    EXPECT_TRUE(gpu_->physical_release(made.handle));
    EXPECT_TRUE(gpu_->address_free(made.at, made.bytes));
  }

  std::shared_ptr<driver> gpu_;
  stream_handle stream_ = nullptr;
  identity_report* report_ = nullptr;

 private:
  std::vector<stream_handle> streams_;
  std::vector<event_handle> events_;
};

// --- The device and plain memory ----------------------------------------------------------------------

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
  const call_result odd = gpu_->physical_create(&handle, 12345, memory_place::device,
                                                driver::shareable::no);
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
  OK(gpu_->pool_create(&pool, memory_place::device, 0));
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

// --- The identity kernels -----------------------------------------------------------------------------

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

// --- Host memory --------------------------------------------------------------------------------------

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
    OK(gpu_->prefetch_async(at, bytes, memory_place::device, stream_));
  }
  EXPECT_EQ(mismatches({at, bytes, 31}), 0u);
  write({at, bytes, 32});
  if (gpu_->info().concurrent_managed_access) {
    OK(gpu_->prefetch_async(at, bytes, memory_place::host, stream_));
  }
  wait();
  identity_report seen;
  EXPECT_EQ(verify_identity(host, bytes, 32, &seen), 0u);
  if (gpu_->info().concurrent_managed_access) {
    for (const auto place : {memory_place::device, memory_place::host}) {
      for (const auto advice :
           {managed_advice::set_read_mostly, managed_advice::unset_read_mostly,
            managed_advice::set_preferred_location, managed_advice::unset_preferred_location,
            managed_advice::set_accessed_by, managed_advice::unset_accessed_by}) {
        const call_result answer = gpu_->advise(at, bytes, advice, place);
        EXPECT_TRUE(answer) << to_string(answer) << " advice " << static_cast<int>(advice);
      }
    }
  }
  OK(gpu_->memory_free(at));
}

// --- Driver pools -------------------------------------------------------------------------------------

TEST_P(driver_contract, a_pool_keeps_what_its_threshold_says) {
  constexpr std::uint64_t bytes = 48 * MiB;
  for (const std::uint64_t threshold : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    pool_handle pool = nullptr;
    OK(gpu_->pool_create(&pool, memory_place::device, 0));
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
  OK(gpu_->pool_create(&pool, memory_place::host, 0));
  device_address at = no_address;
  OK(gpu_->pool_allocate(&at, bytes, pool, stream_));
  wait();
  fill_identity(reinterpret_cast<void*>(at), bytes, 51);
  EXPECT_EQ(mismatches({at, bytes, 51}), 0u);
  OK(gpu_->pool_free(at, stream_));
  wait();
  OK(gpu_->pool_destroy(pool));
}

// --- Virtual memory -----------------------------------------------------------------------------------

TEST_P(driver_contract, one_handle_at_two_addresses_is_one_memory) {
  if (!gpu_->info().virtual_memory) GTEST_SKIP() << "no virtual memory management";
  const std::uint64_t bytes = gpu_->info().granularity * 2;
  const mapping one = make_mapping(bytes, memory_place::device);
  device_address alias = no_address;
  OK(gpu_->address_reserve(&alias, bytes, 0));
  OK(gpu_->map(alias, bytes, one.handle));
  OK(gpu_->set_access(alias, bytes, memory_place::device));
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
    OK(gpu_->physical_create(&handles[i], granule, memory_place::device, driver::shareable::no));
    OK(gpu_->map(at + i * granule, granule, handles[i]));
  }
  OK(gpu_->set_access(at, granule * 2, memory_place::device));
  write({at, granule * 2, 71});
  const std::vector<unsigned char> second = read(at + granule, granule);
  OK(gpu_->unmap(at, granule * 2));
  OK(gpu_->map(at, granule, handles[1]));
  OK(gpu_->set_access(at, granule, memory_place::device));
  EXPECT_EQ(read(at, granule), second);
  OK(gpu_->unmap(at, granule));
  for (const physical_handle each : handles) OK(gpu_->physical_release(each));
  OK(gpu_->address_free(at, granule * 2));
}

TEST_P(driver_contract, what_virtual_memory_refuses) {
  if (!gpu_->info().virtual_memory) GTEST_SKIP() << "no virtual memory management";
  const std::uint64_t granule = gpu_->info().granularity;
  const mapping two = make_mapping(granule * 2, memory_place::device);
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
  const mapping host = make_mapping(bytes, memory_place::host);
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
  const mapping one = make_mapping(bytes, memory_place::device, driver::shareable::posix_fd);
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
  OK(gpu_->set_access(other.at, bytes, memory_place::device));
  EXPECT_EQ(mismatches({other.at, bytes, 91}), 0u);
  drop(one);
  EXPECT_EQ(mismatches({other.at, bytes, 91}), 0u) << "the importer keeps the memory";
  drop(other);
}

// --- Streams and events -------------------------------------------------------------------------------

TEST_P(driver_contract, a_stream_has_an_identity_of_its_own_and_a_device) {
  const stream_handle other = make_stream();
  std::uint64_t one = 0, two = 0, again = 0;
  OK(gpu_->stream_id(stream_, &one));
  OK(gpu_->stream_id(other, &two));
  OK(gpu_->stream_id(stream_, &again));
  EXPECT_NE(one, two);
  EXPECT_EQ(one, again);
  int ordinal = -1;
  OK(gpu_->stream_device(stream_, &ordinal));
  EXPECT_EQ(ordinal, gpu_->info().ordinal);
  std::uint64_t legacy = 0, per_thread = 0;
  OK(gpu_->stream_id(legacy_stream, &legacy));
  OK(gpu_->stream_id(per_thread_stream, &per_thread));
  EXPECT_NE(legacy, per_thread);
  EXPECT_NE(legacy, one);
}

TEST_P(driver_contract, a_new_stream_never_has_a_dead_ones_identity) {
  const stream_handle first = make_stream();
  std::uint64_t old_id = 0, new_id = 0;
  OK(gpu_->stream_id(first, &old_id));
  OK(gpu_->spin(ten_ms, first));
  OK(gpu_->stream_destroy(first));  // with its work pending
  forget(first);
  const stream_handle second = make_stream();
  OK(gpu_->stream_id(second, &new_id));
  EXPECT_NE(new_id, old_id);
  RecordProperty("same_handle_came_back", first == second ? "yes" : "no");
}

TEST_P(driver_contract, an_event_passes_when_the_work_before_it_is_done) {
  const event_handle event = make_event();
  OK(gpu_->event_query(event));  // never recorded: passed
  OK(gpu_->spin(3 * ten_ms, stream_));
  OK(gpu_->event_record(event, stream_));
  EXPECT_EQ(gpu_->event_query(event).status, driver_status::not_ready);
  EXPECT_EQ(gpu_->stream_query(stream_).status, driver_status::not_ready);
  OK(gpu_->event_synchronize(event));
  OK(gpu_->event_query(event));
  OK(gpu_->stream_query(stream_));
}

TEST_P(driver_contract, a_stream_that_waits_for_an_event_comes_after_it) {
  const stream_handle other = make_stream();
  const event_handle event = make_event();
  const event_handle after = make_event();
  OK(gpu_->spin(2 * ten_ms, stream_));
  OK(gpu_->event_record(event, stream_));
  OK(gpu_->stream_wait_event(other, event));
  OK(gpu_->event_record(after, other));
  EXPECT_EQ(gpu_->event_query(after).status, driver_status::not_ready);
  OK(gpu_->event_synchronize(after));
  OK(gpu_->event_query(event));
}

TEST_P(driver_contract, the_contexts_event_covers_a_destroyed_streams_work) {
  const stream_handle doomed = make_stream();
  const event_handle fence = make_event();
  OK(gpu_->spin(3 * ten_ms, doomed));
  OK(gpu_->stream_destroy(doomed));
  forget(doomed);
  OK(gpu_->context_record_event(fence));
  EXPECT_EQ(gpu_->event_query(fence).status, driver_status::not_ready);
  OK(gpu_->event_synchronize(fence));
  OK(gpu_->event_query(fence));
}

TEST_P(driver_contract, a_host_function_runs_in_its_place) {
  device_address at = no_address;
  OK(gpu_->memory_allocate(&at, MiB));
  void* pinned = nullptr;
  OK(gpu_->host_allocate(&pinned, 8, driver::host_flags::none));
  auto* word = static_cast<std::uint64_t*>(pinned);
  *word = 0;
  // The device writes 1s, the host function adds one byte, the device reads it back.
  OK(gpu_->set_async(address_of(word), 1, 1, stream_));
  OK(gpu_->host_function(stream_, [](void* w) { *static_cast<std::uint64_t*>(w) += 1; }, word));
  OK(gpu_->copy_async(at, address_of(word), 8, stream_));
  EXPECT_EQ(read(at, 1)[0], 2);
  OK(gpu_->host_free(pinned));
  OK(gpu_->memory_free(at));
}

// --- Capture ------------------------------------------------------------------------------------------

TEST_P(driver_contract, a_capture_is_known_by_its_id_and_replays) {
  constexpr std::uint64_t bytes = 100'000;
  device_address at = no_address;
  OK(gpu_->memory_allocate(&at, bytes));
  capture_info info;
  OK(gpu_->stream_capture(stream_, &info));
  EXPECT_EQ(info.status, capture_status::none);
  OK(gpu_->capture_begin(stream_, capture_mode::thread_local_));
  OK(gpu_->stream_capture(stream_, &info));
  EXPECT_EQ(info.status, capture_status::active);
  EXPECT_NE(info.graph, nullptr);
  std::uint64_t id = 0;
  OK(gpu_->stream_id(stream_, &id));  // asking who a stream is harms no capture
  const identity_block block{at, bytes, 101};
  OK(gpu_->identity_write({&block, 1}, stream_));
  OK(gpu_->set_async(at, 0, 1, stream_));
  graph_handle graph = nullptr;
  OK(gpu_->capture_end(stream_, &graph));
  ASSERT_NE(graph, nullptr);
  graph_exec_handle exec = nullptr;
  OK(gpu_->graph_instantiate(&exec, graph));
  for (int round = 0; round < 2; ++round) {
    OK(gpu_->set_async(at, 0xff, bytes, stream_));
    OK(gpu_->graph_launch(exec, stream_));
    EXPECT_EQ(mismatches(block), 1u) << "all written, and the first byte set to zero";
    EXPECT_EQ(report_->address, at);
  }
  OK(gpu_->graph_exec_destroy(exec));
  OK(gpu_->graph_destroy(graph));
  OK(gpu_->capture_begin(stream_, capture_mode::thread_local_));
  capture_info second;
  OK(gpu_->stream_capture(stream_, &second));
  EXPECT_NE(second.id, info.id);
  OK(gpu_->capture_end(stream_, &graph));
  OK(gpu_->graph_destroy(graph));
  OK(gpu_->memory_free(at));
}

TEST_P(driver_contract, what_a_graph_retains_is_destroyed_with_the_last_of_it) {
  std::atomic<int> destroyed{0};
  capture_info info;
  OK(gpu_->capture_begin(stream_, capture_mode::relaxed));
  OK(gpu_->stream_capture(stream_, &info));
  OK(gpu_->graph_retain(info.graph, count_up, &destroyed));
  OK(gpu_->spin(1000, stream_));
  graph_handle graph = nullptr;
  OK(gpu_->capture_end(stream_, &graph));
  graph_exec_handle exec = nullptr;
  OK(gpu_->graph_instantiate(&exec, graph));
  OK(gpu_->graph_destroy(graph));
  OK(gpu_->graph_launch(exec, stream_));
  wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(destroyed.load(), 0) << "what was made from the graph keeps it";
  OK(gpu_->graph_exec_destroy(exec));
  EXPECT_TRUE(becomes(destroyed, 1)) << destroyed.load();
}

TEST_P(driver_contract, what_an_aborted_capture_retained_is_destroyed) {
  std::atomic<int> destroyed{0};
  capture_info info;
  OK(gpu_->capture_begin(stream_, capture_mode::thread_local_));
  OK(gpu_->stream_capture(stream_, &info));
  OK(gpu_->graph_retain(info.graph, count_up, &destroyed));
  EXPECT_FALSE(gpu_->stream_synchronize(stream_)) << "a capturing stream cannot be waited for";
  OK(gpu_->stream_capture(stream_, &info));
  EXPECT_EQ(info.status, capture_status::invalidated);
  graph_handle graph = nullptr;
  const call_result ended = gpu_->capture_end(stream_, &graph);
  EXPECT_EQ(ended.status, driver_status::capture_invalidated) << to_string(ended);
  EXPECT_EQ(graph, nullptr);
  EXPECT_TRUE(becomes(destroyed, 1)) << destroyed.load();
  OK(gpu_->spin(1000, stream_));  // the stream is free again
  wait();
}

TEST_P(driver_contract, relaxed_mode_spares_another_threads_capture) {
  const std::uint64_t granule = gpu_->info().granularity;
  OK(gpu_->capture_begin(stream_, capture_mode::global));
  OK(gpu_->spin(1000, stream_));
  std::thread other([&] {
    OK(gpu_->bind_thread());
    const relaxed_capture_scope relaxed(*gpu_);
    device_address at = no_address;
    OK(gpu_->memory_allocate(&at, MiB));
    OK(gpu_->memory_free(at));
    if (gpu_->info().virtual_memory) drop(make_mapping(granule, memory_place::device));
    const event_handle event = make_event();
    OK(gpu_->event_query(event));
  });
  other.join();
  graph_handle graph = nullptr;
  OK(gpu_->capture_end(stream_, &graph));
  OK(gpu_->graph_destroy(graph));
}

TEST_P(driver_contract, without_relaxed_mode_another_thread_is_refused_and_breaks_the_capture) {
  OK(gpu_->capture_begin(stream_, capture_mode::global));
  OK(gpu_->spin(1000, stream_));
  std::thread other([&] {
    OK(gpu_->bind_thread());
    device_address at = no_address;
    const call_result refused = gpu_->memory_allocate(&at, MiB);
    EXPECT_EQ(refused.status, driver_status::capture_unsupported) << to_string(refused);
  });
  other.join();
  graph_handle graph = nullptr;
  EXPECT_EQ(gpu_->capture_end(stream_, &graph).status, driver_status::capture_invalidated);
}

TEST_P(driver_contract, the_capture_mode_comes_back_by_a_second_exchange) {
  capture_mode mode = capture_mode::relaxed;
  OK(gpu_->exchange_capture_mode(&mode));
  EXPECT_EQ(mode, capture_mode::global) << "what a thread starts with";
  OK(gpu_->exchange_capture_mode(&mode));
  EXPECT_EQ(mode, capture_mode::relaxed);
}

}  // namespace millpond
