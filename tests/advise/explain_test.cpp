// What the programs of tests/programs do not show: what must not be claimed, graphs, default
// streams, recorded allocators.
#include <gmock/gmock.h>

#include "advise/by_call_site.hpp"
#include "advise/difference.hpp"
#include "advise/stream_clocks.hpp"
#include "advise/trace_maker.hpp"
#include "millpond/base/units.hpp"

namespace millpond::advise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using action = trace::action;
using kind = trace::kind;

TEST(stream_clocks_test, know_what_events_and_waits_order) {
  stream_clocks clocks;
  clocks.stream_created(1, 0, false);
  clocks.stream_created(2, 0, false);
  const epoch work = clocks.issue(1, 0);
  EXPECT_FALSE(clocks.knows(2, 0, work));
  clocks.record(7, 1, 0);
  const epoch later = clocks.issue(1, 0);
  clocks.wait(7, 2, 0);
  EXPECT_TRUE(clocks.knows(2, 0, work));
  EXPECT_FALSE(clocks.knows(2, 0, later)) << "given after the event was recorded";
  EXPECT_TRUE(clocks.device_busy(0));
  clocks.host_waits_for_stream(1, 0);
  EXPECT_TRUE(clocks.host_knows(later));
  EXPECT_TRUE(clocks.knows(2, 0, later))
      << "work that is given after the host's wait comes after it";
}

TEST(stream_clocks_test, the_default_stream_and_blocking_streams_wait_for_each_other) {
  stream_clocks clocks;
  clocks.stream_created(1, 0, true);
  clocks.stream_created(2, 0, false);
  const epoch first = clocks.issue(1, 0);
  const epoch apart = clocks.issue(2, 0);
  const epoch middle = clocks.issue(0, 0);
  EXPECT_TRUE(clocks.knows(0, 0, first));
  EXPECT_FALSE(clocks.knows(0, 0, apart)) << "a non-blocking stream stands outside";
  EXPECT_TRUE(clocks.knows(1, 0, middle));
  EXPECT_FALSE(clocks.knows(2, 0, middle));
  EXPECT_FALSE(clocks.knows(0, 1, first)) << "another device has a default stream of its own";
}

TEST(explain_test, says_nothing_of_a_program_that_does_all_right) {
  trace_maker made;
  made.allocate(0x10000, 64 * KiB);
  made.kernel(0, {0x10000});
  made.on(action::device_synchronize, 0);
  made.free(0x10000);
  made.ended();
  EXPECT_THAT(explain_made(made).names(), IsEmpty());
}

TEST(explain_test, a_free_that_the_driver_took_is_not_called_foreign) {
  trace_maker made;  // memory of a call that the recorder does not know: an array, an import
  made.kernel(0, {0x10000});
  made.free(0x90000);
  const auto answer = explain_made(made);
  EXPECT_THAT(answer.names(), IsEmpty());
  EXPECT_THAT(answer.what.what.remarks, testing::Contains(HasSubstr("does not show allocated")));
}

TEST(explain_test, a_leftover_address_inside_a_structure_is_not_called_a_use) {
  trace_maker made;
  made.allocate(0x10000, 64 * KiB, kind::driver_pool, 1);
  made.kernel(1, {0x10000});
  made.free(0x10000, kind::driver_pool, 1);
  made.kernel(1, {0x10000}, trace::use_form::structure);
  EXPECT_THAT(explain_made(made).names(), IsEmpty());
}

trace_maker captured(bool launched) {
  trace_maker made;
  for (const std::uint64_t stream : {1, 2}) made.on(action::stream_create, stream, 1);
  made.allocate(0x10000, 64 * KiB, kind::driver_pool, 1);
  made.on(action::stream_synchronize, 1);
  made.on(action::capture_begin, 1, 5);
  made.kernel(1, {0x10000});
  made.on(action::capture_end, 1, 9);
  if (launched) made.on(action::graph_launch, 1, 9);
  made.free(0x10000, kind::driver_pool, 2);
  return made;
}

