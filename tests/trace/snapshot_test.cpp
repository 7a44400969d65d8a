// PyTorch's memory snapshots, and pickles that are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "trace/exporters.hpp"
#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

namespace millpond::trace {
namespace {

using testing::HasSubstr;

std::string bytes_of(const std::string& name) {
  std::ifstream file(MILLPOND_SOURCE_DIR "/tests/data/snapshots/" + name + ".pickle",
                     std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}
result<trace_data> read_pickle(std::string bytes, const open_options& options = {}) {
  auto source = open_trace_bytes("s.pickle", std::move(bytes), options);
  if (!source) return source.error();
  return load_trace(std::move(*source));
}
std::string message_of(std::string bytes, const open_options& options = {}) {
  auto back = read_pickle(std::move(bytes), options);
  EXPECT_FALSE(back);
  if (!back) {
    EXPECT_EQ(back.error().code, error_code::bad_input);
    return back.error().message;
  }
  return {};
}

// SHORT_BINUNICODE.
std::string short_text(const std::string& of) {
  std::string coded(1, '\x8c');
  coded += static_cast<char>(of.size());
  coded += of;
  return coded;
}

TEST(snapshot, every_protocol_gives_the_same_events_with_stacks_and_devices) {
  for (const char* name :
       {"plain_protocol2", "plain_protocol3", "plain_protocol4", "plain_protocol5"}) {
    SCOPED_TRACE(name);
    auto back = read_pickle(bytes_of(name));
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(back->info.from, format::torch_snapshot);
    EXPECT_EQ(back->info.status, read_status::complete);
    EXPECT_EQ(back->info.meta.start_unix_ns, 1'764'500'000'000'000'000u);
    const auto& e = back->events;
    ASSERT_EQ(e.size(), 2 + 9 + 3u);
    for (std::size_t i = 0; i < e.size(); ++i) EXPECT_EQ(e[i].sequence, i);
    // Blocks older than the history: one freed in it, one still active in a segment.
    EXPECT_EQ(e[0], (event{.address = 0x7f0000009000, .bytes = 300}));
    EXPECT_EQ(e[1], (event{.sequence = 1, .address = 0x7f0000000c00, .bytes = 77}));
    EXPECT_EQ(e[2].what, action::segment_allocate);
    EXPECT_EQ(e[3].what, action::free);
    EXPECT_EQ(e[4].what, action::free_complete);
    EXPECT_EQ(e[5].what, action::allocate);
    EXPECT_EQ(e[5].time_ns, 10'000u);
    const auto stack = back->info.stacks.at(e[5].stack);
    ASSERT_EQ(stack.size(), 3u);
    EXPECT_EQ(back->info.strings.at(stack[0].symbol), "linear");
    EXPECT_EQ(back->info.strings.at(stack[2].file), "/app/main.py");
    EXPECT_EQ(stack[2].line, 12u);
    // Devices are merged by time; one handle on two devices is two streams.
    EXPECT_EQ(e[6].device, 1u);
    EXPECT_EQ(e[6].time_ns, 20'000u);
    EXPECT_EQ(e[7].device, 0u);
    EXPECT_NE(e[6].stream, e[7].stream);
    EXPECT_EQ(e[8].device, 1u);
    EXPECT_EQ(e[10].stack, e[5].stack);
    const event& oom = e[13];
    EXPECT_EQ(oom.what, action::allocate);
    EXPECT_EQ(oom.status, cuda_error_out_of_memory);
    EXPECT_EQ(oom.bytes, std::uint64_t{1} << 40);
    EXPECT_EQ(oom.other, 4096u);
    ASSERT_EQ(back->info.warnings.size(), 1u);
    EXPECT_THAT(back->info.warnings[0], HasSubstr("'workspace_snapshot'"));
    auto found = find_lifetimes(*back);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->blocks.size(), 5u);
    EXPECT_EQ(found->failed_allocations, 1u);
    EXPECT_EQ(found->peak_live_bytes, 77 + 1000 + 64 + 2000u);
  }
}

TEST(snapshot, an_old_one_without_times_and_addresses_of_blocks_is_read) {
  auto back = read_pickle(bytes_of("old_without_times"));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->events.size(), 14u);
  EXPECT_EQ(back->events[1].address, 0x7f0000000c00u);
  EXPECT_EQ(back->events[5].time_ns, 0u);
  EXPECT_TRUE(find_lifetimes(*back));
}

TEST(snapshot, without_history_its_live_blocks_are_the_trace) {
  auto back = read_pickle(bytes_of("no_history"));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->events.size(), 2u);
  ASSERT_EQ(back->info.warnings.size(), 1u);
  EXPECT_THAT(back->info.warnings[0], HasSubstr("no history"));
}

TEST(snapshot, code_is_refused_by_the_name_and_place_of_its_opcode) {
  EXPECT_THAT(message_of(bytes_of("hostile_reduce")),
              HasSubstr("found opcode STACK_GLOBAL: a pickle can carry code"));
  EXPECT_THAT(message_of(bytes_of("hostile_reduce_protocol2")), HasSubstr("found opcode GLOBAL"));
  EXPECT_THAT(message_of(bytes_of("hostile_object")), HasSubstr("found opcode GLOBAL"));
  // Each opcode that names, makes or calls something, alone.
  for (const unsigned char op :
       {'c', 'R', 'b', 'i', 'o', 'P', 'Q', '\x81', '\x92', '\x82', '\x83', '\x84', '\x93'}) {
    const std::string text =
        message_of(std::string("\x80\x02") + static_cast<char>(op) + "os\nsystem\n");
    EXPECT_THAT(text, HasSubstr("s.pickle: at byte 2: expected plain containers"));
    EXPECT_THAT(text, HasSubstr("a pickle can carry code"));
  }
}

TEST(snapshot, what_is_plain_but_wrong_is_said) {
  EXPECT_THAT(message_of(bytes_of("not_a_snapshot")), HasSubstr("a pickle of something else"));
  EXPECT_THAT(message_of(bytes_of("bad_address")), HasSubstr("an entry's address as a number"));
  EXPECT_THAT(message_of(bytes_of("bad_size")), HasSubstr("an entry's size as a number"));
  EXPECT_THAT(message_of(bytes_of("bad_entry")),
              HasSubstr("expected device 0's trace to be a list of entries"));
  EXPECT_THAT(message_of("\x80\x06N."), HasSubstr("protocol 6"));
  EXPECT_THAT(message_of("\x80\x02N."), HasSubstr("a pickle of something else"));
  EXPECT_THAT(message_of("\x80\x02."), HasSubstr("one value at the end, found 0 values"));
  EXPECT_THAT(message_of("\x80\x02(."), HasSubstr("1 open marks"));
  EXPECT_THAT(message_of("\x80\x02u."), HasSubstr("an open mark"));
  EXPECT_THAT(message_of("\x80\x02K\x01K\x02K\x03s."),
              HasSubstr("a container of the opcode's sort"));
  EXPECT_THAT(message_of("\x80\x02}(K\x01u."), HasSubstr("a key alone"));
  EXPECT_THAT(message_of("\x80\x02h\x07."), HasSubstr("a memo index that was set"));
  EXPECT_THAT(message_of("\x80\x02I1\n."), HasSubstr("byte 0x49"));
}

TEST(snapshot, every_cut_is_an_error_at_the_end_of_the_file) {
  const std::string whole = bytes_of("plain_protocol4");
  for (std::size_t size = 2; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    EXPECT_THAT(message_of(whole.substr(0, size)),
                HasSubstr("at byte " + std::to_string(size) +
                          ": expected more of the pickle, found the end"));
  }
}

TEST(snapshot, lengths_and_counts_that_are_claimed_are_not_allocated) {
  const std::string head = "\x80\x04";
  // A text of 2^60 bytes, a text of 1 GiB that is not there, a long of 2 GiB.
  EXPECT_THAT(message_of(head + "\x8d" + std::string("\0\0\0\0\0\0\0\x10", 8)),
              HasSubstr("bytes of memory"));
  EXPECT_THAT(message_of(head + "X" + std::string("\0\0\0\x40", 4) + "abc"),
              HasSubstr("the end of the file"));
  EXPECT_THAT(message_of(head + "\x8b" + std::string("\0\0\0\x80", 4)),
              HasSubstr("the end of the file"));
  // A memo index of 2^32 - 1 for one value.
  EXPECT_THAT(message_of(head + "Nr\xff\xff\xff\xff."),
              HasSubstr("a memo index near 0, found 4294967295"));
  EXPECT_THAT(message_of(head + std::string(300, '(')), HasSubstr("at most 256 open marks"));
  // Megabytes of opcodes that each take memory; under the default limit too, by what the file has
  // of bytes.
  EXPECT_THAT(message_of(head + std::string(8 << 20, ']')), HasSubstr("bytes of memory"));
  const open_options small{.memory_limit_bytes = 1 << 20};
  EXPECT_THAT(message_of(head + std::string(4 << 20, ']'), small),
              HasSubstr("at most 1048576 bytes of memory"));
  EXPECT_THAT(message_of(head + "N" + std::string(4 << 20, '2'), small),
              HasSubstr("bytes of memory"));
  EXPECT_THAT(message_of(head + "N" + std::string(4 << 20, '\x94'), small),
              HasSubstr("bytes of memory"));
}

TEST(snapshot, containers_that_hold_themselves_do_no_harm) {
  // l = []; l.append(l): and the same as the list of traces.
  EXPECT_THAT(message_of(std::string("\x80\x02]q\0h\0a.", 9)),
              HasSubstr("a pickle of something else"));
  const std::string key = std::string("X\x0d\0\0\0", 5) + "device_traces";
  EXPECT_THAT(message_of("\x80\x02}" + key + std::string("]q\0h\0as.", 8)),
              HasSubstr("expected device 0's trace"));
}

TEST(snapshot, numbers_of_every_width_are_read) {
  const auto with_size = [](const std::string& number) {
    return "\x80\x04}" + short_text("device_traces") + "]](}(" + short_text("action") +
           short_text("alloc") + short_text("addr") + "K\x05" + short_text("size") + number +
           "ueas.";
  };
  const auto size_of = [&](const std::string& number) {
    auto back = read_pickle(with_size(number));
    EXPECT_TRUE(back) << (back ? "" : back.error().message);
    return back && back->events.size() == 1 ? back->events[0].bytes : UINT64_MAX;
  };
  EXPECT_EQ(size_of("K\xff"), 255u);
  EXPECT_EQ(size_of("M\xff\xff"), 65535u);
  EXPECT_EQ(size_of("J\xff\xff\xff\x7f"), 0x7fffffffu);
  EXPECT_EQ(size_of(std::string("\x8a\0", 2)), 0u);
  EXPECT_EQ(size_of(std::string("\x8a\x06\0\0\0\0\0\x01", 8)), std::uint64_t{1} << 40);
  EXPECT_EQ(size_of(std::string("\x8a\x09\xff\0\0\0\0\0\0\0\0", 11)), 255u);
  EXPECT_EQ(size_of(std::string("\x8b\x01\0\0\0\x7f", 6)), 127u);
  EXPECT_THAT(message_of(with_size(std::string("J\xff\xff\xff\xff", 5))),
              HasSubstr("an entry's size"));
  EXPECT_THAT(message_of(with_size("\x8a\x01\xff")), HasSubstr("an entry's size"));
  EXPECT_THAT(message_of(with_size(std::string("G\x3f\xf0\0\0\0\0\0\0", 9))),
              HasSubstr("an entry's size"));
  EXPECT_THAT(message_of(with_size("N")), HasSubstr("an entry's size"));
}

TEST(snapshot, a_million_entries_take_little_memory) {
  // As PyTorch writes them: keys from the memo, entries appended a thousand at a time.
  std::string pickle = "\x80\x04}";
  pickle += short_text("device_traces") + "]]";
  const std::vector<std::string> words{"action", "alloc",   "addr",          "size",
                                       "stream", "time_us", "free_requested"};
  for (const auto& word : words)
    pickle += short_text(word) +
              "\x94"
              "0";
  constexpr std::size_t entries = 1'000'000;
  for (std::size_t i = 0; i < entries; ++i) {
    if (i % 1000 == 0) pickle += "(";
    pickle += std::string("}\x94(h\0h", 6) + (i % 2 == 0 ? '\x01' : '\x06') + "h\x02J";
    const auto address = static_cast<std::uint32_t>(i / 2 * 512 + 512);
    for (int b = 0; b < 4; ++b) pickle += static_cast<char>(address >> (8 * b));
    pickle += std::string("h\x03M\0\x01h\x04K\0h\x05J", 12) + std::string("\x10\0\0\0", 4) + "u";
    if (i % 1000 == 999) pickle += "e";
  }
  pickle += "as.";
  auto back = read_pickle(pickle, {.memory_limit_bytes = 40'000'000});
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->events.size(), entries);
  auto found = find_lifetimes(*back);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->peak_live_bytes, 256u);
}

