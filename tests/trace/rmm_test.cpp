// RMM's log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

namespace millpond::trace {
namespace {

using testing::HasSubstr;

const std::string rmm_header = "Thread,Time,Action,Pointer,Size,Stream\n";

result<trace_data> read_log(const std::string& rows) {
  auto source = open_trace_bytes("rmm.csv", rmm_header + rows);
  if (!source) return source.error();
  return load_trace(std::move(*source));
}

TEST(rmm, rows_become_events_with_small_threads_and_streams) {
  auto back = read_log(
      "140203,10:19:46.191735,allocate,0x7f1a00000000,1048576,0x0\n"
      "140204,10:19:46.191800,allocate,0x7f1a00200000,256,0x55d1c0\n"
      "140203,10:19:46.191900,allocate failure,(nil),1099511627776,0x0\n"
      "140204,10:19:46.192000,free,0x7f1a00200000,256,0x55d1c0\n"
      "140203,10:19:47,allocate,0x7f1a00300000,1,0x2\n"
      "140204,10:19:47.5,allocate,0x7f1a00400000,1,0x2\n"
      "140204,10:19:48.000000,free,(nil),0,0x1\n");
  ASSERT_TRUE(back) << back.error().message;
  const auto& e = back->events;
  ASSERT_EQ(e.size(), 7u);
  EXPECT_EQ(e[0], (event{.address = 0x7f1a00000000, .bytes = 1048576}));
  EXPECT_EQ(e[1].thread, 1u);
  EXPECT_EQ(e[1].stream, 1u);
  EXPECT_EQ(e[1].time_ns, 65'000u);
  EXPECT_EQ(e[2].status, cuda_error_out_of_memory);
  EXPECT_EQ(e[2].address, 0u);
  EXPECT_EQ(e[3].what, action::free);
  EXPECT_EQ(e[4].time_ns, 808'265'000u);
  EXPECT_EQ(e[5].time_ns, 1'308'265'000u);
  // The per-thread stream is another stream on another thread; the legacy one is the null one.
  EXPECT_EQ(e[4].stream, 2u);
  EXPECT_EQ(e[5].stream, 3u);
  EXPECT_EQ(e[6].stream, 0u);
  auto found = find_lifetimes(*back);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->blocks.size(), 4u);
  EXPECT_EQ(found->failed_allocations, 1u);
}

TEST(rmm, midnight_is_passed_and_a_little_disorder_is_not_a_day) {
  auto back = read_log(
      "1,23:59:59.000000,allocate,0x10,1,0x0\n"
      "1,23:59:58.500000,allocate,0x20,1,0x0\n"
      "1,00:00:01.000000,allocate,0x30,1,0x0\n"
      "2,23:59:59.900000,allocate,0x40,1,0x0\n"
      "1,12:00:00.000000,allocate,0x50,1,0x0\n"
      "1,23:00:00.000000,allocate,0x60,1,0x0\n"
      "1,00:00:00.000000,allocate,0x70,1,0x0\n");
  ASSERT_TRUE(back) << back.error().message;
  std::vector<std::uint64_t> seconds;
  for (const event& each : back->events) seconds.push_back(each.time_ns / 1'000'000'000);
  EXPECT_THAT(seconds, testing::ElementsAre(0, 0, 2, 0, 43201, 82801, 86401));
}

TEST(rmm, broken_rows_are_named) {
  const auto message = [](const std::string& rows) {
    auto back = read_log(rows);
    EXPECT_FALSE(back);
    return back ? std::string() : back.error().message;
  };
  EXPECT_THAT(message("1,10:00:00.0,allocate,0x1,1\n"), HasSubstr("rmm.csv:2: expected 6 fields"));
  EXPECT_THAT(message("x,10:00:00.0,allocate,0x1,1,0x0\n"),
              HasSubstr("a thread's number, found 'x'"));
  for (const char* time : {"24:00:00.0", "10:60:00.0", "10-00-00", "10:00:0", "10:00:00.",
                           "10:00:00.1234567890", ""}) {
    EXPECT_THAT(message("1," + std::string(time) + ",allocate,0x1,1,0x0\n"),
                HasSubstr("a time of day"))
        << time;
  }
  EXPECT_THAT(message("1,10:00:00.0,alloc,0x1,1,0x0\n"),
              HasSubstr("allocate, allocate failure or free, found 'alloc'"));
  EXPECT_THAT(message("1,10:00:00.0,allocate,nil,1,0x0\n"),
              HasSubstr("a pointer in hexadecimal or (nil), found 'nil'"));
  EXPECT_THAT(message("1,10:00:00.0,allocate,0x1,-1,0x0\n"), HasSubstr("a size in bytes"));
  EXPECT_THAT(message("1,10:00:00.0,allocate,0x1,1,zz\n"), HasSubstr("a stream in hexadecimal"));
}

}  // namespace
}  // namespace millpond::trace
