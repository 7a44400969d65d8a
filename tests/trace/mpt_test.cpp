// The .mpt file: what goes in comes out, and what is broken is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <fstream>

#include "trace/exporters.hpp"
#include "trace/mpt.hpp"
#include "trace/source.hpp"
#include "trace/synthetic/workload.hpp"
#include "trace/writer.hpp"

namespace millpond::trace {
namespace {

using testing::HasSubstr;

std::string written(const std::vector<event>& events, const writer_options& options = {},
                    const metadata& meta = {}) {
  std::string bytes;
  trace_writer writer(make_memory_sink(bytes), meta, options);
  for (const event& each : events) EXPECT_TRUE(writer.add(each));
  EXPECT_TRUE(writer.close());
  return bytes;
}

result<trace_data> read_back(std::string bytes, const open_options& options = {}) {
  auto source = open_trace_bytes("file.mpt", std::move(bytes), options);
  if (!source) return source.error();
  return load_trace(std::move(*source));
}

// Mixes full-range values with the small and repeated ones that real traces have.
rc::Gen<std::uint64_t> number() {
  return rc::gen::oneOf(
      rc::gen::arbitrary<std::uint64_t>(), rc::gen::inRange<std::uint64_t>(0, 300),
      rc::gen::element<std::uint64_t>(0, UINT64_MAX, std::uint64_t{1} << 63, 0x7fff'0000'0000));
}
rc::Gen<event> any_event() {
  const auto narrow = [](auto value) {
    using narrowed = decltype(value);
    return rc::gen::map(number(), [](std::uint64_t wide) { return static_cast<narrowed>(wide); });
  };
  return rc::gen::build<event>(
      rc::gen::set(&event::sequence, number()), rc::gen::set(&event::time_ns, number()),
      rc::gen::set(&event::stream, number()), rc::gen::set(&event::address, number()),
      rc::gen::set(&event::bytes, number()), rc::gen::set(&event::object, number()),
      rc::gen::set(&event::other, number()),
      rc::gen::set(&event::duration_ns, narrow(std::uint32_t{})),
      rc::gen::set(&event::thread, narrow(std::uint32_t{})),
      rc::gen::set(&event::stack, narrow(std::uint32_t{})),
      rc::gen::set(&event::status, narrow(std::int32_t{})),
      rc::gen::set(&event::device, narrow(std::uint16_t{})),
      rc::gen::set(&event::what, rc::gen::map(rc::gen::inRange(0, action_count),
                                              [](int n) { return static_cast<action>(n); })),
      rc::gen::set(&event::of, rc::gen::map(rc::gen::inRange(0, 5),
                                            [](int n) { return static_cast<kind>(n); })));
}

RC_GTEST_PROP(mpt, any_events_come_back_as_they_were, ()) {
  const auto events = *rc::gen::container<std::vector<event>>(any_event());
  const auto chunk = *rc::gen::element<std::size_t>(1, 64, 1000, 256 << 10);
  const auto level = *rc::gen::element(0, 1, 3);
  auto back = read_back(written(events, {.chunk_bytes = chunk, .compression_level = level}));
  RC_ASSERT(back.has_value());
  RC_ASSERT(back->events == events);
  RC_ASSERT(back->info.status == read_status::complete);
  RC_ASSERT(back->info.warnings.empty());
}

RC_GTEST_PROP(mpt, any_tables_and_metadata_come_back_as_they_were, ()) {
  const auto texts = *rc::gen::arbitrary<std::vector<std::string>>();
  const auto lines = *rc::gen::arbitrary<std::vector<std::vector<std::uint32_t>>>();
  metadata meta;
  meta.program = *rc::gen::arbitrary<std::string>();
  meta.device_name = *rc::gen::arbitrary<std::string>();
  meta.recorded_by = *rc::gen::arbitrary<std::string>();
  meta.simulated = *rc::gen::arbitrary<bool>();
  meta.start_unix_ns = *number();
  meta.dropped_events = *number();
  meta.notes = {{"driver", *rc::gen::arbitrary<std::string>()}, {"", "unnamed"}};
  trace_data from;
  from.info.meta = meta;
  for (const auto& text : texts) from.info.strings.intern(text);
  for (const auto& each : lines) {
    std::vector<frame> frames;
    for (const std::uint32_t line : each) frames.push_back({line / 3, line ^ 77, line});
    from.info.stacks.intern(frames);
  }
  std::string bytes;
  const auto to = make_memory_sink(bytes);
  RC_ASSERT(export_mpt(from, *to).has_value());
  auto back = read_back(bytes);
  RC_ASSERT(back.has_value());
  RC_ASSERT(back->info.meta == meta);
  RC_ASSERT(back->info.strings.size() == from.info.strings.size());
  for (std::uint32_t id = 0; id < from.info.strings.size(); ++id) {
    RC_ASSERT(back->info.strings.at(id) == from.info.strings.at(id));
  }
  RC_ASSERT(back->info.stacks.size() == from.info.stacks.size());
  for (std::uint32_t id = 0; id < from.info.stacks.size(); ++id) {
    RC_ASSERT(std::ranges::equal(back->info.stacks.at(id), from.info.stacks.at(id)));
  }
}

std::vector<event> some_events(std::uint64_t requests = 3) {
  auto made = make_inference({.requests = requests});
  return made->events;
}

TEST(mpt, every_cut_reads_up_to_the_last_whole_chunk_and_says_where) {
  const std::vector<event> events = some_events();
  const std::string whole = written(events, {.chunk_bytes = 300});
  std::size_t most = 0;
  for (std::size_t size = 1; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    auto back = read_back(whole.substr(0, size));
    ASSERT_TRUE(back) << back.error().message;
    ASSERT_EQ(back->info.status, read_status::cut);
    ASSERT_LE(back->info.cut_at_byte, size);
    ASSERT_EQ(back->info.warnings.size(), 1u);
    ASSERT_THAT(back->info.warnings[0],
                HasSubstr("cut at byte " + std::to_string(back->info.cut_at_byte)));
    ASSERT_LE(back->events.size(), events.size());
    ASSERT_GE(back->events.size(), most);  // a longer file never gives less
    most = back->events.size();
    ASSERT_TRUE(std::equal(back->events.begin(), back->events.end(), events.begin()));
  }
  EXPECT_GT(most, events.size() / 2);
}

TEST(mpt, every_flipped_bit_is_an_error_that_names_the_place) {
  const std::string whole = written(some_events(1), {.chunk_bytes = 300});
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      SCOPED_TRACE(at);
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      auto back = read_back(flipped);
      ASSERT_FALSE(back);
      ASSERT_EQ(back.error().code, error_code::bad_input);
      ASSERT_THAT(back.error().message, HasSubstr("file.mpt"));
      ASSERT_THAT(back.error().message, HasSubstr("byte "));
      ASSERT_THAT(back.error().message, HasSubstr("expected"));
    }
  }
}

