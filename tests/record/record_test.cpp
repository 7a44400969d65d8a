#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "record/launcher.hpp"
#include "record/lines.hpp"
#include "record/settings.hpp"
#include "record/trace_builder.hpp"
#include "trace/event_views.hpp"
#include "trace/lifetimes.hpp"
#include "trace/source.hpp"

namespace millpond::record {
namespace {

using trace::action;

// A folder of its own for each test, gone with it.
class record_test : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("millpond_" + std::string(test->test_suite_name()) + "_" + test->name() +
               std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  trace_builder_options options_for(const std::string& name, std::uint64_t last_events = 0) const {
    trace_builder_options made;
    made.path = path(name);
    made.last_events = last_events;
    return made;
  }
  std::filesystem::path folder_;
};
using trace_builder_test = record_test;
using settings_test = record_test;

TEST_F(settings_test, are_the_same_after_a_journey_through_text) {
  settings made;
  made.path = "/tmp/a;b=c%d.mpt";
  made.root = 4711;
  made.stacks = stack_choice::all;
  made.most_ns = 5;
  made.last_events = 7;
  made.cupti = "/opt/libcupti.so";
  made.count_calls = true;
  made.python = true;
  made.kernels = false;
  const auto back = parse_settings(format_settings(made));
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, made);
  for (const char* wrong : {"", "path", "path=a;stacks=9", "path=a;ring_cells=17", "path=a;other=1",
                            "path=%g1", "path=a;root=x"}) {
    EXPECT_FALSE(parse_settings(wrong)) << wrong;
  }
}

TEST_F(settings_test, children_write_beside_the_program) {
  settings of;
  of.path = "/tmp/a.b/server.mpt";
  of.root = 10;
  EXPECT_EQ(path_of_process(of, 10), "/tmp/a.b/server.mpt");
  EXPECT_EQ(path_of_process(of, 11), "/tmp/a.b/server.11.mpt");
  of.path = "/tmp/a.b/server";
  EXPECT_EQ(path_of_process(of, 11), "/tmp/a.b/server.11");
}

note event_note(action what, std::uint64_t address, std::uint64_t bytes) {
  note made;
  made.at.what = what;
  made.at.address = address;
  made.at.bytes = bytes;
  made.at.object = what == action::allocate || what == action::free ? text_bits("cudaMalloc") : 0;
  return made;
}

std::vector<trace::event> read_all(const std::string& file, trace::trace_info* info = nullptr) {
  auto loaded = trace::load_trace(file);
  EXPECT_TRUE(loaded) << loaded.error().message;
  if (info != nullptr) *info = std::move(loaded->info);
  return std::move(loaded->events);
}

TEST_F(trace_builder_test, a_free_stands_where_it_began_with_the_status_it_ended_with) {
  auto to = trace_builder::create(options_for("a.mpt"));
  ASSERT_TRUE(to);
  std::uint64_t position = 0;
  const auto add = [&](const note& each) { ASSERT_TRUE((*to)->add(each, position++)); };
  add(event_note(action::allocate, 0x1000, 64));
  note freeing = event_note(action::free, 0x1000, 0);
  freeing.awaits_amend = true;
  add(freeing);
  add(event_note(action::allocate, 0x1000,
                 32));  // another thread has the address before the first one returns
  note amend;
  amend.form = note_form::amend;
  amend.link = 1;
  amend.at.duration_ns = 77;
  add(amend);
  note again = event_note(action::free, 0x1000, 0);
  again.awaits_amend = true;
  add(again);
  amend.link = 4;
  add(amend);
  ASSERT_TRUE((*to)->close());
  const auto events = read_all(path("a.mpt"));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1].what, action::free);
  EXPECT_EQ(events[1].duration_ns, 77u);
  EXPECT_EQ(events[1].bytes, 64u);
  EXPECT_EQ(events[3].bytes, 32u) << "the second block, which the late answer must not have ended";
  EXPECT_TRUE(trace::find_lifetimes(events));
}

