// explain, diff, advise and record as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

using testing::HasSubstr;

class diagnosis : public command_run {
 protected:
  answer run(const std::string& arguments) const { return millpond_here(arguments); }
};

const char* const clean =
    "action,time_us,addr,size,stream\nalloc,0,1000,512,0\nfree_requested,5,1000,512,0\nfree_"
    "completed,5,1000,512,0\n";
const char* const twice =
    "action,time_us,addr,size,stream\nalloc,0,1000,512,0\nfree_requested,5,1000,512,0\nfree_"
    "requested,6,1000,512,0\n";

TEST_F(diagnosis, of_recorded_inference_is_its_fragmentation_with_status_1) {
  const answer got = run("explain " + trace("resnet_serving"));
  EXPECT_EQ(got.status, 1) << got.err;
  EXPECT_THAT(got.out, HasSubstr("1. [waste] fragmentation"));
  EXPECT_THAT(got.out, HasSubstr("peak 1.45 GiB -> 797 MiB"));
  EXPECT_THAT(got.out, HasSubstr("1 finding found"));
}

TEST_F(diagnosis, of_a_clean_trace_is_nothing_with_status_0) {
  const answer got = run("explain " + write("clean.csv", clean));
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("nothing found"));
}

TEST_F(diagnosis, in_json_has_every_part_of_a_finding) {
  const answer got = run("explain --json " + write("twice.csv", twice));
  EXPECT_EQ(got.status, 1);
  const auto made = nlohmann::json::parse(got.out);
  ASSERT_EQ(made["findings"].size(), 1u);
  const auto& finding = made["findings"][0];
  EXPECT_EQ(finding["name"], "double_free");
  EXPECT_EQ(finding["severity"], "error");
  for (const char* key : {"title", "drgpum_pattern", "summary", "count", "bytes", "time_us",
                          "time_after_us", "time_estimated", "peak_bytes", "peak_after_bytes",
                          "call_sites", "events", "seen", "remedy"}) {
    EXPECT_TRUE(finding.contains(key)) << key;
  }
  EXPECT_EQ(finding["events"], nlohmann::json({1, 2}));
}

TEST_F(diagnosis, of_what_is_no_trace_says_so_with_status_3) {
  EXPECT_EQ(run("explain /no/such/file").status, 3);
  const answer got = run("explain " + write("poem.txt", "calm as a millpond\n"));
  EXPECT_EQ(got.status, 3);
  EXPECT_THAT(got.err, HasSubstr("poem.txt"));
  EXPECT_EQ(run("explain").status, 2);
}

TEST_F(diagnosis, of_several_traces_gives_the_worst_status) {
  EXPECT_EQ(run("explain " + write("a.csv", clean) + " " + write("b.csv", twice)).status, 1);
}

TEST_F(diagnosis, of_several_traces_in_json_is_one_document) {
  const answer got = run("explain --json " + write("a.csv", clean) + " " + write("b.csv", twice));
  EXPECT_EQ(got.status, 1);
  const auto made = nlohmann::json::parse(got.out);
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[1]["findings"][0]["name"], "double_free");
}

TEST_F(diagnosis, of_a_recording_cut_before_its_first_event_is_no_clean_bill) {
  const std::string whole =
      read_all(std::string(MILLPOND_SOURCE_DIR) + "/data/traces/faulty/device_wide_stall.mpt");
  const answer got = run("explain " + write("cut.mpt", whole.substr(0, 200)));
  EXPECT_EQ(got.status, 3) << got.out << got.err;
}

TEST_F(diagnosis, a_full_disk_behind_the_output_is_reported) {
  const answer got = run("doctor --gpu sim --json >/dev/full; exit $?; true");
  EXPECT_EQ(got.status, 2);
}