TEST(mpt, events_before_a_corrupt_chunk_are_delivered_and_the_error_stays) {
  const std::vector<event> events = some_events(20);
  std::string bytes = written(events, {.chunk_bytes = 1000});
  bytes[bytes.size() * 3 / 4] = static_cast<char>(bytes[bytes.size() * 3 / 4] ^ 1);
  auto source = open_trace_bytes("file.mpt", bytes);
  ASSERT_TRUE(source);
  std::vector<event> batch(7);
  std::vector<event> got;
  result<std::size_t> last = std::size_t{1};
  while (last && *last > 0) {
    last = source->read(batch);
    if (last)
      got.insert(got.end(), batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(*last));
  }
  ASSERT_FALSE(last);
  EXPECT_GT(got.size(), events.size() / 2);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), events.begin()));
  EXPECT_EQ(source->read(batch).error().message, last.error().message);
}

void fix_header_sum(std::string& bytes) {
  const auto sum = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), 12);
  mpt::put_fixed(reinterpret_cast<std::uint8_t*>(bytes.data()) + 12,
                 static_cast<std::uint32_t>(sum));
}

TEST(mpt, a_newer_major_version_is_refused_and_a_newer_minor_one_is_read) {
  const std::vector<event> events = some_events(1);
  std::string bytes = written(events);
  bytes[10] = 9;
  fix_header_sum(bytes);
  auto minor = read_back(bytes);
  ASSERT_TRUE(minor) << minor.error().message;
  EXPECT_EQ(minor->events, events);
  bytes[8] = 2;
  fix_header_sum(bytes);
  auto major = read_back(bytes);
  ASSERT_FALSE(major);
  EXPECT_THAT(major.error().message, HasSubstr("expected version 1.x, found version 2.9"));
  EXPECT_THAT(major.error().message, HasSubstr("newer millpond"));
}

