// The account that `millpond top` keeps, and how it is shown.
#include "report/live.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "../advise/trace_maker.hpp"

namespace millpond::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using trace::action;

class live : public ::testing::Test {
 protected:
  void put(action what, std::uint64_t address, std::uint64_t bytes,
           trace::kind of = trace::kind::device, std::uint32_t duration_ns = 0,
           std::int32_t status = 0) {
    trace::event at;
    at.what = what;
    at.address = address;
    at.bytes = bytes;
    at.of = of;
    at.duration_ns = duration_ns;
    at.status = status;
    at.time_ns = time_ns_ += 1'000'000;
    at.object = what == action::allocate || what == action::free ? call_ : 0;
    at.stack = what == action::allocate ? stack_ : 0;
    account_.add(at, info_);
  }
  live_view view(double elapsed_s = 0) { return account_.view(elapsed_s, 10, site_order::bytes); }

  trace::trace_info info_;
  live_account account_;
  std::uint64_t time_ns_ = 0, call_ = 0;
  std::uint32_t stack_ = 0;
};

TEST_F(live, bytes_blocks_and_peaks_are_counted_by_kind) {
  put(action::allocate, 0x1000, 4096);
  put(action::allocate, 0x9000, 512, trace::kind::pinned);
  put(action::free, 0x1000, 0);
  put(action::allocate, 0x1000, 1024);
  const live_view now = view();
  EXPECT_EQ(now.kinds[0].live_bytes, 1024u);
  EXPECT_EQ(now.kinds[0].live_blocks, 1u);
  EXPECT_EQ(now.kinds[0].peak_bytes, 4096u);
  EXPECT_EQ(now.kinds[0].allocations, 2u);
  EXPECT_EQ(now.kinds[0].frees, 1u);
  EXPECT_EQ(now.kinds[0].allocated_bytes, 5120u);
  EXPECT_EQ(now.kinds[2].live_bytes, 512u);
}

TEST_F(live, gpu_memory_is_what_explain_counts_in_its_peak) {
  advise::trace_maker made;
  made.allocate(0x100000, 1000, trace::kind::device);
  made.allocate(0x200000, 200, trace::kind::driver_pool);
  made.allocate(0x300000, 30, trace::kind::managed);
  made.allocate(0x400000, 4, trace::kind::pinned);
  made.allocate(0x500000, 5, trace::kind::pageable);
  made.free(0x200000, trace::kind::driver_pool);
  auto source = trace::open_trace_bytes("made", made.bytes());
  ASSERT_TRUE(source) << source.error().message;
  std::vector<trace::event> events(16);
  const auto count = source->read(events);
  ASSERT_TRUE(count);
  ASSERT_EQ(*count, 6u);
  for (std::size_t n = 0; n < *count; ++n) account_.add(events[n], source->info());
  const live_view now = view();
  EXPECT_EQ(now.gpu_live_bytes, 1030u);
  EXPECT_EQ(now.gpu_peak_bytes, 1230u);
  const advise::explained_trace explained = advise::explain_made(made);
  EXPECT_EQ(explained.what.what.end_live_bytes, now.gpu_live_bytes);
  EXPECT_EQ(explained.what.what.peak_live_bytes, now.gpu_peak_bytes);
  EXPECT_THAT(live_text(now, {}, {}), HasSubstr("GPU in all"));
  const auto read = nlohmann::json::parse(live_json(now, "running"));
  EXPECT_EQ(read["gpu"]["peak_bytes"], 1230);
}

TEST_F(live, rates_are_since_the_view_before_and_what_lives_stays) {
  put(action::allocate, 0x1000, 4096);
  (void)view();
  put(action::allocate, 0x3000, 4096);
  const live_view now = view(2);
  EXPECT_EQ(now.kinds[0].allocations, 1u);
  EXPECT_EQ(now.kinds[0].live_blocks, 2u);
  EXPECT_EQ(now.new_events, 1u);
  EXPECT_EQ(now.elapsed_s, 2);
  time_ns_ += 5'000'000'000;  // more of the program's time than of ours: we are catching up
  put(action::allocate, 0x9000, 4096);
  EXPECT_NEAR(account_.view(1, 10, site_order::bytes).elapsed_s, 5, 0.01);
  EXPECT_THAT(live_text(now, {}, {}), HasSubstr("0.5"));
}

TEST_F(live, a_failed_allocation_has_no_block_and_a_failed_free_ends_none) {
  put(action::allocate, 0x1000, 4096);
  put(action::allocate, 0, 1 << 30, trace::kind::device, 0, trace::cuda_error_out_of_memory);
  put(action::free, 0x1000, 0, trace::kind::device, 0, 1);
  const live_view now = view();
  EXPECT_EQ(now.failed, 1u);
  EXPECT_EQ(now.kinds[0].live_bytes, 4096u);
  EXPECT_THAT(live_text(now, {}, {}), HasSubstr("1 allocation got no memory"));
}

TEST_F(live, a_block_whose_free_was_not_seen_ends_where_its_bytes_are_handed_out_again) {
  put(action::allocate, 0x1000, 0x1000);
  put(action::allocate, 0x2000, 0x1000);
  put(action::allocate, 0x1800, 0x1000);  // over the halves of both
  const live_view now = view();
  EXPECT_EQ(now.kinds[0].live_blocks, 1u);
  EXPECT_EQ(now.kinds[0].live_bytes, 0x1000u);
}

