// A trace read while it is written.
#include "trace/follow.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "trace/writer.hpp"

namespace millpond::trace {
namespace {

class follow : public ::testing::Test {
 protected:
  follow() {
    std::string name = (std::filesystem::temp_directory_path() / "millpond_follow_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    path_ = (folder_ / "a.mpt").string();
  }
  ~follow() override { std::filesystem::remove_all(folder_); }

  static event allocation(std::uint64_t number) {
    event made;
    made.what = action::allocate;
    made.sequence = number;
    made.time_ns = number * 1000;
    made.address = 0x1000 * (number + 1);
    made.bytes = 512;
    return made;
  }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(follow, events_are_read_as_soon_as_they_are_flushed) {
  trace_writer writer(make_file_sink(path_).value(), {.program = "pond"});
  ASSERT_TRUE(writer.add(allocation(0)));
  ASSERT_TRUE(writer.flush());
  std::uint64_t written = 1, waits = 0;
  bool closed = false;
  // Whoever follows asks for more; each time the program goes on by one event, and at the end
  // closes.
  auto source = follow_trace(path_, [&] {
    ++waits;
    if (written < 5) {
      EXPECT_TRUE(writer.add(allocation(written++)));
      EXPECT_TRUE(writer.flush());
    } else if (!closed) {
      closed = true;
      EXPECT_TRUE(writer.close());
    }
    return true;
  });
  ASSERT_TRUE(source) << source.error().message;
  event next;
  std::vector<std::uint64_t> seen;
  for (;;) {
    const auto got = source->read({&next, 1});
    ASSERT_TRUE(got) << got.error().message;
    if (*got == 0) break;
    EXPECT_LE(next.sequence, waits) << "no event is there before it was written";
    seen.push_back(next.sequence);
  }
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(source->info().status, read_status::complete);
  EXPECT_EQ(source->info().meta.program, "pond");
}

TEST_F(follow, where_nothing_more_comes_the_trace_reads_as_cut) {
  trace_writer writer(make_file_sink(path_).value(), {});
  for (std::uint64_t n = 0; n < 3; ++n) ASSERT_TRUE(writer.add(allocation(n)));
  ASSERT_TRUE(writer.flush());
  auto source = follow_trace(path_, [] { return false; });
  ASSERT_TRUE(source) << source.error().message;
  std::uint64_t events = 0;
  ASSERT_TRUE(source->for_each([&](const event&) { ++events; }));
  EXPECT_EQ(events, 3u);
  EXPECT_EQ(source->info().status, read_status::cut);
}

TEST_F(follow, what_was_written_just_before_the_end_is_read) {
  trace_writer writer(make_file_sink(path_).value(), {});
  ASSERT_TRUE(writer.add(allocation(0)));
  ASSERT_TRUE(writer.flush());
  bool first = true;
  auto source = follow_trace(path_, [&] {
    // The program's last words and its end, between two looks.
    if (first) {
      EXPECT_TRUE(writer.add(allocation(1)));
      EXPECT_TRUE(writer.close());
    }
    first = false;
    return false;
  });
  ASSERT_TRUE(source);
  std::uint64_t events = 0;
  ASSERT_TRUE(source->for_each([&](const event&) { ++events; }));
  EXPECT_EQ(events, 2u);
  EXPECT_EQ(source->info().status, read_status::complete);
}

TEST_F(follow, a_file_of_another_sort_is_refused_and_one_that_is_not_there_too) {
  std::ofstream(path_) << "action,time_us,addr,size,stream\n";
  const auto other = follow_trace(path_, [] { return false; });
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("expected a trace of millpond"), std::string::npos);
  EXPECT_FALSE(follow_trace(path_ + ".no", [] { return false; }));
}

}  // namespace
}  // namespace millpond::trace