// A file with one chunk of these record bytes, checksums right: what a hostile or a newer writer
// could make.
struct forged {
  std::string payload;
  std::uint16_t codec = 0;
  std::uint32_t raw_bytes = UINT32_MAX;  // as the payload
  std::uint32_t stored_bytes = UINT32_MAX;

  forged& record(unsigned type, const std::string& body) {
    std::uint8_t head[20];
    auto* end = mpt::put_varint(mpt::put_varint(head, type), body.size());
    payload.append(reinterpret_cast<char*>(head), static_cast<std::size_t>(end - head));
    payload += body;
    return *this;
  }
  [[nodiscard]] std::string file() const {
    std::string bytes = written({}).substr(0, mpt::header_bytes);
    std::uint8_t head[mpt::chunk_header_bytes];
    const auto size = static_cast<std::uint32_t>(payload.size());
    auto* at = mpt::put_fixed(head, mpt::chunk_marker);
    at = mpt::put_fixed(at, std::uint32_t{0});
    at = mpt::put_fixed(at, codec);
    at = mpt::put_fixed(at, std::uint16_t{0});
    at = mpt::put_fixed(at, stored_bytes == UINT32_MAX ? size : stored_bytes);
    at = mpt::put_fixed(at, raw_bytes == UINT32_MAX ? size : raw_bytes);
    at =
        mpt::put_fixed(at, static_cast<std::uint32_t>(crc32_z(
                               0, reinterpret_cast<const Bytef*>(payload.data()), payload.size())));
    mpt::put_fixed(at, static_cast<std::uint32_t>(crc32_z(0, head, mpt::chunk_header_bytes - 4)));
    bytes.append(reinterpret_cast<char*>(head), sizeof head);
    return bytes + payload;
  }
};

TEST(mpt, unknown_records_fields_actions_and_metadata_are_skipped) {
  forged made;
  made.record(99, "of a later version");
  made.record(300, "");
  made.record(4, std::string("\x63") + "unknown metadata");
  // action allocate, mask: bytes and a bit beyond those known; bytes = 5; a field of the future.
  made.record(1, std::string("\x00\x90\x80\x01\x05\x2a", 6));
  made.record(1, std::string("\xf0\x00", 2));  // an unknown action
  made.record(1, std::string("\x01\x00", 2));  // free
  made.record(5, "\x03");
  auto back = read_back(made.file());
  ASSERT_TRUE(back) << back.error().message;
  ASSERT_EQ(back->events.size(), 2u);
  EXPECT_EQ(back->events[0].what, action::allocate);
  EXPECT_EQ(back->events[0].bytes, 5u);
  EXPECT_EQ(back->events[1].what, action::free);
  EXPECT_EQ(back->events[1].sequence, 2u);
  ASSERT_EQ(back->info.warnings.size(), 1u);
  EXPECT_THAT(back->info.warnings[0], HasSubstr("action 240"));
}