TEST_F(trace_builder_test, kernels_are_given_the_blocks_that_their_arguments_point_into) {
  auto to = trace_builder::create(options_for("a.mpt"));
  ASSERT_TRUE(to);
  std::uint64_t position = 0;
  const auto add = [&](const note& each) { ASSERT_TRUE((*to)->add(each, position++)); };
  add(event_note(action::allocate, 0x10000, 4096));
  add(event_note(action::allocate, 0x20000, 4096));
  note kernel = event_note(action::kernel, 0, 0);
  kernel.at.object = text_bits("_Z4stepPfi");
  kernel.link = 2;
  add(kernel);
  note arguments;
  arguments.form = note_form::arguments;
  arguments.words = {{0x10010, 0x10020, 0x30000}, 3, 0};
  add(arguments);
  arguments.words = {{0x20fff, 0x10030}, 2, 0b11};
  add(arguments);
  ASSERT_TRUE((*to)->close());
  trace::trace_info info;
  const auto events = read_all(path("a.mpt"), &info);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[2].what, action::kernel);
  EXPECT_EQ(events[2].other, 2u) << "one use a block, and none for what is in no block";
  EXPECT_EQ(info.strings.at(static_cast<std::uint32_t>(events[2].object)), "step(float*, int)");
  EXPECT_EQ(events[3].address, 0x10010u);
  EXPECT_EQ(events[4].address, 0x20fffu);
  EXPECT_EQ(events[3].object, static_cast<std::uint64_t>(trace::use_form::argument));
  EXPECT_EQ(events[4].object, static_cast<std::uint64_t>(trace::use_form::structure));
}

TEST_F(trace_builder_test,
       a_launch_is_an_event_with_the_arguments_of_its_own_note_and_of_those_after) {
  auto to = trace_builder::create(options_for("a.mpt"));
  ASSERT_TRUE(to);
  std::uint64_t position = 0;
  const auto add = [&](const note& each) { ASSERT_TRUE((*to)->add(each, position++)); };
  add(event_note(action::allocate, 0x1000, 64));
  add(event_note(action::allocate, 0x2000, 64));
  add(event_note(action::allocate, 0x3000, 64));
  const auto launch = [&](std::uint64_t notes_after) {
    note made;
    made.form = note_form::launch;
    made.link = notes_after;
    made.took = std::uint64_t{1} << 40;
    std::construct_at(&made.kernel);
    made.kernel.time = 9;
    made.kernel.name = "_Z4stepPfi";
    made.kernel.thread = 3;
    made.kernel.count = 2;
    made.kernel.structures = 2;
    made.kernel.address = {0x1010, 0x2000, 0, 0, 0};
    return made;
  };
  add(launch(0));
  add(launch(1));
  note more;
  more.form = note_form::arguments;
  std::construct_at(&more.words);
  more.words.address[0] = 0x3000;
  more.words.count = 1;
  add(more);
  ASSERT_TRUE((*to)->close());
  trace::trace_info info;
  const auto events = read_all(path("a.mpt"), &info);
  ASSERT_EQ(events.size(), 3u + 3u + 4u);
  const trace::kernel_operands kernel = trace::as_kernel(events[3]);
  EXPECT_EQ(events[3].what, action::kernel);
  EXPECT_EQ(info.strings.at(kernel.name), "step(float*, int)");
  EXPECT_EQ(kernel.uses, 2u);
  EXPECT_EQ(events[3].time_ns, 9u);
  EXPECT_EQ(events[3].duration_ns, UINT32_MAX) << "a duration saturates";
  EXPECT_EQ(events[3].thread, 3u);
  EXPECT_EQ(events[4].address, 0x1010u);
  EXPECT_EQ(trace::as_use(events[4]).form, trace::use_form::argument);
  EXPECT_EQ(trace::as_use(events[5]).form, trace::use_form::structure);
  EXPECT_EQ(trace::as_kernel(events[6]).uses, 3u);
  EXPECT_EQ(events[9].address, 0x3000u);
}

