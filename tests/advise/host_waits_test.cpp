// The one model of what makes the host wait, against CUDA's documentation, call by call; and what a
// graph's nodes do at its launches.
#include "advise/host_waits.hpp"

#include <gmock/gmock.h>

#include <functional>

#include "advise/finding_list.hpp"
#include "advise/trace_maker.hpp"
#include "millpond/base/units.hpp"
#include "trace/event_views.hpp"

namespace millpond::advise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using action = trace::action;
using kind = trace::kind;
using scope = host_wait::scope;
using way = trace::copy_direction;

trace::event copy(way direction, kind host, bool asynchronous, std::uint64_t bytes = MiB) {
  trace::event made;
  made.what = action::copy;
  made.of = host;
  made.bytes = bytes;
  made.stream = 1;
  set_operands(made, trace::copy_operands{0x1000, 0x2000, direction, asynchronous});
  return made;
}
host_wait wait(const trace::event& at) {
  return wait_of(at, true, false, kind::device);
}

TEST(host_waits_test, synchronous_copies_with_a_side_on_the_host_wait_for_their_stream) {
  for (const kind host : {kind::pageable, kind::pinned}) {
    EXPECT_EQ(wait(copy(way::device_to_host, host, false)).of, scope::stream);
    EXPECT_EQ(wait(copy(way::host_to_device, host, false)).of, scope::stream);
    EXPECT_EQ(wait(copy(way::unknown, host, false)).of, scope::stream);
    EXPECT_EQ(wait(copy(way::host_to_host, host, true)).of, scope::stream);
  }
  EXPECT_TRUE(wait(copy(way::host_to_device, kind::pageable, false)).own_work_goes_on)
      << "its bytes are staged, and may still be on their way";
  EXPECT_FALSE(wait(copy(way::host_to_device, kind::pinned, false)).own_work_goes_on);
  EXPECT_EQ(wait(copy(way::device_to_device, kind::device, false)).of, scope::nothing);
}

TEST(host_waits_test, of_asynchronous_copies_only_those_of_pageable_memory_wait) {
  EXPECT_EQ(wait(copy(way::device_to_host, kind::pinned, true)).of, scope::nothing);
  EXPECT_EQ(wait(copy(way::host_to_device, kind::pinned, true)).of, scope::nothing);
  EXPECT_EQ(wait(copy(way::device_to_host, kind::pageable, true, 4)).of, scope::stream);
  EXPECT_EQ(wait(copy(way::host_to_device, kind::pageable, true, staged_bytes)).of, scope::nothing);
  EXPECT_EQ(wait(copy(way::host_to_device, kind::pageable, true, staged_bytes + 1)).of,
            scope::stream);
  trace::event refused = copy(way::device_to_host, kind::pageable, false);
  refused.status = 1;
  EXPECT_EQ(wait(refused).of, scope::nothing);
}

TEST(host_waits_test, frees_wait_for_the_device_but_for_those_in_a_streams_order) {
  trace::event at;
  at.what = action::free;
  for (const kind of : {kind::device, kind::pinned, kind::managed}) {
    at.of = of;
    EXPECT_EQ(wait_of(at, true, false, of).of, scope::device);
    EXPECT_EQ(wait_of(at, true, true, of).of, scope::nothing) << "cuMemUnmap";
    EXPECT_EQ(wait_of(at, false, false, of).of, scope::nothing) << "nobody knows which call it was";
  }
  at.of = kind::driver_pool;
  EXPECT_EQ(wait(at).of, scope::nothing);
  at.what = action::allocate;
  at.of = kind::device;
  EXPECT_EQ(wait(at).of, scope::nothing);
}

TEST(host_waits_test, a_memset_waits_where_the_cpu_could_read_what_it_writes) {
  trace::event at;
  at.what = action::memset;
  EXPECT_EQ(wait_of(at, true, false, kind::device).of, scope::nothing);
  EXPECT_EQ(wait_of(at, true, false, kind::managed).of, scope::stream);
  EXPECT_EQ(wait_of(at, true, false, kind::pinned).of, scope::stream);
  at.stream = 1;
  EXPECT_EQ(wait_of(at, true, false, kind::managed).of, scope::nothing);
}

// A kernel on managed memory, then the call, then the CPU's fault.
std::vector<std::string> touched_after(const std::function<void(trace_maker&)>& call) {
  trace_maker made;
  made.on(action::stream_create, 1, 1);
  made.allocate(0x100000, 4 * MiB, kind::managed);
  made.allocate(0x900000, 4 * MiB);
  made.kernel(1, {0x100000, 0x900000});
  call(made);
  trace::event& fault = made.add(action::pages);
  fault.time_ns = 300'000;
  fault.address = 0x100000;
  fault.object = static_cast<std::uint64_t>(trace::page_change::cpu_fault);
  made.add(action::device_synchronize).time_ns = 400'000;
  return explain_made(made).names();
}
void copy_to(trace_maker& made, way direction, kind host, bool asynchronous) {
  trace::event& at = made.add(action::copy);
  const trace::event like = copy(direction, host, asynchronous, 4);
  at.of = like.of;
  at.bytes = like.bytes;
  at.stream = like.stream;
  set_operands(at, trace::copy_operands{0x10, 0x900000, direction, asynchronous});
}

