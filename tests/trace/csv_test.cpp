// PyTorch's memory history as CSV, in and out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <iterator>

#include "trace/exporters.hpp"
#include "trace/source.hpp"

namespace millpond::trace {
namespace {

using testing::HasSubstr;

result<trace_data> read_text(std::string text, const open_options& options = {}) {
  auto source = open_trace_bytes("file.csv", std::move(text), options);
  if (!source) return source.error();
  return load_trace(std::move(*source));
}
std::string message_of(std::string text) {
  auto back = read_text(std::move(text));
  EXPECT_FALSE(back);
  if (!back) {
    EXPECT_EQ(back.error().code, error_code::bad_input);
    return back.error().message;
  }
  return {};
}
const std::string header = "action,time_us,addr,size,stream\n";

TEST(csv, each_row_is_an_event) {
  auto back = read_text(header +
                        "segment_alloc,0,7f0000000000,2097152,0\n"
                        "alloc,5,7f0000000000,512,3\n"
                        "free_requested,6,7f0000000000,512,3\n"
                        "snapshot,7,0,0,0\n"
                        "free_completed,8,0x7F0000000000,512,3\r\n"
                        "oom,9,4096,1048576,0\n"
                        "\n"
                        "segment_free,10,7f0000000000,2097152,0");
  ASSERT_TRUE(back) << back.error().message;
  ASSERT_EQ(back->events.size(), 7u);
  const auto& e = back->events;
  EXPECT_EQ(e[0].what, action::segment_allocate);
  EXPECT_EQ(
      e[1],
      (event{
          .sequence = 1, .time_ns = 5000, .stream = 3, .address = 0x7f0000000000, .bytes = 512}));
  EXPECT_EQ(e[2].what, action::free);
  EXPECT_EQ(e[3].what, action::mark);
  EXPECT_EQ(back->info.strings.at(static_cast<std::uint32_t>(e[3].object)), "snapshot");
  EXPECT_EQ(e[4].what, action::free_complete);
  EXPECT_EQ(e[4].address, 0x7f0000000000u);
  EXPECT_EQ(e[5].what, action::allocate);
  EXPECT_NE(e[5].status, 0);
  EXPECT_EQ(e[5].other, 0x4096u);
  EXPECT_EQ(e[6].what, action::segment_free);
  EXPECT_EQ(back->info.status, read_status::complete);
}

TEST(csv, columns_may_come_in_any_order_with_others_among_them) {
  auto back = read_text("\xef\xbb\xbfsize,note,addr,device,action\n77,x,a0,1,alloc\n");
  ASSERT_TRUE(back) << back.error().message;
  ASSERT_EQ(back->events.size(), 1u);
  EXPECT_EQ(back->events[0], (event{.address = 0xa0, .bytes = 77, .device = 1}));
}

TEST(csv, a_broken_row_is_named_with_its_line_what_was_expected_and_what_was_there) {
  EXPECT_THAT(message_of(header + "alloc,1,a,1,0\nallok,1,a,1,0\n"),
              HasSubstr("file.csv:3: expected an action (alloc, free_requested"));
  EXPECT_THAT(message_of(header + "allok,1,a,1,0\n"), HasSubstr("found 'allok'"));
  EXPECT_THAT(message_of(header + "alloc,1,a,1\n"),
              HasSubstr("file.csv:2: expected 5 fields, found 'alloc,1,a,1'"));
  EXPECT_THAT(message_of(header + "alloc,1,a,1,0,0\n"), HasSubstr("expected 5 fields"));
  EXPECT_THAT(message_of(header + "alloc,-1,a,1,0\n"),
              HasSubstr("a time in whole microseconds, found '-1'"));
  EXPECT_THAT(message_of(header + "alloc,99999999999999999999,a,1,0\n"), HasSubstr("a time"));
  EXPECT_THAT(message_of(header + "alloc,1,g,1,0\n"),
              HasSubstr("an address in hexadecimal, found 'g'"));
  EXPECT_THAT(message_of(header + "alloc,1,,1,0\n"), HasSubstr("found nothing"));
  EXPECT_THAT(message_of(header + "alloc,1,a,9223372036854775808,0\n"),
              HasSubstr("at most 2^63 - 1"));
  EXPECT_THAT(message_of(header + "alloc,1,a,1.5,0\n"), HasSubstr("a size"));
  EXPECT_THAT(message_of(header + "alloc,1,a,1,x\n"), HasSubstr("a stream's number, found 'x'"));
  EXPECT_THAT(message_of(header + std::string("alloc,1,a,\0\x01,0\n", 15)),
              HasSubstr("'\\x00\\x01'"));
}

TEST(csv, what_is_no_trace_is_refused_with_its_first_bytes) {
  EXPECT_THAT(message_of(""), HasSubstr("an empty file"));
  EXPECT_THAT(message_of("a,b,c\n1,2,3\n"), HasSubstr("expected a trace"));
  EXPECT_THAT(message_of(std::string("\x7f"
                                     "ELF\0\0\0",
                                     7)),
              HasSubstr("found '\\x7fELF\\x00"));
  EXPECT_THAT(message_of("{\"json\": true}"), HasSubstr("{\"json\": true}"));
}

TEST(csv, a_huge_line_is_refused_in_bounded_memory) {
  EXPECT_THAT(message_of(header + std::string(100 << 20, 'x')),
              HasSubstr("file.csv:2: expected a line of at most 65536 bytes"));
  EXPECT_THAT(message_of(std::string(1 << 20, 'x')), HasSubstr("expected a trace"));
}

TEST(csv, a_header_alone_is_an_empty_trace) {
  auto back = read_text(header);
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->events.empty());
  EXPECT_EQ(back->info.status, read_status::complete);
}

TEST(csv, events_before_a_broken_row_are_delivered) {
  auto source = open_trace_bytes("f", header + "alloc,1,a,1,0\nalloc,2,b,1,0\nbroken\n");
  ASSERT_TRUE(source);
  std::vector<event> batch(10);
  auto first = source->read(batch);
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, 2u);
  EXPECT_FALSE(source->read(batch));
  EXPECT_FALSE(source->read(batch));
}