TEST_F(trace_builder_test, a_copys_host_side_is_known_from_its_address) {
  auto to = trace_builder::create(options_for("a.mpt"));
  ASSERT_TRUE(to);
  std::uint64_t position = 0;
  note pinned = event_note(action::allocate, 0x50000, 4096);
  pinned.at.of = trace::kind::pinned;
  ASSERT_TRUE((*to)->add(pinned, position++));
  ASSERT_TRUE((*to)->add(event_note(action::allocate, 0x10000, 4096), position++));
  for (const std::uint64_t host : {0x50010, 0x90000}) {
    note copy = event_note(action::copy, 0x10000, 64);
    copy.at.other = host;
    copy.at.object = trace::copy_asynchronous;
    ASSERT_TRUE((*to)->add(copy, position++));
  }
  ASSERT_TRUE((*to)->close());
  const auto events = read_all(path("a.mpt"));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[2].of, trace::kind::pinned);
  EXPECT_EQ(events[3].of, trace::kind::pageable);
  const auto up = static_cast<std::uint64_t>(trace::copy_direction::host_to_device);
  EXPECT_EQ(events[2].object, up | trace::copy_asynchronous);
  EXPECT_EQ(events[3].object, up | trace::copy_asynchronous);
}

TEST_F(trace_builder_test, streams_keep_their_number_until_they_are_destroyed) {
  auto to = trace_builder::create(options_for("a.mpt"));
  ASSERT_TRUE(to);
  std::uint64_t position = 0;
  const auto on = [&](action what, std::uint64_t handle, std::uint32_t thread) {
    note made = event_note(what, 0, 0);
    made.at.stream = handle;
    made.at.thread = thread;
    ASSERT_TRUE((*to)->add(made, position++));
  };
  on(action::stream_create, 0x5000, 0);
  on(action::stream_synchronize, 0x5000, 0);
  on(action::stream_destroy, 0x5000, 0);
  on(action::stream_create, 0x5000, 0);  // the handle comes back for another stream
  on(action::stream_synchronize, 0x5000, 0);
  on(action::stream_synchronize, legacy_stream, 0);
  on(action::stream_synchronize, per_thread_stream, 1);
  on(action::stream_synchronize, per_thread_stream, 2);
  ASSERT_TRUE((*to)->close());
  const auto events = read_all(path("a.mpt"));
  ASSERT_EQ(events.size(), 8u);
  EXPECT_EQ(events[0].stream, events[1].stream);
  EXPECT_EQ(events[0].stream, events[2].stream);
  EXPECT_NE(events[0].stream, events[4].stream);
  EXPECT_EQ(events[5].stream, 0u);
  EXPECT_NE(events[6].stream, events[7].stream)
      << "the thread's own stream is another one in each thread";
}

TEST_F(trace_builder_test, a_window_keeps_the_last_events_and_the_blocks_before_them) {
  auto to = trace_builder::create(options_for("a.mpt", 4));
  ASSERT_TRUE(to);
  std::uint64_t position = 0;
  for (std::uint64_t n = 1; n <= 6; ++n)
    ASSERT_TRUE((*to)->add(event_note(action::allocate, n << 16, 64), position++));
  for (std::uint64_t n = 1; n <= 3; ++n)
    ASSERT_TRUE((*to)->add(event_note(action::free, n << 16, 0), position++));
  ASSERT_TRUE((*to)->flush());
  const auto events = read_all(path("a.mpt"));
  ASSERT_EQ(events.size(), 5u + 4u);
  const auto lives = trace::find_lifetimes(events);
  ASSERT_TRUE(lives) << lives.error().message;
  EXPECT_EQ(lives->end_live_blocks, 3u);
}

#if defined(MILLPOND_HAS_RECORDER)
class program_test : public record_test {
 protected:
  launch_outcome record(const std::string& how, const std::function<void(settings&)>& change = {}) {
    launch_request request;
    request.how.path = path("program.mpt");
    request.how.recorded_by = "test";
    if (change) change(request.how);
    request.library = MILLPOND_RECORD_LIBRARY;
    request.command = {MILLPOND_RECORDED_PROGRAM, how};
    auto made = launch(request);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *made : launch_outcome{};
  }
};