TEST(host_waits_test, every_call_that_waits_comes_before_what_the_cpu_touches_after_it) {
  EXPECT_THAT(touched_after([](trace_maker&) {}), ElementsAre("managed_touched_unsynchronised"));
  EXPECT_THAT(touched_after([](trace_maker& made) {
                copy_to(made, way::device_to_host, kind::pinned, true);
              }),
              ElementsAre("managed_touched_unsynchronised"));
  EXPECT_THAT(touched_after([](trace_maker& made) {
                copy_to(made, way::device_to_host, kind::pinned, false);
              }),
              IsEmpty());
  EXPECT_THAT(touched_after([](trace_maker& made) {
                copy_to(made, way::device_to_host, kind::pageable, true);
              }),
              IsEmpty());
  EXPECT_THAT(touched_after([](trace_maker& made) { made.free(0x900000); }), IsEmpty());
  EXPECT_THAT(touched_after([](trace_maker& made) { made.on(action::stream_synchronize, 1); }),
              IsEmpty());
}

// --- Graphs ---

trace_maker with_graph(const std::function<void(trace_maker&)>& nodes) {
  trace_maker made;
  made.on(action::stream_create, 1, 1);
  made.allocate(0x100000, 1 * MiB);
  made.kernel(1, {0x100000});
  made.on(action::capture_begin, 1, 5);
  nodes(made);
  made.on(action::capture_end, 1, 9);
  return made;
}
void write(trace_maker& made) {
  trace::event& at = made.add(action::memset);
  at.stream = 1;
  at.address = 0x100000;
  at.bytes = 1 * MiB;
}

TEST(graph_book_test, a_node_that_writes_writes_at_each_launch_and_not_when_it_is_captured) {
  trace_maker made = with_graph(write);
  made.on(action::graph_launch, 1, 9);
  made.on(action::graph_launch, 1, 9);
  EXPECT_THAT(explain_made(made).names(), ElementsAre("dead_write"));
  trace_maker never = with_graph(write);
  write(never);
  EXPECT_THAT(explain_made(never).names(), IsEmpty());
}

TEST(graph_book_test, a_launch_of_a_graph_that_was_not_seen_may_have_read_everything) {
  const auto twice = [](bool launched) {
    trace_maker made = with_graph([](trace_maker&) {});
    write(made);
    if (launched) made.on(action::graph_launch, 1, 77);
    write(made);
    return made;
  };
  EXPECT_THAT(explain_made(twice(false)).names(), ElementsAre("dead_write"));
  const auto answer = explain_made(twice(true));
  EXPECT_THAT(answer.names(), IsEmpty());
  EXPECT_THAT(answer.what.what.remarks, testing::Contains(HasSubstr("whose capture is not")));
}

TEST(graph_book_test, a_free_in_a_graph_ends_the_block_at_the_launch) {
  const auto with_free = [](bool launched) {
    trace_maker made;
    for (const std::uint64_t stream : {1, 2}) made.on(action::stream_create, stream, 1);
    made.allocate(0x10000, 64 * KiB, kind::driver_pool, 1);
    made.on(action::stream_synchronize, 1);
    made.on(action::capture_begin, 1, 5);
    made.kernel(1, {0x10000});
    made.free(0x10000, kind::driver_pool, 1);
    made.on(action::capture_end, 1, 9);
    if (launched) made.on(action::graph_launch, 1, 9);
    made.kernel(1, {0x10000});
    return made;
  };
  EXPECT_THAT(explain_made(with_free(false)).names(), IsEmpty());
  EXPECT_THAT(explain_made(with_free(true)).names(), ElementsAre("use_after_free"));
}

TEST(finding_list_test, places_past_the_limit_are_summed_and_none_is_lost) {
  trace_maker made;
  const std::uint64_t places = finding_list::most_of_a_flaw + 500;
  for (std::uint64_t n = 0; n < places; ++n) {
    made.allocate((n + 1) << 32, (n + 1) * KiB, kind::device, 0, "place" + std::to_string(n));
    made.allocate(((n + 1) << 32) + GiB, KiB, kind::device, 0, "place" + std::to_string(n));
    made.free(((n + 1) << 32) + GiB);
  }
  made.ended();
  const auto answer = explain_made(made);
  std::uint64_t bytes = 0, count = 0;
  for (const finding& each : answer.what.findings) {
    ASSERT_EQ(each.which, flaw::leak);
    bytes += each.bytes;
    count += each.count;
  }
  EXPECT_EQ(answer.what.findings.size(), finding_list::most_of_a_flaw + 1);
  EXPECT_EQ(count, places);
  EXPECT_EQ(bytes, places * (places + 1) / 2 * KiB);
}

}  // namespace
}  // namespace millpond::advise
