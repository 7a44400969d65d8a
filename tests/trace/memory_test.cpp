// Reading streams: what it takes does not grow with the trace. Counted by the allocation functions
// of this test program, since a process's size says little on a busy machine.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "trace/exporters.hpp"
#include "trace/lifetimes.hpp"
#include "trace/source.hpp"
#include "trace/synthetic/workload.hpp"

namespace {

std::atomic<std::int64_t> live_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};

void* counted(std::size_t bytes) {
  void* made = std::malloc(bytes == 0 ? 1 : bytes);
  if (made == nullptr) throw std::bad_alloc();
  const auto now = live_bytes += static_cast<std::int64_t>(malloc_usable_size(made));
  auto peak = peak_bytes.load();
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
  return made;
}
void counted_free(void* dead) noexcept {
  if (dead != nullptr) live_bytes -= static_cast<std::int64_t>(malloc_usable_size(dead));
  std::free(dead);
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes);
}
void* operator new[](std::size_t bytes) {
  return counted(bytes);
}
void operator delete(void* dead) noexcept {
  counted_free(dead);
}
void operator delete[](void* dead) noexcept {
  counted_free(dead);
}
void operator delete(void* dead, std::size_t) noexcept {
  counted_free(dead);
}
void operator delete[](void* dead, std::size_t) noexcept {
  counted_free(dead);
}

