// Which files a recording may write over, move and remove: its own, and nothing else.
#include "record/recording_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "record/launcher.hpp"
#include "record/lines.hpp"

namespace millpond::record {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class recording_file : public ::testing::Test {
 protected:
  recording_file() {
    std::string name = (fs::temp_directory_path() / "millpond_recording_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~recording_file() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // As the recorder of that process writes it.
  void write_recording(const char* name, const std::string& process,
                       const std::string& root = "1") const {
    trace::metadata meta;
    meta.notes = {{"process", process}, {"root_process", root}};
    trace::trace_writer writer(trace::make_file_sink(path(name)).value(), meta);
    ASSERT_TRUE(writer.close());
  }
  fs::path folder_;
};

TEST_F(recording_file, a_child_s_is_known_by_its_magic_and_by_the_process_that_it_names) {
  write_recording("python3.11.mpt", "77");  // a recording of python3.11, and of no child
  write_recording("python3.12.mpt", "12");
  write("python3.13.mpt", "a diary");
  fs::create_directory(folder_ / "python3.14.mpt");
  fs::create_symlink("python3.12.mpt", folder_ / "python3.15.mpt");
  ASSERT_EQ(mkfifo(path("python3.16.mpt").c_str(), 0600), 0);
  write_recording("python3.x.mpt", "12");
  EXPECT_THAT(recordings_of_children(path("python3.mpt")), ElementsAre(path("python3.12.mpt")));
}

TEST_F(recording_file, earlier_recordings_come_back_where_nothing_was_recorded) {
  write_recording("a.mpt", "5");
  write_recording("a.6.mpt", "6");
  write("a.7.mpt", "mine");
  write("a.mpt.before", "mine too");
  const std::string first = read("a.mpt"), child = read("a.6.mpt");
  {
    const earlier_recordings earlier(path("a.mpt"));
    EXPECT_FALSE(fs::exists(folder_ / "a.mpt"));
    EXPECT_FALSE(fs::exists(folder_ / "a.6.mpt"));
  }
  EXPECT_EQ(read("a.mpt"), first);
  EXPECT_EQ(read("a.6.mpt"), child);
  EXPECT_EQ(read("a.7.mpt"), "mine");
  EXPECT_EQ(read("a.mpt.before"), "mine too");
}

TEST_F(recording_file, earlier_recordings_go_when_there_is_a_new_one_and_nothing_else_does) {
  write_recording("a.mpt", "5");
  write("a.mpt.before", "mine");
  {
    earlier_recordings earlier(path("a.mpt"));
    write_recording("a.mpt", "8");
    earlier.replaced();
  }
  EXPECT_EQ(read_recording_facts(path("a.mpt"))->process, 8u);
  EXPECT_EQ(read("a.mpt.before"), "mine");
  EXPECT_FALSE(fs::exists(folder_ / "a.mpt.before-2"));
}

TEST_F(recording_file, is_not_written_over_what_is_none) {
  write("train.py", "print()");
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_THAT(find_recording_place(path("train.py")).error().message,
              HasSubstr("is no recording of millpond"));
  EXPECT_THAT(find_recording_place(path("pipe")).error().message, HasSubstr("is a pipe"));
  EXPECT_THAT(find_recording_place(path("loop")).error().message, HasSubstr("circle"));
  EXPECT_THAT(find_recording_place(folder_.string()).error().message, HasSubstr("is a folder"));
  EXPECT_FALSE(make_recording_sink(path("train.py"), 0644));
  EXPECT_EQ(read("train.py"), "print()");
  fs::create_symlink("train.py", folder_ / "link");
  EXPECT_FALSE(make_recording_sink(path("link"), 0644)) << "a planted link is not followed";
}

TEST_F(recording_file, goes_where_a_link_leads_and_keeps_the_mode_that_is_there) {
  write_recording("real.mpt", "5");
  ASSERT_EQ(chmod(path("real.mpt").c_str(), 0600), 0);
  fs::create_symlink("real.mpt", folder_ / "link.mpt");
  const auto place = find_recording_place(path("link.mpt"));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->path, fs::canonical(folder_ / "real.mpt").string());
  EXPECT_EQ(place->mode, 0600u);
}

TEST_F(recording_file, a_module_that_is_a_pipe_is_not_waited_for) {
  ASSERT_EQ(mkfifo(path("module").c_str(), 0600), 0);
  EXPECT_FALSE(has_line_table(path("module")));
  const auto frames = with_lines({{"f (+0x10)", path("module"), 0}});
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].symbol, "f (+0x10)");
}