TEST_F(program_test, is_recorded_from_its_first_call_to_its_last) {
  const launch_outcome outcome = record("seven");
  EXPECT_EQ(outcome.exit_status, 7);
  ASSERT_EQ(outcome.traces.size(), 1u);
  const auto lines = add_lines(outcome.traces[0]);
  ASSERT_TRUE(lines) << lines.error().message;
  trace::trace_info info;
  const auto events = read_all(outcome.traces[0], &info);
  ASSERT_EQ(events.size(), 23u);
  EXPECT_EQ(info.status, trace::read_status::complete);
  EXPECT_EQ(events.back().status, 1) << "the second free was refused";
  EXPECT_EQ(info.strings.at(static_cast<std::uint32_t>(events[0].object)), "cuMemAlloc_v2");
  const auto stack = info.stacks.at(events[0].stack);
  ASSERT_FALSE(stack.empty());
  bool seen = false;
  for (const trace::frame& each : stack) {
    seen = seen ||
           (info.strings.at(each.symbol).find("main") != std::string_view::npos && each.line != 0 &&
            info.strings.at(each.file).find("recorded_program.cpp") != std::string_view::npos);
  }
  EXPECT_TRUE(seen) << "main and its line are in the stack";
  const auto& notes = info.meta.notes;
  EXPECT_TRUE(std::ranges::find(notes, std::pair<std::string, std::string>("ended", "exit")) !=
              notes.end());
}

TEST_F(program_test, that_is_killed_or_crashes_leaves_a_readable_file) {
  for (const auto& [how, signal] : {std::pair("kill", SIGKILL), std::pair("abort", SIGABRT)}) {
    const launch_outcome outcome = record(how);
    EXPECT_EQ(outcome.signal, signal);
    ASSERT_EQ(outcome.traces.size(), 1u);
    trace::trace_info info;
    EXPECT_EQ(read_all(outcome.traces[0], &info).size(), 23u);
    EXPECT_EQ(info.status, trace::read_status::cut);
  }
}

TEST_F(program_test, that_leaves_by_the_back_door_leaves_a_readable_file) {
  const launch_outcome outcome = record("exit");
  EXPECT_EQ(outcome.exit_status, 7);
  ASSERT_EQ(outcome.traces.size(), 1u);
  EXPECT_EQ(read_all(outcome.traces[0]).size(), 23u);
}

TEST_F(program_test, that_uses_no_cuda_leaves_no_trace) {
  const launch_outcome outcome = record("no_cuda");
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_TRUE(outcome.traces.empty());
}

TEST_F(program_test, that_has_a_profiler_of_its_own_runs_on_unrecorded) {
  const launch_outcome outcome = record("occupied");
  EXPECT_EQ(outcome.exit_status, 0);
  ASSERT_EQ(outcome.traces.size(), 1u);
  trace::trace_info info;
  EXPECT_TRUE(read_all(outcome.traces[0], &info).empty());
  const auto failure =
      std::ranges::find(info.meta.notes, "failure", &std::pair<std::string, std::string>::first);
  ASSERT_NE(failure, info.meta.notes.end());
}

TEST_F(program_test, runs_on_where_the_disk_is_full) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no device that is full";
  const launch_outcome outcome = record("seven", [](settings& how) { how.path = "/dev/full"; });
  EXPECT_EQ(outcome.exit_status, 7);
  EXPECT_TRUE(outcome.traces.empty());
  EXPECT_TRUE(std::filesystem::exists("/dev/full"));
}

TEST_F(program_test, that_forks_is_recorded_once_and_its_child_is_let_alone) {
  const launch_outcome outcome = record("fork");
  EXPECT_EQ(outcome.exit_status, 0);
  ASSERT_EQ(outcome.traces.size(), 1u);
  EXPECT_EQ(read_all(outcome.traces[0]).size(), 23u);
}