namespace millpond::trace {
namespace {

// The most that `work` has at once beyond what was there before.
template <class Work>
std::int64_t peak_of(Work&& work) {
  const std::int64_t before = live_bytes;
  peak_bytes = before;
  work();
  return peak_bytes - before;
}

// A trace of so many operations as a file of each written format.
std::string file_of(std::uint64_t operations, const char* ending) {
  auto made = make_churn({.operations = operations});
  const std::string path = testing::TempDir() + "memory_" + std::to_string(operations) + ending;
  auto to = make_file_sink(path);
  EXPECT_TRUE(to);
  const bool csv = std::string_view(ending) == ".csv";
  EXPECT_TRUE(csv ? export_csv(*made, **to) : export_mpt(*made, **to));
  return path;
}

std::uint64_t read_all(const std::string& path) {
  std::uint64_t count = 0;
  auto source = open_trace(path);
  EXPECT_TRUE(source);
  EXPECT_TRUE(source->for_each([&](const event&) { ++count; }));
  return count;
}

TEST(memory, reading_takes_no_more_for_a_longer_trace) {
  for (const char* ending : {".mpt", ".csv"}) {
    SCOPED_TRACE(ending);
    const std::string shorter = file_of(100'000, ending);
    const std::string longer = file_of(400'000, ending);
    std::uint64_t few = 0, many = 0;
    const std::int64_t small = peak_of([&] { few = read_all(shorter); });
    const std::int64_t large = peak_of([&] { many = read_all(longer); });
    EXPECT_GE(few, 100'000u);
    EXPECT_GE(many, 400'000u);
    EXPECT_LT(small, 3 << 20);
    EXPECT_LE(large, small + 65536);
  }
}

// A snapshot as PyTorch's pickler writes it: each allocation has a list of 30 frames of its own,
// out of 300 frames that all share.
std::string snapshot_of(std::uint64_t events) {
  std::string text = "\x80\x04}";
  const auto word = [&](std::string_view each) {
    text += '\x8c';
    text += static_cast<char>(each.size());
    text += each;
  };
  const auto number = [&](std::uint64_t value) {
    text += "\x8a\x08";
    for (int b = 0; b < 8; ++b) text += static_cast<char>(value >> (8 * b));
  };
  const auto get = [&](std::uint64_t index) {
    text += 'j';
    for (int b = 0; b < 4; ++b) text += static_cast<char>(index >> (8 * b));
  };
  std::uint64_t memo = 0;
  for (int n = 0; n < 300; ++n, ++memo) {
    text += "}\x94(";
    word("name"), word(std::to_string(n)), word("filename"), word("f.py"), word("line");
    text += "K\x07u0";
  }
  word("device_traces");
  text += "]]";
  for (std::uint64_t n = 0; n < events; ++n) {
    if (n % 1000 == 0) text += "(";
    text += "}\x94(";
    ++memo;
    word("action"), word(n % 2 == 0 ? "alloc" : "free_requested"), word("addr"),
        number(0x7f0000000000 + n / 2 % 1000 * 4096);
    word("size"), number(4096), word("time_us"), number(1'764'500'000'000'000 + n), word("frames");
    text += "]\x94(";
    ++memo;
    for (std::uint64_t f = 0; f < 30; ++f) get((n * 7 + f * (n % 13 + 1)) % 300);
    text += "eu";
    if (n % 1000 == 999) text += "e";
  }
  text += "as.";
  const std::string path = testing::TempDir() + "memory_" + std::to_string(events) + ".pickle";
  auto to = make_file_sink(path);
  EXPECT_TRUE((*to)->write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
  return path;
}

TEST(memory, a_snapshot_takes_a_few_bytes_an_event_however_deep_its_stacks) {
  const std::string shorter = snapshot_of(50'000), longer = snapshot_of(250'000);
  const auto peak = [](const std::string& path, std::uint64_t expected) {
    return peak_of([&] {
      auto source = open_trace(path, {.spool_limit_bytes = 1 << 20});
      ASSERT_TRUE(source) << source.error().message;
      std::uint64_t count = 0;
      EXPECT_TRUE(source->for_each([&](const event& each) { count += each.stack != 0 ? 1 : 0; }));
      EXPECT_EQ(count, expected);
    });
  };
  const std::int64_t small = peak(shorter, 50'000), large = peak(longer, 250'000);
  EXPECT_LT(small, 12 << 20);
  // Some 190 bytes of file an event; in memory the two memo cells of its dict and its list, 4 bytes
  // each.
  EXPECT_LT(large - small, 200'000 * 10);
}

TEST(memory, writing_takes_no_more_for_a_longer_trace) {
  auto made = make_churn({.operations = 300'000});
  ASSERT_TRUE(made);
  const std::string path = testing::TempDir() + "memory_writing.mpt";
  const std::int64_t peak = peak_of([&] {
    auto to = make_file_sink(path);
    EXPECT_TRUE(export_mpt(*made, **to));
  });
  EXPECT_LT(peak, 2 << 20);
}

TEST(memory, lifetimes_take_what_they_say) {
  auto made = make_churn({.operations = 400'000});
  ASSERT_TRUE(made);
  const std::int64_t peak = peak_of([&] { EXPECT_TRUE(find_lifetimes(*made)); });
  // 64 bytes a block, twice while the vector grows, and 16 an address at a load of at least 5/16
  // while growing.
  const auto blocks = static_cast<std::int64_t>(made->events.size() / 2);
  EXPECT_LT(peak, blocks * (64 * 3 + 16 * 5) + (1 << 20));
}

TEST(memory, loading_a_trace_takes_little_more_than_its_events) {
  const std::string path = file_of(1'200'000, ".mpt");
  std::size_t events = 0;
  const std::int64_t peak = peak_of([&] {
    auto loaded = load_trace(path);
    ASSERT_TRUE(loaded);
    events = loaded->events.size();
  });
  ASSERT_GT(events, 1'200'000u);
  // The counted peak has the last vector in full beside the pieces, as address space; resident it
  // is one piece more than the events.
  EXPECT_LT(peak, static_cast<std::int64_t>(2 * events * sizeof(event)) + (48 << 20));
  auto loaded = load_trace(path);
  std::size_t at = 0;
  auto source = open_trace(path);
  bool same = true;
  EXPECT_TRUE(
      source->for_each([&](const event& each) { same = same && each == loaded->events[at++]; }));
  EXPECT_TRUE(same);
  EXPECT_EQ(at, events);
}

}  // namespace
}  // namespace millpond::trace
