#include "millpond/trace/trace_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "millpond/memory/call_site.hpp"
#include "millpond/memory/kinds.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

namespace millpond {
namespace {

class trace_file_test : public ::testing::Test {
 protected:
  std::string path_ = (std::filesystem::temp_directory_path() /
                       ("millpond_trace_file" + std::to_string(getpid()) + ".mpt"))
                          .string();
  ~trace_file_test() override { std::filesystem::remove(path_); }
  trace::trace_data read() {
    auto loaded = trace::load_trace(path_);
    EXPECT_TRUE(loaded) << loaded.error().message;
    return std::move(*loaded);
  }
};

TEST_F(trace_file_test, holds_each_event_with_the_callers_line_and_words) {
  auto gpu = simulated_gpu::create();
  ASSERT_TRUE(gpu);
  device_resource memory(*gpu);
  auto file =
      trace_file::create(path_, {.program = "a server", .device_name = {}, .simulated = true});
  ASSERT_TRUE(file) << file.error().message;
  {
    trace_resource traced(memory, (*file)->sink());
    const scoped_call_site here("weights");
    void* block = traced.allocate(4096, stream_handle{});
    traced.deallocate(block, 4096, stream_handle{});
  }
  ASSERT_TRUE((*file)->close(trace_file::program_state::ended));
  const auto made = read();
  ASSERT_EQ(made.events.size(), 2u);
  EXPECT_EQ(made.events[0].bytes, 4096u);
  const auto stack = made.info.stacks.at(made.events[0].stack);
  ASSERT_EQ(stack.size(), 1u);
  EXPECT_TRUE(made.info.strings.at(stack[0].symbol).starts_with("weights"));
  EXPECT_TRUE(made.info.strings.at(stack[0].file).ends_with("trace_file_test.cpp"));
  EXPECT_TRUE(made.info.meta.simulated);
  EXPECT_EQ(made.info.meta.notes.back(), (std::pair<std::string, std::string>("ended", "exit")));
  EXPECT_TRUE(trace::find_lifetimes(made));
}

TEST_F(trace_file_test, brings_the_events_of_many_threads_into_their_order) {
  auto file = trace_file::create(path_);
  ASSERT_TRUE(file);
  const auto sink = (*file)->sink();
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> next{0};
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      for (int each = 0; each < 500; ++each) {
        trace::event made;
        made.what = trace::action::memset;
        made.sequence = next.fetch_add(1);
        made.address = made.sequence;
        sink(made);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE((*file)->close());
  const auto made = read();
  ASSERT_EQ(made.events.size(), 2000u);
  for (std::uint64_t n = 0; n < made.events.size(); ++n) ASSERT_EQ(made.events[n].address, n);
}

TEST_F(trace_file_test, an_event_that_comes_late_holds_nothing_back) {
  auto file = trace_file::create(path_);
  ASSERT_TRUE(file);
  const auto sink = (*file)->sink();
  const auto tell = [&](std::uint64_t number) {
    trace::event made;
    made.what = trace::action::memset;
    made.sequence = number;
    made.address = number;
    sink(made);
  };
  for (std::uint64_t n = 0; n < 10000; ++n) {
    if (n != 5) tell(n);  // a thread is stopped between its number and its event
  }
  ASSERT_TRUE((*file)->flush());
  EXPECT_EQ(read().events.size(), 9999u) << "what was added is readable";
  tell(5);
  for (std::uint64_t n = 10000; n < 13000; ++n) tell(n);
  ASSERT_TRUE((*file)->flush());
  EXPECT_EQ(read().events.size(), 13000u);
  for (std::uint64_t n = 13001; n < 13003; ++n) tell(n);
  ASSERT_TRUE((*file)->flush());
  tell(13000);
  tell(13003);
  tell(13003);  // a number that came twice
  ASSERT_TRUE((*file)->close());
  const auto made = read();
  ASSERT_EQ(made.events.size(), 13005u);
  for (std::uint64_t n = 6; n < 9999; ++n) ASSERT_EQ(made.events[n].address, n + 1);
}

TEST_F(trace_file_test, all_events_of_threads_in_a_hurry_come_through_flushes) {
  auto file = trace_file::create(path_);
  ASSERT_TRUE(file);
  const auto sink = (*file)->sink();
  std::atomic<std::uint64_t> next{0};
  std::vector<std::thread> threads;
  for (int n = 0; n < 2; ++n) {
    threads.emplace_back([&] {
      for (int each = 0; each < 300; ++each) {
        trace::event made;
        made.what = trace::action::memset;
        made.sequence = next.fetch_add(1);
        made.address = made.sequence;
        sink(made);
      }
    });
  }
  for (int n = 0; n < 20; ++n) EXPECT_TRUE((*file)->flush());
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE((*file)->close());
  EXPECT_EQ(read().events.size(), 600u);
}

TEST_F(trace_file_test, numbers_go_on_past_the_end_of_64_bits) {
  auto file = trace_file::create(path_);
  ASSERT_TRUE(file);
  const std::uint64_t first = UINT64_MAX - 2;
  const auto sink = (*file)->sink(first);
  for (const std::uint64_t place : {1u, 0u, 3u, 2u, 5u, 4u}) {
    trace::event made;
    made.what = trace::action::memset;
    made.sequence = first + place;
    made.address = place;
    sink(made);
  }
  ASSERT_TRUE((*file)->close());
  const auto made = read();
  ASSERT_EQ(made.events.size(), 6u);
  for (std::uint64_t n = 0; n < 6; ++n) EXPECT_EQ(made.events[n].address, n);
}

TEST_F(trace_file_test, that_cannot_be_made_says_why) {
  const auto file = trace_file::create("/no/such/folder/a.mpt");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, error_code::output_failure);
}

TEST_F(trace_file_test, drops_what_comes_after_its_end) {
  auto file = trace_file::create(path_);
  ASSERT_TRUE(file);
  const auto sink = (*file)->sink();
  (*file)->mark("step");
  ASSERT_TRUE((*file)->close());
  sink({});
  (*file)->mark("step");
  ASSERT_TRUE((*file)->close());
  EXPECT_EQ(read().events.size(), 1u);
}

}  // namespace
}  // namespace millpond