TEST_F(program_test, whose_copies_come_in_batches_has_an_event_for_each) {
  const launch_outcome outcome = record("batch");
  EXPECT_EQ(outcome.exit_status, 0);
  std::vector<trace::event> copies = read_all(outcome.traces.at(0));
  std::erase_if(copies, [](const trace::event& each) { return each.what != action::copy; });
  ASSERT_EQ(copies.size(), 3u);
  const auto up = static_cast<std::uint64_t>(trace::copy_direction::host_to_device);
  EXPECT_EQ(copies[0].object, up) << "its source is read before the call returns";
  EXPECT_EQ(copies[1].object, up | trace::copy_asynchronous);
  EXPECT_EQ(copies[2].object, static_cast<std::uint64_t>(trace::copy_direction::device_to_device) |
                                  trace::copy_asynchronous);
  EXPECT_EQ(copies[1].bytes, 128u);
  EXPECT_GE(copies[0].duration_ns, 2'000'000u);
  EXPECT_EQ(copies[1].duration_ns, 0u) << "the call's time is reported once";
  EXPECT_EQ(copies[0].stream, copies[2].stream);
}

#if defined(MILLPOND_PYTHON)
TEST_F(program_test, in_python_shows_its_own_lines) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "an interpreter without the sanitizer's runtime loads no library that needs it";
#endif
  launch_request request;
  request.how.path = path("program.mpt");
  request.how.python = true;
  request.library = MILLPOND_RECORD_LIBRARY;
  const char* python =
      std::getenv("MILLPOND_TEST_PYTHON");  // another interpreter than the one that was found
  request.command = {python != nullptr ? python : MILLPOND_PYTHON, MILLPOND_RECORDED_SCRIPT,
                     MILLPOND_RECORDED_LIBRARY};
  const auto outcome = launch(request);
  ASSERT_TRUE(outcome) << outcome.error().message;
  ASSERT_EQ(outcome->traces.size(), 1u);
  trace::trace_info info;
  const auto events = read_all(outcome->traces[0], &info);
  ASSERT_EQ(events.size(), 5u);
  const auto python_frames_of = [&](const trace::event& at) {
    std::vector<std::string> made;
    for (const trace::frame& each : info.stacks.at(at.stack)) {
      const std::string file(info.strings.at(each.file));
      if (!file.ends_with(".py")) continue;
      made.push_back(std::string(info.strings.at(each.symbol)) + ' ' +
                     file.substr(file.rfind('/') + 1) + ':' + std::to_string(each.line));
    }
    return made;
  };
  using testing::ElementsAre;
  for (std::size_t n = 0; n < 3; ++n) {
    EXPECT_THAT(python_frames_of(events[n]),
                ElementsAre("weights recorded_script.py:10", "<module> recorded_script.py:26"));
    EXPECT_EQ(events[n].stack, events[0].stack)
        << "places in the interpreter's own code make no other stack";
  }
  EXPECT_THAT(python_frames_of(events[3]),
              ElementsAre("Cache.grow recorded_script.py:15", "Cache.steps recorded_script.py:21",
                          "<module> recorded_script.py:27"));
  EXPECT_THAT(python_frames_of(events[4]),
              ElementsAre("<module> generated.py:4", "<module> recorded_script.py:28"));
  const trace::frame inner = info.stacks.at(events[0].stack).front();
  EXPECT_NE(info.strings.at(inner.symbol).find("recorded_allocate"), std::string_view::npos)
      << "the native frames come first";
}
#endif

TEST_F(program_test, of_an_unknown_python_has_native_frames_and_says_so) {
  const launch_outcome outcome = record("", [](settings& how) { how.python = true; });
  trace::trace_info info;
  const auto events = read_all(outcome.traces.at(0), &info);
  ASSERT_FALSE(events.empty());
  EXPECT_FALSE(info.stacks.at(events[0].stack).empty());
  const auto said = std::ranges::find(info.meta.notes, "python_frames",
                                      &std::pair<std::string, std::string>::first);
  ASSERT_NE(said, info.meta.notes.end());
  EXPECT_NE(said->second.find("CPython 3.14"), std::string::npos) << said->second;
}