TEST(explain_test, a_graphs_kernels_use_its_blocks_at_each_launch) {
  EXPECT_THAT(explain_made(captured(true)).names(), ElementsAre("free_while_in_use"));
  EXPECT_THAT(explain_made(captured(false)).names(), IsEmpty()) << "captured work does not run";
}

trace_maker used_elsewhere(bool reported) {
  trace_maker made;
  for (const std::uint64_t stream : {1, 2}) made.on(action::stream_create, stream, 1);
  made.allocate(0x10000, 64 * KiB, kind::driver_pool, 1);
  made.on(action::stream_synchronize, 1);
  made.kernel(2, {0x10000});
  if (reported) {
    auto& use = made.add(action::use);
    use.stream = 2;
    use.address = 0x10000;
  }
  made.free(0x10000, kind::driver_pool, 1);
  return made;
}

TEST(explain_test, a_use_that_the_allocator_was_informed_of_makes_its_free_safe) {
  EXPECT_THAT(explain_made(used_elsewhere(true)).names(), IsEmpty());
  EXPECT_THAT(explain_made(used_elsewhere(false)).names(), ElementsAre("free_while_in_use"));
}

TEST(explain_test, cuda_free_waits_for_the_device_and_so_is_no_race) {
  trace_maker made;
  made.on(action::stream_create, 1, 1);
  made.allocate(0x10000, 64 * KiB);
  made.kernel(1, {0x10000});
  made.free(0x10000);
  EXPECT_THAT(explain_made(made).names(), IsEmpty());
}

TEST(explain_test, leaks_are_claimed_only_of_a_program_that_ended_by_itself) {
  trace_maker made;
  made.allocate(0x10000, 64 * KiB);
  made.kernel(0, {0x10000});
  EXPECT_THAT(explain_made(made).names(), IsEmpty());
  made.ended();
  const auto answer = explain_made(made);
  ASSERT_THAT(answer.names(), ElementsAre("leak"));
  EXPECT_EQ(answer.what.findings[0].bytes, 64 * KiB);
  EXPECT_EQ(answer.what.findings[0].how_bad, severity::note) << "one block for good does no harm";
}

// A free on stream 2 beside a kernel on stream 1, and a block that nothing was given.
trace_maker careless() {
  trace_maker made;
  for (const std::uint64_t stream : {1, 2}) made.on(action::stream_create, stream, 1);
  made.allocate(0x1000000, 8 * MiB, kind::device, 0, "unused");
  made.allocate(0x10000, 64 * KiB, kind::driver_pool, 1);
  made.kernel(1, {0x10000});
  made.free(0x10000, kind::driver_pool, 2);
  return made;
}

TEST(explain_test, a_recording_with_gaps_claims_nothing_that_a_missing_call_would_refute) {
  const auto whole = [] {
    trace_maker made = careless();
    made.free(0x1000000);
    made.ended();
    return made;
  };
  EXPECT_THAT(explain_made(whole()).names(), ElementsAre("free_while_in_use", "unused_allocation"));
  trace_maker paused = whole(), lossy = whole(), window = whole();
  paused.noted("paused");
  lossy.dropped(3);
  window.noted("window");
  for (const trace_maker* each : {&paused, &lossy}) {
    const auto answer = explain_made(*each);
    EXPECT_THAT(answer.names(), IsEmpty());
    EXPECT_THAT(answer.what.what.remarks, testing::Contains(HasSubstr("not in the recording")));
  }
  const auto end_alone = explain_made(window);
  EXPECT_THAT(end_alone.names(), ElementsAre("free_while_in_use"))
      << "both its calls are in the window";
  EXPECT_THAT(end_alone.what.what.remarks, testing::Contains(HasSubstr("only the end of the run")));
}