TEST_F(diagnosis, committed_faulty_traces_each_give_their_finding_with_its_line) {
  const std::filesystem::path faulty =
      std::filesystem::path(MILLPOND_SOURCE_DIR) / "data/traces/faulty";
  std::ifstream expectations(std::string(MILLPOND_SOURCE_DIR) + "/tests/programs/expectations.txt");
  std::size_t seen = 0;
  for (std::string line; std::getline(expectations, line);) {
    const auto colon = line.find(':');
    if (line.starts_with('#') || colon == std::string::npos) continue;
    const std::string name = line.substr(0, colon), expected = line.substr(colon + 2);
    if (!std::filesystem::exists(faulty / (name + ".mpt"))) continue;
    ++seen;
    const answer got = run("explain --json " + (faulty / (name + ".mpt")).string());
    EXPECT_EQ(got.status, 1) << name;
    const auto made = nlohmann::json::parse(got.out);
    ASSERT_EQ(made["findings"].size(), 1u) << name << ": " << got.out;
    EXPECT_EQ(made["findings"][0]["name"], expected);
    EXPECT_THAT(got.out, HasSubstr(name + ".cu")) << "the call site in the program";
  }
  EXPECT_GE(seen, 28u) << "recorded on an H200, one a program of tests/programs";
}

TEST_F(diagnosis, diff_tells_better_from_worse_by_its_status) {
  const std::string small = trace("resnet_serving"), large = trace("bert_varlen");
  EXPECT_EQ(run("diff " + small + " " + small).status, 0);
  const answer got = run("diff --json " + small + " " + large);
  EXPECT_EQ(got.status, 1) << got.err;
  const auto made = nlohmann::json::parse(got.out);
  EXPECT_TRUE(made["regressed"]);
  EXPECT_EQ(made["measures"][0]["before"], 835412040);
  EXPECT_EQ(run("diff " + small + " /no/such/file").status, 3);
  EXPECT_EQ(run("diff " + small + " " + small + " --least much").status, 2);
}

TEST_F(diagnosis, advise_replays_and_names_a_strategy) {
  const answer got = run("advise --gpu sim --json " + trace("resnet_serving"));
  EXPECT_EQ(got.status, 0) << got.err;
  const auto made = nlohmann::json::parse(got.out);
  EXPECT_EQ(made["strategy"], "millpond-pool");
  EXPECT_THAT(made["gpu"].get<std::string>(), HasSubstr("simulated"));
  EXPECT_FALSE(made["call_sites"].empty());
}

TEST_F(diagnosis, record_of_a_program_without_cuda_says_that_nothing_was_recorded) {
  const answer got = run("record -o none.mpt -- /bin/true");
  EXPECT_EQ(
      got.status,
      std::filesystem::exists(std::string(MILLPOND_BINARY_DIR) + "/libmillpond_record.so") ? 3 : 4)
      << got.err;
  EXPECT_THAT(got.err, HasSubstr("record"));
  EXPECT_EQ(run("record").status, 2);
}

TEST_F(diagnosis, record_keeps_an_earlier_recording_until_it_has_another) {
  if (!std::filesystem::exists(std::string(MILLPOND_BINARY_DIR) + "/libmillpond_record.so"))
    GTEST_SKIP() << "built without the recorder";
  const std::string recording =
      read_all(std::string(MILLPOND_SOURCE_DIR) + "/data/traces/faulty/leak.mpt");
  const std::string earlier = write("old.mpt", recording), child = write("old.1.mpt", recording);
  for (const char* program : {"/no/such/program", "/bin/true"}) {
    EXPECT_EQ(run(std::string("record -o old.mpt -- ") + program).status, 3) << program;
    EXPECT_EQ(read_all(earlier), recording) << program;
    EXPECT_EQ(read_all(child), recording) << program;
  }
  const answer got = run("record -o /no/such/folder/x.mpt -- /bin/true");
  EXPECT_EQ(got.status, 2);
  EXPECT_THAT(got.err, HasSubstr("/no/such/folder"));
}

}  // namespace
}  // namespace millpond::cli