TEST(snapshot, events_that_go_through_the_temporary_file_are_the_same) {
  for (const char* name :
       {"plain_protocol2", "plain_protocol4", "plain_protocol5", "old_without_times"}) {
    auto kept = read_pickle(bytes_of(name));
    auto spooled = read_pickle(bytes_of(name), {.spool_limit_bytes = 0});
    ASSERT_TRUE(kept && spooled) << name;
    EXPECT_GE(kept->events.size(), 8u);
    EXPECT_EQ(kept->events, spooled->events) << name;
  }
}

TEST(snapshot, an_entry_that_stands_in_two_places_is_refused) {
  // traces = [[entry], [entry]], the second by the memo; then the same entry twice in one list;
  // then in a list that nobody asks for.
  const std::string entry = "}\x94(" + short_text("action") + short_text("alloc") +
                            short_text("addr") + "K\x05" + short_text("size") + "K\x07u";
  const std::string head = "\x80\x04}" + short_text("device_traces");
  EXPECT_THAT(message_of(head + "]]" + entry + "aa]" + std::string("h\0", 2) + "aas."),
              HasSubstr("expected device 1's trace"));
  EXPECT_THAT(message_of(head + "]](" + entry + std::string("h\0", 2) + "eas."),
              HasSubstr("expected device 0's trace"));
  auto back = read_pickle(head + "]]" + entry + "aas" + short_text("other") + "]" +
                          std::string("h\0", 2) + "as.");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->events.size(), 1u);
}