TEST(explain_test, a_block_that_was_young_when_the_recording_stopped_is_not_called_unused) {
  trace_maker made = careless();
  EXPECT_THAT(explain_made(made).names(), ElementsAre("free_while_in_use"));
  for (int n = 0; n < 100; ++n) made.kernel(2, {0x90000});
  EXPECT_THAT(explain_made(made).names(), ElementsAre("free_while_in_use", "unused_allocation"))
      << "a hundred kernels later it still was";
}

TEST(explain_test, the_allocators_share_is_reported_for_each_range_that_the_program_names) {
  trace_maker made;
  for (int n = 0; n < 40; ++n) {
    made.add(action::mark).object = made.text("request");
    made.allocate(0x10000, 64 * KiB, kind::driver_pool, 1);
    made.kernel(1, {0x10000});
    made.free(0x10000, kind::driver_pool, 1).duration_ns = 1'000'000;
  }
  made.ended();
  const auto answer = explain_made(made);
  ASSERT_THAT(answer.names(), ElementsAre("allocator_time"));
  EXPECT_THAT(answer.what.findings[0].summary,
              HasSubstr("1.00 ms for each of the 40 ranges `request`"));
}

TEST(explain_test, a_run_lasts_to_the_end_of_its_last_call) {
  trace_maker made;
  made.allocate(0x10000, 64 * KiB);
  made.free(0x10000).duration_ns = 7'000'000;
  const auto answer = explain_made(made);
  EXPECT_EQ(answer.what.what.duration_ns, 7'001'000u);
  EXPECT_EQ(answer.what.what.allocator_ns, 7'000'000.0);
  EXPECT_EQ(answer.what.what.allocating_threads, 1u);
  EXPECT_EQ(answer.what.what.streams, 0u) << "cudaMalloc and cudaFree stand in no stream's order";
}

TEST(explain_test, page_counters_that_come_after_the_free_belong_to_the_block_that_was_there) {
  trace_maker made;
  made.allocate(0x100000, 4 * MiB, kind::managed);
  for (int round = 0; round < 10; ++round) made.kernel(0, {0x100000});
  made.on(action::device_synchronize, 0);
  made.free(0x100000);
  std::uint64_t time = 2000;
  for (int round = 0; round < 10; ++round) {
    for (const auto change : {trace::page_change::gpu_fault, trace::page_change::to_device,
                              trace::page_change::to_host}) {
      auto& page = made.add(action::pages);
      page.time_ns = time += 500;
      page.address = 0x100000;
      page.bytes = 64 * KiB;
      page.object = static_cast<std::uint64_t>(change);
    }
  }
  EXPECT_THAT(explain_made(made).names(), ElementsAre("managed_thrash"));
}

TEST(explain_test, pages_that_prefetches_move_do_not_thrash_but_those_that_come_back_by_faults_do) {
  // CUPTI's causes of pages' moves. Twelve faults of the first touch, then the program moves the
  // pages there and back each round.
  constexpr std::uint64_t by_prefetch = 1, by_fault = 2;
  for (const bool home_by_faults : {false, true}) {
    trace_maker made;
    made.allocate(0x100000, 4 * MiB, kind::managed);
    std::uint64_t time = 1000;
    const auto page = [&](trace::page_change change, std::uint64_t why) {
      auto& each = made.add(action::pages);
      each.time_ns = time += 500;
      each.address = 0x100000;
      each.bytes = 2 * MiB;
      each.object = static_cast<std::uint64_t>(change);
      each.other = why;
    };
    for (int n = 0; n < 12; ++n) page(trace::page_change::cpu_fault, by_fault);
    for (int round = 0; round < 10; ++round) {
      page(trace::page_change::to_device, by_prefetch);
      made.kernel(0, {0x100000});
      made.on(action::device_synchronize, 0);
      page(trace::page_change::to_host, home_by_faults ? by_fault : by_prefetch);
    }
    made.free(0x100000);
    if (home_by_faults) {
      EXPECT_THAT(explain_made(made).names(), ElementsAre("managed_thrash"));
    } else {
      EXPECT_THAT(explain_made(made).names(), ElementsAre());
    }
  }
}