#if defined(MILLPOND_HAS_RECORDER)
class recording_run : public recording_file {
 protected:
  launch_outcome record(const std::string& name, const std::vector<std::string>& command) {
    launch_request request;
    request.how.path = path(name);
    request.library = MILLPOND_RECORD_LIBRARY;
    request.command = command;
    if (started_) request.started = started_;
    auto made = launch(request);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *made : launch_outcome{};
  }
  std::function<void(int)> started_;
};

TEST_F(recording_run, touches_nothing_that_no_recording_under_its_name_wrote) {
  write_recording("python3.11.mpt", "77");
  write("log.1", "log1");
  fs::create_directory(folder_ / "log.7");
  write("python3.mpt.before", "mine");
  const std::string other = read("python3.11.mpt");
  EXPECT_EQ(record("python3.mpt", {MILLPOND_RECORDED_PROGRAM, "leak"}).traces.size(), 1u);
  EXPECT_EQ(record("python3.mpt", {MILLPOND_RECORDED_PROGRAM, "leak"}).traces.size(), 1u);
  EXPECT_EQ(record("log", {MILLPOND_RECORDED_PROGRAM, "leak"}).traces.size(), 1u);
  EXPECT_EQ(read("python3.11.mpt"), other);
  EXPECT_EQ(read("log.1"), "log1");
  EXPECT_TRUE(fs::is_directory(folder_ / "log.7"));
  EXPECT_EQ(read("python3.mpt.before"), "mine");
}

TEST_F(recording_run, keeps_the_mode_of_the_recording_that_it_replaces) {
  write_recording("a.mpt", "5");
  ASSERT_EQ(chmod(path("a.mpt").c_str(), 0600), 0);
  const auto outcome = record("a.mpt", {MILLPOND_RECORDED_PROGRAM, "leak"});
  ASSERT_EQ(outcome.traces.size(), 1u);
  ASSERT_TRUE(add_lines(outcome.traces[0]));
  struct stat found{};
  ASSERT_EQ(stat(path("a.mpt").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(recording_run, a_signal_goes_to_the_program_and_the_recording_is_finished) {
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    write_recording("a.mpt", "5");
    std::thread sender;
    started_ = [&](int process) {
      sender = std::thread([this, process, signal] {
        // When it records; then to us alone, as `kill` does.
        for (int left = 400; left > 0; --left) {
          const auto facts = read_recording_facts(path("a.mpt"));
          if (facts && facts->process == static_cast<std::uint64_t>(process)) break;
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        kill(getpid(), signal);
      });
    };
    const auto outcome = record("a.mpt", {MILLPOND_RECORDED_PROGRAM, "endless"});
    sender.join();
    EXPECT_EQ(outcome.signal, signal);
    EXPECT_THAT(outcome.traces, ElementsAre(fs::canonical(folder_ / "a.mpt").string()));
    EXPECT_FALSE(fs::exists(folder_ / "a.mpt.before")) << "nothing is left aside";
  }
}

TEST_F(recording_run, into_a_pipe_is_refused_before_the_program_runs) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  launch_request request;
  request.how.path = path("pipe");
  request.library = MILLPOND_RECORD_LIBRARY;
  request.command = {"touch", path("ran")};
  const auto made = launch(request);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, error_code::output_failure);
  EXPECT_FALSE(fs::exists(folder_ / "ran"));
}
#endif

}  // namespace
}  // namespace millpond::record
