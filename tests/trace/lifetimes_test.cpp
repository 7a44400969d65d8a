// Lifetimes against a simple reference, and each fault by name.
#include "trace/lifetimes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

namespace millpond::trace {
namespace {

using testing::HasSubstr;

event allocate(std::uint64_t address, std::uint64_t bytes, std::uint64_t stream = 0) {
  return {.stream = stream, .address = address, .bytes = bytes, .what = action::allocate};
}
event release(std::uint64_t address, std::uint64_t bytes = 0, std::uint64_t stream = 0) {
  return {.stream = stream, .address = address, .bytes = bytes, .what = action::free};
}
event completed(std::uint64_t address) {
  return {.address = address, .what = action::free_complete};
}
event used(std::uint64_t address, std::uint64_t stream) {
  return {.stream = stream, .address = address, .what = action::use};
}
std::string fault_of(const std::vector<event>& events) {
  auto found = find_lifetimes(events, "t");
  EXPECT_FALSE(found);
  if (found) return {};
  EXPECT_EQ(found.error().code, error_code::bad_input);
  auto tolerant = find_lifetimes(events, "t", {.on_fault = strictness::tolerant});
  EXPECT_TRUE(tolerant);
  EXPECT_EQ(tolerant->faults.total(), 1u);
  EXPECT_EQ(tolerant->warnings.at(0), found.error().message);
  return found.error().message;
}

TEST(lifetimes, blocks_have_their_events_streams_and_peak) {
  const std::vector<event> events{
      allocate(0x1000, 100, 1), allocate(0x2000, 50, 2), used(0x1010, 2),
      used(0x1000, 1),          used(0x1063, 3),         used(0x1000, 2),
      release(0x1000, 100, 1),  allocate(0x1000, 20),    used(0x9000, 1)};
  auto found = find_lifetimes(events);
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_EQ(found->blocks.size(), 3u);
  const block& first = found->blocks[0];
  EXPECT_EQ(first.bytes, 100u);
  EXPECT_EQ(first.allocate_event, 0u);
  EXPECT_EQ(first.free_event, 6u);
  EXPECT_EQ(first.stream, 1u);
  EXPECT_EQ(first.free_stream, 1u);
  EXPECT_THAT(found->streams_of(first), testing::UnorderedElementsAre(2, 3));
  EXPECT_TRUE(found->streams_of(found->blocks[1]).empty());
  EXPECT_EQ(found->blocks[1].free_event, never);
  EXPECT_EQ(found->peak_live_bytes, 150u);
  EXPECT_EQ(found->peak_event, 1u);
  EXPECT_EQ(found->peak_live_blocks, 2u);
  EXPECT_EQ(found->end_live_bytes, 70u);
  EXPECT_EQ(found->end_live_blocks, 2u);
  EXPECT_EQ(found->allocated_bytes, 170u);
  EXPECT_EQ(found->largest_bytes, 100u);
  EXPECT_EQ(found->unknown_uses, 1u);
  EXPECT_EQ(found->events, events.size());
}

TEST(lifetimes, copies_use_both_their_sides) {
  auto found = find_lifetimes(std::vector<event>{
      allocate(0x1000, 100),
      allocate(0x2000, 100),
      {.stream = 4, .address = 0x1000, .bytes = 8, .other = 0x2008, .what = action::copy}});
  ASSERT_TRUE(found);
  EXPECT_THAT(found->streams_of(found->blocks[0]), testing::ElementsAre(4));
  EXPECT_THAT(found->streams_of(found->blocks[1]), testing::ElementsAre(4));
}

TEST(lifetimes, a_completion_that_is_late_marks_its_block_deferred) {
  auto found = find_lifetimes(std::vector<event>{
      allocate(0x1000, 1), allocate(0x2000, 1), allocate(0x3000, 1), release(0x1000),
      completed(0x1000), release(0x2000), release(0x3000), completed(0x3000), completed(0x2000),
      completed(0x2000), completed(0x7000)});
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->blocks[0].deferred);
  EXPECT_TRUE(found->blocks[1].deferred);
  EXPECT_FALSE(found->blocks[2].deferred);
  EXPECT_EQ(found->deferred_frees, 1u);
}

TEST(lifetimes, each_fault_names_the_events_and_the_addresses) {
  EXPECT_EQ(fault_of({allocate(0x1000, 8), release(0x1000), release(0x1000)}),
            "t: event 2 frees 0x1000 a second time: event 1 had freed the block of 8 bytes at "
            "0x1000 that event 0 allocated");
  EXPECT_EQ(fault_of({release(0x1000)}), "t: event 0 frees 0x1000, which was never allocated");
  EXPECT_EQ(fault_of({allocate(0x1000, 8), release(0x1004)}),
            "t: event 1 frees 0x1004, which is inside the live block of 8 bytes at 0x1000 that "
            "event 0 allocated");
  EXPECT_EQ(fault_of({allocate(0x1000, 8), allocate(0x1007, 1)}),
            "t: event 1 allocates 1 bytes at 0x1007, over the live block of 8 bytes at 0x1000 that "
            "event 0 allocated");
  EXPECT_THAT(fault_of({allocate(0x1000, 8), allocate(0xff0, 17)}),
              HasSubstr("over the live block"));
  EXPECT_THAT(fault_of({allocate(0x1000, 8), allocate(0x1000, 8)}),
              HasSubstr("over the live block"));
  EXPECT_THAT(fault_of({allocate(0x1000, 8), release(0x1000, 9)}),
              HasSubstr("as 9 bytes: it is the block of 8 bytes"));
  EXPECT_THAT(fault_of({allocate(UINT64_MAX - 8, 100)}),
              HasSubstr("past the end of the address space"));
}

TEST(lifetimes, nothing_at_null_and_failed_allocations_are_legal) {
  event failed = allocate(0, 1 << 30);
  failed.status = 2;
  auto found =
      find_lifetimes(std::vector<event>{allocate(0, 0), release(0), release(0), failed,
                                        allocate(0x1000, 0), allocate(0x1001, 5), release(0x1000)});
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->blocks.size(), 2u);
  EXPECT_EQ(found->failed_allocations, 1u);
  EXPECT_EQ(found->peak_live_bytes, 5u);
}