TEST_F(program_test, that_pauses_is_not_seen_until_it_resumes) {
  const launch_outcome outcome = record("pause");
  EXPECT_EQ(outcome.exit_status, 0);
  trace::trace_info info;
  const auto events = read_all(outcome.traces.at(0), &info);
  ASSERT_EQ(events.size(), 24u);
  EXPECT_EQ(events.back().bytes, 1u << 21);
  bool paused = false;
  for (const auto& [name, value] : info.meta.notes) {
    EXPECT_NE(name, "ended") << "a recording with gaps claims no leaks";
    paused = paused || name == "paused";
  }
  EXPECT_TRUE(paused) << "who reads it must know of the gaps";
}

TEST_F(program_test, stops_at_its_limit_of_size_and_keeps_what_was_written) {
  const launch_outcome outcome = record("many", [](settings& how) { how.most_bytes = 100'000; });
  EXPECT_EQ(outcome.exit_status, 0);
  trace::trace_info info;
  const auto events = read_all(outcome.traces.at(0), &info);
  EXPECT_GT(events.size(), 1000u);
  EXPECT_EQ(info.status, trace::read_status::complete);
  // On a busy machine the ring may drop so many that the limit is never reached.
  if (events.size() + info.meta.dropped_events < 400'023) {
    EXPECT_NE(
        std::ranges::find(info.meta.notes, "limit", &std::pair<std::string, std::string>::first),
        info.meta.notes.end());
  }
}

// Reads the recording of a program that still runs until `enough`; then ends the program.
class endless_test : public program_test {
 protected:
  trace::trace_info look_while_it_runs(
      const std::function<void(settings&)>& change,
      const std::function<bool(const trace::trace_info&, std::size_t)>& enough) {
    launch_outcome outcome;
    std::thread runs([&] { outcome = record("endless", change); });
    trace::trace_info info;
    std::string process;
    for (int left = 600; left > 0; --left) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      trace::trace_info now;
      std::size_t events = 0;
      auto source = trace::open_trace(path("program.mpt"));
      if (!source || !source->for_each([&](const trace::event&) { ++events; })) continue;
      now = source->take_info();
      for (const auto& [name, value] : now.meta.notes) {
        if (name == "process") process = value;
      }
      info = std::move(now);
      if (enough(info, events)) {
        good_ = true;
        break;
      }
    }
    if (!process.empty()) kill(std::stoi(process), SIGKILL);
    runs.join();
    EXPECT_EQ(outcome.signal, SIGKILL) << "the program went on until it was killed";
    return info;
  }
  bool good_ = false;
};

TEST_F(endless_test, a_program_that_never_ends_can_be_read_while_it_runs) {
  std::size_t first = 0;
  look_while_it_runs({}, [&](const trace::trace_info&, std::size_t events) {
    if (first == 0) first = events;
    return first > 23 && events > first;
  });
  EXPECT_TRUE(good_) << "the file grows while the program runs";
}

TEST_F(endless_test, stops_at_its_limit_of_time_and_the_program_goes_on) {
  const auto info = look_while_it_runs(
      [](settings& how) { how.most_ns = 100'000'000; },
      [](const trace::trace_info& now, std::size_t) {
        return std::ranges::any_of(now.meta.notes, [](const auto& each) {
          return each.first == "limit" && each.second.find("time") != std::string::npos;
        });
      });
  EXPECT_TRUE(good_) << "a limit that was reached is in the file while the program still runs";
}

TEST_F(program_test, counts_what_a_small_ring_drops) {
  const launch_outcome outcome = record("many", [](settings& how) { how.ring_cells = 16; });
  trace::trace_info info;
  const auto events = read_all(outcome.traces.at(0), &info);
  EXPECT_GT(info.meta.dropped_events, 0u);
  for (const auto& [name, value] : info.meta.notes)
    EXPECT_NE(name, "ended") << "a recording with holes claims no leaks";
}

TEST_F(program_test, that_is_not_there_is_an_error) {
  launch_request request;
  request.how.path = path("program.mpt");
  request.library = MILLPOND_RECORD_LIBRARY;
  request.command = {"/no/such/program"};
  const auto made = launch(request);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, error_code::bad_input);
  request.library = "/no/such/library.so";
  EXPECT_EQ(launch(request).error().code, error_code::not_supported);
}
#endif

}  // namespace
}  // namespace millpond::record