TEST_F(live, holes_are_what_segments_hold_and_blocks_do_not) {
  put(action::segment_allocate, 0x10000, 0x4000);
  put(action::segment_allocate, 0x14000, 0x4000);  // side by side: one range
  put(action::segment_allocate, 0x90000, 0x1000);
  put(action::allocate, 0x11000, 0x1000);
  put(action::allocate, 0x13000, 0x2000);
  live_view now = view();
  EXPECT_TRUE(now.segments_known);
  EXPECT_EQ(now.reserved_bytes, 0x9000u);
  EXPECT_EQ(now.free_bytes, 0x6000u);
  EXPECT_EQ(now.free_pieces, 4u);
  EXPECT_EQ(now.largest_free, 0x3000u);
  put(action::segment_unmap, 0x16000, 0x1000);  // the middle of one
  now = view();
  EXPECT_EQ(now.reserved_bytes, 0x8000u);
  EXPECT_EQ(now.largest_free, 0x1000u);
}

TEST_F(live,
       without_segments_gaps_between_neighbours_are_reported_and_far_blocks_are_no_neighbours) {
  put(action::allocate, 0x100000, 0x1000);
  put(action::allocate, 0x102000, 0x1000);
  put(action::allocate, 0x7e0000000000, 0x1000);
  put(action::allocate, 0x101000, 0x100, trace::kind::pageable);  // not the GPU's memory
  const live_view now = view();
  EXPECT_FALSE(now.segments_known);
  EXPECT_EQ(now.free_pieces, 1u);
  EXPECT_EQ(now.free_bytes, 0x1000u);
}

TEST_F(live, latencies_are_those_of_the_calls_since_the_view_before) {
  call_ = info_.strings.intern("cudaMalloc");
  for (std::uint32_t n = 1; n <= 100; ++n)
    put(action::allocate, 0x1000 * n, 256, trace::kind::device, n * 1000);
  live_view now = view();
  ASSERT_EQ(now.calls.size(), 1u);
  EXPECT_EQ(now.calls[0].name, "cudaMalloc");
  EXPECT_EQ(now.calls[0].calls, 100u);
  EXPECT_NEAR(now.calls[0].p50_ns, 50'000, 1'000);
  EXPECT_NEAR(now.calls[0].p99_ns, 99'000, 2'000);
  EXPECT_EQ(now.calls[0].max_ns, 100'000);
  EXPECT_TRUE(view(1).calls.empty());
}

TEST_F(live, places_are_called_by_their_two_innermost_frames_and_the_hottest_comes_first) {
  const auto frame = [&](const char* symbol, const char* file, std::uint32_t line) {
    return trace::frame{info_.strings.intern(symbol), info_.strings.intern(file), line};
  };
  const trace::frame small[] = {
      frame("ns::(anonymous namespace)::take(unsigned long)", "/src/take.cu", 7),
      frame("main", "/src/main.cu", 40)};
  const trace::frame large[] = {frame("load(char const*)", "/src/load.cu", 3)};
  stack_ = info_.stacks.intern(small);
  put(action::allocate, 0x1000, 256);
  stack_ = info_.stacks.intern(large);
  put(action::allocate, 0x10000, 0x10000);
  const live_view now = view();
  ASSERT_EQ(now.sites.size(), 2u);
  EXPECT_EQ(now.sites[0].label, "load load.cu:3");
  EXPECT_EQ(now.sites[1].label, "take take.cu:7 < main main.cu:40");
  live_text_options narrow;
  narrow.width = 66;  // 28 for a place
  EXPECT_THAT(live_text(now, {}, narrow), HasSubstr("take < main main.cu:40"));
}

TEST_F(live, text_fits_its_columns_and_lines_and_has_colour_only_where_asked) {
  call_ = info_.strings.intern(
      "cudaMallocFromPoolAsync_with_a_name_that_is_far_too_long_for_any_table");
  for (std::uint64_t n = 1; n < 40; ++n) {
    const trace::frame where[] = {
        {info_.strings.intern("a_function_with_quite_a_long_name_" + std::to_string(n) + "(int)"),
         info_.strings.intern("/a/long/path/to/a_source_file_with_a_long_name.cu"), 1234}};
    stack_ = info_.stacks.intern(where);
    put(action::allocate, 0x40000000 * n, 0x12345678, static_cast<trace::kind>(n % 5), 123'456'789);
  }
  const live_view now = account_.view(0, 20, site_order::bytes);
  live_text_options options;
  options.title =
      "a program whose name goes on and on with all of its many arguments: --one --two --three";
  options.width = 80;
  options.height = 24;
  std::istringstream lines(live_text(now, std::vector<std::uint64_t>(300, 7), options));
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_LE(count, 24u);
  EXPECT_THAT(live_text(now, {}, options), Not(HasSubstr("\x1b")));
  options.how = live_text_options::ink::colours;
  EXPECT_THAT(live_text(now, {}, options), HasSubstr("\x1b["));
}

TEST_F(live, the_json_is_one_line_that_says_the_same) {
  put(action::allocate, 0x1000, 4096);
  const std::string text = live_json(view(), "running");
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  const auto read = nlohmann::json::parse(text);
  EXPECT_EQ(read["kinds"]["device"]["live_bytes"], 4096);
  EXPECT_EQ(read["state"], "running");
  EXPECT_TRUE(read["since_start"]);
}

}  // namespace
}  // namespace millpond::report