TEST(lifetimes, neighbours_do_not_overlap) {
  EXPECT_TRUE(find_lifetimes(
      std::vector<event>{allocate(0x1000, 16), allocate(0x1010, 16), allocate(0xff0, 16)}));
}

TEST(lifetimes, tolerant_counts_every_fault_and_warns_of_the_first_few) {
  std::vector<event> events;
  for (std::uint64_t i = 0; i < 1000; ++i) events.push_back(release(0x1000 + i));
  events.push_back(allocate(1, 1));
  auto found = find_lifetimes(events, "t", {.on_fault = strictness::tolerant, .most_warnings = 3});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->faults.unknown_frees, 1000u);
  ASSERT_EQ(found->warnings.size(), 4u);
  EXPECT_THAT(found->warnings[3], HasSubstr("997 faults more"));
  EXPECT_EQ(found->blocks.size(), 1u);
}

// The same from maps and a scan of all live blocks.
struct reference {
  std::map<std::uint64_t, std::pair<std::uint64_t, std::size_t>> live;  // address: bytes, block
  std::set<std::uint64_t> dead;
  std::uint64_t bytes = 0, peak = 0, double_frees = 0, unknown = 0, overlaps = 0, wrong = 0,
                blocks = 0;
  std::vector<std::set<std::uint64_t>> streams;
  std::vector<std::uint64_t> own;

