#include "driver/null/null_driver.hpp"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "support/failing_new.hpp"

namespace millpond {
namespace {

TEST(null_driver, an_event_passes_after_the_asked_number_of_queries) {
  null_driver d({.memory_bytes = 1 * GiB, .queries_until_done = 2});
  event_handle e = nullptr;
  ASSERT_TRUE(d.event_create(&e).ok());
  EXPECT_TRUE(d.event_query(e).ok());
  ASSERT_TRUE(d.event_record(e, nullptr).ok());
  EXPECT_EQ(d.event_query(e).status, driver_status::not_ready);
  EXPECT_EQ(d.event_query(e).status, driver_status::not_ready);
  EXPECT_TRUE(d.event_query(e).ok());
  EXPECT_EQ(d.calls("cuEventQuery"), 4u);
  EXPECT_EQ(d.total_calls(), 6u);
}

TEST(null_driver, an_event_that_host_memory_lacks_room_for_is_refused_and_the_next_is_made) {
  null_driver d;
  event_handle e = nullptr;
  driver_status answered = driver_status::success;
  {
    const failing_new none_left(0);
    answered = d.event_create(&e).status;
  }
  EXPECT_EQ(answered, driver_status::out_of_memory);
  EXPECT_EQ(e, nullptr);
  ASSERT_TRUE(d.event_create(&e).ok());
  EXPECT_TRUE(d.event_record(e, nullptr).ok());
}

TEST(null_driver, physical_memory_is_limited_and_comes_back) {
  null_driver d({.memory_bytes = 64 * MiB, .queries_until_done = 0});
  physical_handle a = 0, b = 0;
  ASSERT_TRUE(d.physical_create(&a, 60 * MiB, memory_location::device, driver::shareable::no).ok());
  EXPECT_EQ(d.physical_create(&b, 6 * MiB, memory_location::device, driver::shareable::no).status,
            driver_status::out_of_memory);
  EXPECT_EQ(d.physical_bytes(), 60 * MiB);
  ASSERT_TRUE(d.physical_release(a).ok());
  EXPECT_EQ(d.physical_bytes(), 0u);
}

TEST(null_driver, identities_are_unique_over_streams_and_threads) {
  null_driver d;
  stream_handle a = nullptr, b = nullptr;
  ASSERT_TRUE(d.stream_create(&a).ok());
  ASSERT_TRUE(d.stream_create(&b).ok());
  std::uint64_t ids[5] = {};
  ASSERT_TRUE(d.stream_id(a, &ids[0]).ok());
  ASSERT_TRUE(d.stream_id(b, &ids[1]).ok());
  ASSERT_TRUE(d.stream_id(nullptr, &ids[2]).ok());
  ASSERT_TRUE(d.stream_id(per_thread_stream, &ids[3]).ok());
  std::thread([&] { (void)d.stream_id(per_thread_stream, &ids[4]); }).join();
  EXPECT_EQ(std::set<std::uint64_t>(ids, ids + 5).size(), 5u);
}

TEST(null_driver, threads_share_it_and_events_are_reused) {
  null_driver d;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        event_handle one = nullptr, two = nullptr;
        ASSERT_TRUE(d.event_create(&one).ok());
        ASSERT_TRUE(d.event_create(&two).ok());
        ASSERT_NE(one, two);
        ASSERT_TRUE(d.event_record(one, nullptr).ok());
        ASSERT_TRUE(d.event_query(one).ok());
        ASSERT_TRUE(d.event_destroy(one).ok());
        ASSERT_TRUE(d.event_destroy(two).ok());
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(d.calls("cuEventCreate"), 16000u);
}

}  // namespace
}  // namespace millpond