TEST(mpt, records_that_are_wrong_though_their_checksum_is_right_are_refused) {
  const auto message = [](const forged& of) {
    auto back = read_back(of.file());
    EXPECT_FALSE(back);
    return back ? std::string() : back.error().message;
  };
  EXPECT_THAT(message(forged{.payload = "\x01\x7fshort"}),
              HasSubstr("expected a record within its chunk, found 127 bytes"));
  EXPECT_THAT(message(forged{.payload = std::string(1, '\x01')}),
              HasSubstr("no whole type and length"));
  EXPECT_THAT(message(forged().record(1, "")), HasSubstr("an empty record"));
  EXPECT_THAT(message(forged().record(1, std::string("\x00\x10", 2))),
              HasSubstr("a field that does not end"));
  EXPECT_THAT(message(forged().record(1, std::string("\x00\x80\x10\xff\xff\x7f", 6))),
              HasSubstr("does not fit"));
  EXPECT_THAT(message(forged().record(2, "\x05text")),
              HasSubstr("expected string 1, found string 5"));
  EXPECT_THAT(message(forged().record(3, "\x02")), HasSubstr("expected stack 1, found stack 2"));
  EXPECT_THAT(message(forged().record(3, "\x01\x02\x02")), HasSubstr("a frame that does not end"));
  EXPECT_THAT(message(forged().record(3, "\x01" + std::string(5000 * 3, '\x02'))),
              HasSubstr("at most 4096"));
  EXPECT_THAT(message(forged().record(2, "\x01" + std::string(2 << 20, 'x'))),
              HasSubstr("a text of at most"));
  EXPECT_THAT(message(forged().record(4, "")), HasSubstr("a metadata field"));
  EXPECT_THAT(message(forged().record(4, "\x07\x7fx")), HasSubstr("a note's name"));
  EXPECT_THAT(message(forged().record(5, "\x09")),
              HasSubstr("expected an end after 0 events, found after 9"));
  EXPECT_THAT(message(forged().record(5, std::string(1, '\0')).record(2, "\x01x")),
              HasSubstr("nothing after the end"));
  forged many;
  for (int i = 0; i < 2000; ++i)
    many.record(4, "\x07\x05n" + std::to_string(10000 + i).substr(1) + "v");
  EXPECT_THAT(message(many), HasSubstr("at most 1024 notes"));
}

TEST(mpt, lengths_are_bounded_before_anything_is_allocated) {
  const auto message = [](const forged& of) {
    auto back = read_back(of.file());
    EXPECT_FALSE(back);
    return back ? std::string() : back.error().message;
  };
  // A gigabyte of zeros in a few bytes.
  EXPECT_THAT(message({.payload = "x", .codec = 1, .raw_bytes = 1u << 30}),
              HasSubstr("a chunk of at most 16777216"));
  EXPECT_THAT(message({.payload = "x", .raw_bytes = 2}), HasSubstr("stored in no more"));
  EXPECT_THAT(message({.payload = "x", .codec = 7}), HasSubstr("codec 7"));
  std::string packed(100'000, '\0');
  const std::string zeros(8 << 20, '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), zeros.data(), zeros.size(), 3));
  EXPECT_THAT(message({.payload = packed, .codec = 1, .raw_bytes = 1 << 20}),
              HasSubstr("zstd data"));
  EXPECT_THAT(message({.payload = packed, .codec = 1, .raw_bytes = 9 << 20}),
              HasSubstr("when uncompressed"));
  // A length with nothing behind it is a cut, not an allocation.
  auto back =
      read_back(forged{.payload = "x", .raw_bytes = 16 << 20, .stored_bytes = 16 << 20}.file());
  ASSERT_TRUE(back);
  EXPECT_EQ(back->info.status, read_status::cut);
}

TEST(mpt, strings_are_bounded_in_sum) {
  forged made;
  for (char id = 1; id < 20; ++id) made.record(2, std::string(1, id) + std::string(10'000, 'x'));
  EXPECT_TRUE(read_back(made.file()));
  auto back = read_back(made.file(), {.table_limit_bytes = 100'000});
  ASSERT_FALSE(back);
  EXPECT_THAT(back.error().message, HasSubstr("at most 100000 bytes in all"));
}

TEST(mpt, bytes_after_the_end_are_refused) {
  auto back = read_back(written(some_events(1)) + "more");
  ASSERT_FALSE(back);
  EXPECT_THAT(back.error().message, HasSubstr("expected the end of the file, found 'more'"));
}

TEST(mpt, metadata_is_known_before_the_first_event_is_read) {
  const std::string bytes =
      written(some_events(1), {}, {.program = "server --x", .simulated = true});
  auto source = open_trace_bytes("file.mpt", bytes);
  ASSERT_TRUE(source);
  EXPECT_EQ(source->info().meta.program, "server --x");
  EXPECT_TRUE(source->info().meta.simulated);
  EXPECT_EQ(source->info().status, read_status::reading);
}

TEST(mpt, gzip_over_it_is_undone) {
  const std::vector<event> events = some_events(2);
  const std::string plain = written(events);
  const std::string path = testing::TempDir() + "mpt_in_gzip.csv";  // the name does not matter
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, plain.data(), static_cast<unsigned>(plain.size()));
  gzclose(file);
  auto back = load_trace(path);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->events, events);
  EXPECT_EQ(back->info.from, format::mpt);
}

TEST(mpt, flush_makes_the_file_readable_up_to_there) {
  const std::string path = testing::TempDir() + "flushed.mpt";
  auto to = make_file_sink(path);
  ASSERT_TRUE(to);
  trace_writer writer(std::move(*to), {.program = "p"});
  const std::vector<event> events = some_events(1);
  ASSERT_TRUE(writer.add(events[0]));
  ASSERT_TRUE(writer.add(events[1]));
  ASSERT_TRUE(writer.flush());
  ASSERT_TRUE(writer.add(events[2]));
  auto back = load_trace(path);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->events, (std::vector<event>{events[0], events[1]}));
  EXPECT_EQ(back->info.status, read_status::cut);
  EXPECT_EQ(back->info.meta.program, "p");
  ASSERT_TRUE(writer.close());
  EXPECT_EQ(load_trace(path)->events.size(), 3u);
  EXPECT_EQ(load_trace(path)->info.status, read_status::complete);
  EXPECT_EQ(writer.add(events[3]).error().code, error_code::not_permitted);
  std::ifstream file(path, std::ios::ate | std::ios::binary);
  EXPECT_EQ(static_cast<std::uint64_t>(file.tellg()), writer.written_bytes());
}

// A sink with room for so many bytes, then full.
class full_sink final : public sink {
 public:
  full_sink(std::string& into, std::size_t room) : into_(into), room_(room) {}
  result<void> write(std::span<const std::uint8_t> bytes) override {
    if (into_.size() + bytes.size() > room_)
      return error{error_code::output_failure, "no space left"};
    into_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }

 private:
  std::string& into_;
  std::size_t room_;
};

TEST(mpt, a_full_disk_is_an_error_that_stays_and_what_was_written_is_readable) {
  const std::vector<event> events = some_events(50);
  std::string bytes;
  trace_writer writer(std::make_unique<full_sink>(bytes, 3000), {}, {.chunk_bytes = 1000});
  result<void> last;
  std::size_t added = 0;
  while (last && added < events.size()) last = writer.add(events[added++]);
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, error_code::output_failure);
  EXPECT_FALSE(writer.add(events[0]));
  EXPECT_FALSE(writer.close());
  auto back = read_back(bytes);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->info.status, read_status::cut);
  EXPECT_GT(back->events.size(), 100u);
  EXPECT_TRUE(std::equal(back->events.begin(), back->events.end(), events.begin()));
}

TEST(mpt, a_file_that_cannot_be_made_or_written_says_why) {
  auto none = make_file_sink("/nonexistent/x.mpt");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, error_code::output_failure);
  EXPECT_THAT(none.error().message, HasSubstr("No such file"));
  auto full = make_file_sink("/dev/full");
  ASSERT_TRUE(full);
  trace_writer writer(std::move(*full), {});
  auto done = writer.close();
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("No space left"));
}