  void add(const event& e) {
    const auto covers = [&](std::uint64_t begin, std::uint64_t end) {
      for (const auto& [at, of] : live) {
        if (at < end && begin < at + std::max<std::uint64_t>(of.first, 1)) return &of;
      }
      return static_cast<const std::pair<std::uint64_t, std::size_t>*>(nullptr);
    };
    if (e.what == action::allocate) {
      if (covers(e.address, e.address + std::max<std::uint64_t>(e.bytes, 1)) != nullptr) {
        ++overlaps;
        return;
      }
      live[e.address] = {e.bytes, blocks++};
      streams.emplace_back();
      own.push_back(e.stream);
      bytes += e.bytes;
      peak = std::max(peak, bytes);
    } else if (e.what == action::free) {
      if (const auto at = live.find(e.address); at != live.end()) {
        if (e.bytes != 0 && e.bytes != at->second.first) ++wrong;
        bytes -= at->second.first;
        dead.insert(e.address);
        live.erase(at);
      } else {
        ++(dead.contains(e.address) ? double_frees : unknown);
      }
    } else if (e.what == action::use) {
      const auto* of = covers(e.address, e.address + 1);
      if (of != nullptr && own[of->second] != e.stream) streams[of->second].insert(e.stream);
    }
  }
};

RC_GTEST_PROP(lifetimes, agree_with_the_simple_reference_on_any_events, (std::uint64_t spread)) {
  const std::uint64_t range = 1 + spread % 3000;
  const auto one = rc::gen::map(
      rc::gen::tuple(
          rc::gen::inRange<std::uint64_t>(0, range), rc::gen::inRange<std::uint64_t>(0, 60),
          rc::gen::inRange<std::uint64_t>(0, 3),
          rc::gen::element(action::allocate, action::allocate, action::free, action::use)),
      [](const auto& of) {
        const auto& [address, bytes, stream, what] = of;
        return event{.stream = stream,
                     .address = 1 + address,
                     .bytes = what == action::free && bytes % 8 != 0 ? 0 : bytes,
                     .what = what};
      });
  const auto events = *rc::gen::scale(20.0, rc::gen::container<std::vector<event>>(one));
  reference simple;
  for (const event& each : events) simple.add(each);
  auto found = find_lifetimes(events, "t", {.on_fault = strictness::tolerant});
  RC_ASSERT(found.has_value());
  RC_ASSERT(found->blocks.size() == simple.blocks);
  RC_ASSERT(found->peak_live_bytes == simple.peak);
  RC_ASSERT(found->end_live_blocks == simple.live.size());
  RC_ASSERT(found->faults.overlaps == simple.overlaps);
  RC_ASSERT(found->faults.double_frees == simple.double_frees);
  RC_ASSERT(found->faults.unknown_frees == simple.unknown);
  RC_ASSERT(found->faults.wrong_sizes == simple.wrong);
  for (std::size_t i = 0; i < simple.blocks; ++i) {
    const auto streams = found->streams_of(found->blocks[i]);
    RC_ASSERT(std::set<std::uint64_t>(streams.begin(), streams.end()) == simple.streams[i]);
  }
  RC_ASSERT(find_lifetimes(events).has_value() == (found->faults.total() == 0));
}

TEST(lifetimes, many_live_blocks_split_and_empty_the_index) {
  std::vector<event> events;
  // Enough for hundreds of pieces, added from both ends, freed from the middle.
  for (std::uint64_t i = 0; i < 50'000; ++i) {
    events.push_back(allocate(i % 2 == 0 ? 0x8000'0000 + i * 64 : 0x8000'0000 - i * 64, 64));
  }
  for (std::uint64_t i = 0; i < 50'000; i += 3) events.push_back(release(events[i].address, 64));
  for (std::uint64_t i = 0; i < 50'000; i += 3) events.push_back(allocate(events[i].address, 63));
  for (std::uint64_t i = 50'000; i-- > 0;) events.push_back(release(events[i].address));
  auto found = find_lifetimes(events);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->end_live_blocks, 0u);
  EXPECT_EQ(found->peak_live_blocks, 50'000u);
}

}  // namespace
}  // namespace millpond::trace
