// `millpond top` without a terminal: a trace, a process, a program.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

using ::testing::HasSubstr;

class top : public command_run {
 protected:
  static std::string faulty(const char* name) {
    return std::string(MILLPOND_SOURCE_DIR) + "/data/traces/faulty/" + name + ".mpt";
  }
  std::string command() const { return std::string(MILLPOND_BINARY_DIR) + "/millpond"; }
  // Without CUPTI's headers there is no recorder, and then no program is started.
  static bool has_recorder() {
    return std::filesystem::exists(std::string(MILLPOND_BINARY_DIR) + "/libmillpond_record.so");
  }
};

TEST_F(top, shows_what_a_trace_says_until_now) {
  const answer made = millpond("top --once " + faulty("device_wide_stall"));
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("cudaFree"));
  EXPECT_THAT(made.out, HasSubstr("on_device < main device_wide_stall.cu:14"));
  std::istringstream lines(made.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST_F(top, ends_by_itself_where_the_trace_does) {
  const answer made = millpond("top --json --interval 0.1 " + faulty("leak"));
  EXPECT_EQ(made.status, 0) << made.err;
  std::istringstream lines(made.out);
  std::string last;
  for (std::string line; std::getline(lines, line);) last = line;
  const auto read = nlohmann::json::parse(last);
  EXPECT_EQ(read["state"], "ended");
  EXPECT_GT(read["kinds"]["device"]["live_bytes"], 0);
}

TEST_F(top, a_process_that_is_recorded_is_found_by_its_number) {
  // A process that has the recorder's settings and writes its trace, as a recorded program does; it
  // is still there.
  const std::string script =
      write("look.bash", "cd " + folder_.string() + "\nMILLPOND_RECORD='path=" + folder_.string() +
                             "/server.mpt' bash -c 'cp " + faulty("leak") +
                             " server.$$.mpt; exec sleep 60' &\nchild=$!\n" +
                             "for n in $(seq 200); do [ -s server.$child.mpt ] && break; sleep "
                             "0.05; done; sleep 0.2\n" +
                             command() +
                             " top --once --json $child >seen\ncode=$?\nkill $child\nexit $code\n");
  const int status = std::system(("bash " + script).c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const auto read = nlohmann::json::parse(read_all(folder_ / "seen"));
  EXPECT_GT(read["events"], 0);
  EXPECT_EQ(read["state"], "until now");
}

TEST_F(top, a_process_that_is_not_recorded_is_refused_with_what_to_do) {
  const answer made = millpond("top --once $$");
  EXPECT_EQ(made.status, 3);
  EXPECT_THAT(made.err, HasSubstr("is not being recorded"));
  EXPECT_THAT(made.err, HasSubstr("millpond top -- PROGRAM"));
  EXPECT_EQ(millpond("top 999999999").status, 3);
}

TEST_F(top, what_is_neither_is_reported) {
  EXPECT_THAT(millpond("top " + write("a.csv", "action,time_us,addr,size,stream\n")).err,
              HasSubstr("expected a trace of millpond"));
  EXPECT_EQ(millpond("top --once -- ./no/such/program").status, has_recorder() ? 3 : 4);
  EXPECT_EQ(millpond("top").status, 2);
}

#ifdef MILLPOND_RECORDED_PROGRAM
TEST_F(top, shows_the_run_of_a_program_and_ends_as_it_does) {
  const answer made =
      millpond_here("top --once --json -o kept.mpt -- " MILLPOND_RECORDED_PROGRAM " leak");
  EXPECT_EQ(made.status, 0) << made.err;
  const auto read = nlohmann::json::parse(made.out);
  EXPECT_EQ(read["kinds"]["device"]["live_bytes"], 1 << 21);
  EXPECT_EQ(read["kinds"]["device"]["allocations"], 12);
  EXPECT_THAT(read["call_sites"][0]["call_site"].get<std::string>(),
              HasSubstr("recorded_program.cpp:"));
  EXPECT_EQ(millpond_here("explain kept.mpt").status, 1) << "the trace is kept, and has a leak";
}
#endif

TEST_F(top, a_program_without_cuda_is_reported_so) {
  const answer made = millpond("top --once -- sh -c 'echo words; exit 4'");
  EXPECT_EQ(made.out, "");
  if (!has_recorder()) {
    EXPECT_EQ(made.status, 4);
    EXPECT_THAT(made.err, HasSubstr("libmillpond_record.so"));
    return;
  }
  EXPECT_EQ(made.status, 3);
  EXPECT_THAT(made.err, HasSubstr("nothing was recorded"));
  EXPECT_THAT(made.err, HasSubstr("words")) << "what the program prints goes to standard error";
}

}  // namespace
}  // namespace millpond::cli