TEST(mpt, ids_out_of_order_are_refused_by_the_writer) {
  std::string bytes;
  trace_writer writer(make_memory_sink(bytes), {});
  EXPECT_TRUE(writer.add_string(1, "a"));
  EXPECT_EQ(writer.add_string(3, "c").error().code, error_code::invalid_argument);
  EXPECT_EQ(writer.add_string(1, "a").error().code, error_code::invalid_argument);
  EXPECT_TRUE(writer.add_string(2, "b"));
  EXPECT_EQ(writer.add_stack(2, {}).error().code, error_code::invalid_argument);
  EXPECT_TRUE(writer.close());
}

TEST(mpt, a_recorded_trace_takes_few_bytes_an_event) {
  auto trace = load_trace(MILLPOND_SOURCE_DIR "/data/traces/gpt2_generate.csv.gz");
  ASSERT_TRUE(trace);
  std::string bytes;
  auto counts = export_mpt(*trace, *make_memory_sink(bytes));
  ASSERT_TRUE(counts);
  EXPECT_EQ(counts->written, trace->events.size());
  EXPECT_LT(bytes.size(), trace->events.size() * 8);
  auto back = read_back(bytes);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->events, trace->events);
  EXPECT_EQ(back->info.meta, trace->info.meta);
}

}  // namespace
}  // namespace millpond::trace