TEST(explain_test, a_recorded_allocators_fragmentation_names_the_request_and_the_pieces) {
  // Every other block is freed: half is free, in pieces too small for the next.
  std::string csv = "action,time_us,addr,size,stream\nsegment_alloc,0,1000000,2097152,0\n";
  const auto hex = [](std::uint64_t value) {
    char text[32];
    std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(value));
    return std::string(text);
  };
  for (std::uint64_t n = 0; n < 32; ++n)
    csv += "alloc,1," + hex(0x1000000 + n * 65536) + ",65536,0\n";
  for (std::uint64_t n = 0; n < 32; n += 2) {
    csv += "free_requested,2," + hex(0x1000000 + n * 65536) + ",65536,0\nfree_completed,2," +
           hex(0x1000000 + n * 65536) + ",65536,0\n";
  }
  csv += "segment_alloc,3,2000000,2097152,0\nalloc,3,2000000,131072,0\n";
  const auto answer = explain_bytes(csv);
  ASSERT_THAT(answer.names(), ElementsAre("fragmentation"));
  const finding& found = answer.what.findings[0];
  EXPECT_EQ(found.peak_bytes, 4 * MiB);
  EXPECT_EQ(found.peak_after_bytes, 2 * MiB);
  EXPECT_THAT(found.summary, HasSubstr("for 128 KiB"));
  EXPECT_THAT(found.summary, HasSubstr("1.00 MiB free in 16 pieces, the largest 64.0 KiB: 1.00 MiB "
                                       "in 16 pieces smaller than the request"));
}