TEST(snapshot, a_list_of_frames_serves_every_entry_that_refers_to_it) {
  const std::string frame = "}\x94(" + short_text("name") + short_text("f") +
                            short_text("filename") + short_text("f.py") + short_text("line") +
                            "K\x07u";
  const auto entry = [](const char* what, const std::string& frames) {
    return "}(" + short_text("action") + short_text(what) + short_text("addr") + "K\x05" +
           short_text("size") + "K\x07" + short_text("frames") + frames + "u";
  };
  // Memo 0 is the first list, 1 the frame; then a list of its own with the same frame, and the
  // first list again.
  const std::string pickle = "\x80\x04}" + short_text("device_traces") + "]](" +
                             entry("alloc", "]\x94" + frame + "a") +
                             entry("free_requested", std::string("]\x94h\x01"
                                                                 "a",
                                                                 5)) +
                             entry("alloc", std::string("h\0", 2)) + "eas.";
  auto back = read_pickle(pickle);
  ASSERT_TRUE(back) << back.error().message;
  ASSERT_EQ(back->events.size(), 3u);
  for (const event& each : back->events) {
    ASSERT_EQ(back->info.stacks.at(each.stack).size(), 1u);
    EXPECT_EQ(back->info.stacks.at(each.stack)[0].line, 7u);
  }
}

TEST(snapshot, goes_through_mpt_with_its_stacks) {
  auto from = read_pickle(bytes_of("plain_protocol4"));
  ASSERT_TRUE(from);
  std::string bytes;
  ASSERT_TRUE(export_mpt(*from, *make_memory_sink(bytes)));
  auto back = read_pickle(bytes);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->events, from->events);
  EXPECT_EQ(back->info.meta, from->info.meta);
  for (const event& each : back->events) {
    EXPECT_TRUE(
        std::ranges::equal(back->info.stacks.at(each.stack), from->info.stacks.at(each.stack)));
  }
}

}  // namespace
}  // namespace millpond::trace
