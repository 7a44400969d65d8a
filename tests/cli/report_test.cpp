// `millpond report` run as a user runs it: what it writes, and what it answers to bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "report/page.hpp"
#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class report_command : public command_run {
 protected:
  void SetUp() override {
    if (report::embedded_page_files().d3.empty()) GTEST_SKIP() << "built without D3";
  }

  answer run(const std::string& arguments) const { return millpond_here("report " + arguments); }
};

TEST_F(report_command, writes_a_page_under_twenty_megabytes) {
  const answer got = run(trace("gpt2_generate") + " -o page.html");
  EXPECT_EQ(got.status, 0) << got.err;
  // Where lines break depends on how long the path is.
  std::string said;
  for (const char each : got.out) {
    if (each == '\n')
      said += ' ';
    else if (each != ' ' || !said.ends_with(' '))
      said += each;
  }
  EXPECT_THAT(said, HasSubstr("97,715 events, 97,715 of them one by one"));
  EXPECT_LT(std::filesystem::file_size(folder_ / "page.html"), 20'000'000u);
  EXPECT_THAT(read_all(folder_ / "page.html"), StartsWith("<!DOCTYPE html>"));
}

TEST_F(report_command, does_not_write_over_what_it_reads) {
  const std::string own = write("own.csv", "action,time_us,addr,size,stream\nalloc,0,1000,512,0\n");
  const answer got = run(own + " --format csv -o own.csv");
  EXPECT_EQ(got.status, 2);
  EXPECT_THAT(got.err, HasSubstr("overwrite"));
  EXPECT_THAT(read_all(own), HasSubstr("alloc,0,1000,512,0"));
}

TEST_F(report_command, json_is_what_the_page_carries) {
  const answer got = run(trace("multistream_serving") + " --json");
  EXPECT_EQ(got.status, 0) << got.err;
  const auto whole = nlohmann::json::parse(got.out);
  EXPECT_EQ(whole["traces"][0]["blocks"]["count"], whole["traces"][0]["allocations"]);
}

TEST_F(report_command, formats_for_other_tools_can_be_read_again) {
  const std::string from = trace("multistream_serving");
  EXPECT_EQ(run(from + " --format csv -o back.csv").status, 0);
  EXPECT_EQ(run(from + " --format pytorch -o back.pickle").status, 0);
  EXPECT_EQ(run(from + " --format perfetto -o back.json").status, 0);
  EXPECT_TRUE(nlohmann::json::accept(read_all(folder_ / "back.json")));
  const auto blocks = [&](const std::string& path) {
    return nlohmann::json::parse(run(path + " --json").out)["traces"][0]["allocations"];
  };
  EXPECT_EQ(blocks("back.csv"), blocks(from));
  EXPECT_EQ(blocks("back.pickle"), blocks(from));
}

TEST_F(report_command, bad_input_is_answered_with_its_status) {
  const std::string good = trace("multistream_serving");
  std::ofstream(folder_ / "bad.csv") << "action,time_us,addr,size,stream\nalloc,1,zz,1,0\n";
  std::ofstream(folder_ / "empty.csv") << "action,time_us,addr,size,stream\n";
  struct one {
    std::string arguments;
    int status;
    const char* says;
  };
  for (const one& each :
       {one{"nowhere.csv -o a.html", 3, "nowhere.csv"}, one{"bad.csv -o a.html", 3, "expected"},
        one{"empty.csv -o a.html", 3, "expected events, found none"},
        one{good + " --format csv", 2, "needs -o FILE"},
        one{good + " -o nowhere/a.html", 2, "nowhere/a.html"},
        one{good + " --from x -o a.html", 2, "found `x`"},
        one{good + " --from 9s -o a.html", 2, "--from and --to"},
        one{good + " --format word -o a", 2, "--format"},
        one{good + " --format csv --replay -o a.csv", 2, "--format html"},
        one{"-o a.html", 2, "TRACE"},
        one{good + " " + good + " --format csv -o a.csv", 2, "takes one trace"}}) {
    const answer got = run(each.arguments);
    EXPECT_EQ(got.status, each.status) << each.arguments << '\n' << got.err;
    EXPECT_THAT(got.err, HasSubstr(each.says)) << each.arguments;
  }
}

}  // namespace
}  // namespace millpond::cli