TEST(explain_test, recorded_inference_shows_its_fragmentation_and_nothing_else) {
  auto source =
      trace::open_trace(std::string(MILLPOND_SOURCE_DIR) + "/data/traces/resnet_serving.csv.gz");
  ASSERT_TRUE(source);
  const auto made = explain(*source);
  ASSERT_TRUE(made);
  ASSERT_EQ(made->findings.size(), 1u);
  EXPECT_EQ(made->findings[0].which, flaw::fragmentation);
  EXPECT_EQ(made->findings[0].peak_bytes, 1'560'281'088u);
}

TEST(explain_test, a_trace_cut_anywhere_is_examined_up_to_its_cut) {
  trace_maker made;
  for (std::uint64_t n = 0; n < 50; ++n) {
    made.allocate(0x10000, 64 * KiB);
    made.kernel(0, {0x10000});
    made.free(0x10000);
  }
  made.ended();
  const std::string whole = made.bytes();
  for (std::size_t length = 40; length < whole.size(); length += 7) {
    auto source = trace::open_trace_bytes("cut", whole.substr(0, length));
    if (!source) continue;
    const auto answer = explain(*source);
    ASSERT_TRUE(answer) << length << ": " << answer.error().message;
    EXPECT_THAT(answer->what.remarks, testing::Contains(HasSubstr("cut at byte")).Times(1))
        << length;
  }
}

TEST(explain_test, every_flaw_has_a_name_of_its_own) {
  for (int n = 0; n < flaw_count; ++n) {
    const auto which = static_cast<flaw>(n);
    EXPECT_EQ(find_flaw(facts_of(which).name), which);
  }
  EXPECT_FALSE(find_flaw("no such flaw"));
}

trace_maker server(std::uint64_t scratch, bool leaves_blocks) {
  trace_maker made;
  made.allocate(0x1000000, 8 * MiB, kind::device, 0, "weights");
  made.kernel(0, {0x1000000});
  for (std::uint64_t request = 0; request < 64; ++request) {
    const std::uint64_t address = 0x8000'0000 + (leaves_blocks ? request * scratch : 0);
    made.allocate(address, scratch, kind::driver_pool, 0, "request");
    made.kernel(0, {0x1000000, address});
    if (!leaves_blocks) made.free(address, kind::driver_pool);
  }
  return made;
}

TEST(difference_test, a_trace_is_no_worse_than_itself) {
  const auto one = explain_made(server(4 * MiB, false));
  const difference made = compare({one.what, one.info}, {one.what, one.info});
  EXPECT_FALSE(made.regressed());
  EXPECT_THAT(made.call_sites, IsEmpty());
  EXPECT_THAT(made.appeared, IsEmpty());
}

TEST(difference_test, more_memory_is_a_regression_at_the_place_that_takes_it) {
  const auto before = explain_made(server(4 * MiB, false)),
             after = explain_made(server(6 * MiB, false));
  const difference made = compare({before.what, before.info}, {after.what, after.info});
  EXPECT_TRUE(made.regressed());
  EXPECT_FALSE(compare({after.what, after.info}, {before.what, before.info}).regressed())
      << "less is none";
  ASSERT_FALSE(made.call_sites.empty());
  EXPECT_THAT(made.call_sites[0].call_site, HasSubstr("request"));
  EXPECT_EQ(made.call_sites[0].peak_after, 6 * MiB);
  difference_limits lenient;
  lenient.bytes_share = 1;
  EXPECT_FALSE(compare({before.what, before.info}, {after.what, after.info}, lenient).regressed());
}

TEST(difference_test, a_new_finding_is_a_regression_and_one_that_is_gone_is_not) {
  const auto good = explain_made(server(1 * MiB, false)),
             grows = explain_made(server(1 * MiB, true));
  const difference worse = compare({good.what, good.info}, {grows.what, grows.info});
  ASSERT_EQ(worse.appeared.size(), 1u);
  EXPECT_EQ(worse.appeared[0].which, flaw::growth_without_end);
  EXPECT_TRUE(worse.regressed());
  const difference better = compare({grows.what, grows.info}, {good.what, good.info});
  EXPECT_EQ(better.gone.size(), 1u);
  EXPECT_FALSE(better.regressed());
}

TEST(by_call_site_test, each_place_gets_the_memory_that_its_use_asks_for) {
  trace_maker made;
  made.allocate(0x1000000, 8 * MiB, kind::device, 0, "weights");
  made.allocate(0x2000000, 4 * KiB, kind::managed, 0, "control");
  made.allocate(0x3000000, 8 * MiB, kind::managed, 0, "field");
  for (std::uint64_t request = 0; request < 20; ++request) {
    made.allocate(0x8000'0000, 1 * MiB, kind::device, 0, "scratch");
    made.allocate(0x9000'0000, 1 * MiB, kind::pinned, 0, "staging");
    made.kernel(0, {0x1000000, 0x2000000, 0x3000000, 0x8000'0000});
    auto& fault = made.add(action::pages);
    fault.address = 0x2000000;
    fault.object = static_cast<std::uint64_t>(trace::page_change::cpu_fault);
    made.free(0x9000'0000, kind::pinned);
    made.free(0x8000'0000);
  }
  const auto explained = explain_made(made);
  const whole_advice advice = advise_call_sites(explained.what, explained.info, {}, nullptr);
  std::map<std::string, const call_site_advice*> by_name;
  for (const call_site_advice& each : advice.call_sites) {
    by_name[std::string(
        explained.info.strings.at(explained.info.stacks.at(each.where.stack)[0].symbol))] = &each;
  }
  ASSERT_EQ(by_name.size(), 5u);
  EXPECT_EQ(by_name["weights"]->use, "leave");
  EXPECT_EQ(by_name["control"]->use, "mapped");
  EXPECT_EQ(by_name["field"]->use, "managed + prefetch");
  EXPECT_EQ(by_name["scratch"]->use, "device + pool");
  EXPECT_EQ(by_name["staging"]->use, "pinned + pool");
  EXPECT_GT(by_name["staging"]->time_now_ns, by_name["staging"]->time_then_ns);
  EXPECT_TRUE(by_name["staging"]->time_estimated) << "the calls' times were not recorded here";
  EXPECT_EQ(advice.call_sites[0].where.stack, by_name["staging"]->where.stack)
      << "the largest gain comes first";
}

}  // namespace
}  // namespace millpond::advise