TEST(csv, time_that_goes_back_is_warned_of_once) {
  auto back = read_text(header + "alloc,9,a,1,0\nalloc,5,b,1,0\nalloc,4,c,1,0\n");
  ASSERT_TRUE(back);
  ASSERT_EQ(back->info.warnings.size(), 1u);
  EXPECT_THAT(back->info.warnings[0], HasSubstr("file.csv:3: time goes back"));
}

std::string gzipped(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(csv, gzip_members_follow_each_other_and_broken_gzip_is_named_by_byte) {
  const std::string packed = gzipped(header + "alloc,1,a,1,0\n");
  auto two = read_text(packed + gzipped("free_requested,2,a,1,0\n"));
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_EQ(two->events.size(), 2u);
  for (std::size_t size = 3; size < packed.size(); ++size) {
    EXPECT_THAT(message_of(packed.substr(0, size)),
                HasSubstr("expected more gzip data, found the end"));
  }
  EXPECT_THAT(message_of(packed + "junk"), HasSubstr("expected gzip data"));
  std::string flipped = packed;
  flipped[flipped.size() - 6] ^= 1;  // in its checksum
  EXPECT_THAT(message_of(flipped), HasSubstr("incorrect data check"));
}

TEST(csv, a_file_that_is_not_there_or_a_folder_says_so) {
  EXPECT_THAT(open_trace("/nonexistent/x.csv").error().message,
              HasSubstr("/nonexistent/x.csv: cannot be opened: No such file"));
  EXPECT_THAT(open_trace("/tmp").error().message, HasSubstr("it is a folder: expected a file"));
}

TEST(csv, the_recorded_traces_come_out_with_the_bytes_that_went_in) {
  for (const char* name : {"multistream_serving", "resnet_serving"}) {
    const std::string path = std::string(MILLPOND_SOURCE_DIR "/data/traces/") + name + ".csv.gz";
    std::string original;
    gzFile file = gzopen(path.c_str(), "rb");
    ASSERT_NE(file, nullptr);
    char buffer[65536];
    for (int got = 0; (got = gzread(file, buffer, sizeof buffer)) > 0;) {
      original.append(buffer, static_cast<std::size_t>(got));
    }
    gzclose(file);
    auto source = open_trace(path);
    ASSERT_TRUE(source);
    std::string text;
    auto counts = export_csv(*source, *make_memory_sink(text));
    ASSERT_TRUE(counts);
    EXPECT_EQ(counts->left_out, 0u);
    EXPECT_TRUE(text == original);
  }
}

TEST(csv, what_it_has_no_word_for_is_left_out_and_counted) {
  trace_data from;
  from.events = {{.address = 16, .bytes = 1},
                 {.what = action::kernel},
                 {.address = 16, .what = action::free},
                 {.address = 99, .bytes = 5, .of = kind::pinned}};
  std::string text;
  auto counts = export_csv(from, *make_memory_sink(text));
  ASSERT_TRUE(counts);
  EXPECT_EQ(counts->written, 2u);
  EXPECT_EQ(counts->left_out, 2u);
  EXPECT_EQ(text, header + "alloc,0,10,1,0\nfree_requested,0,10,0,0\n");
}

}  // namespace
}  // namespace millpond::trace
