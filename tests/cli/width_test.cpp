// What is printed where no terminal says how wide it is fits 80 columns, for every subcommand that
// reads the repository's data.
#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "cli/command.hpp"
#include "report/table.hpp"
#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

class width : public command_run {
 protected:
  // Lines that cannot be broken: code to copy and frames of call stacks, which are set in further
  // than text, and single words.
  static bool whole(const std::string& line) {
    const std::size_t text = line.find_first_not_of(' ');
    return text >= 7 || line.find(' ', text) == std::string::npos;
  }
  static std::vector<std::string> too_long(const std::string& text) {
    std::vector<std::string> found, lines;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);) lines.push_back(line);
    for (std::size_t n = 0; n < lines.size(); ++n) {
      if (report::columns_of(lines[n]) > report::text_columns && !whole(lines[n]))
        found.push_back(lines[n]);
    }
    // A table has a line of dashes under its heads; none of its rows is an exception.
    for (std::size_t n = 1; n < lines.size(); ++n) {
      if (lines[n].size() < 20 || lines[n].find_first_not_of('-') != std::string::npos) continue;
      for (std::size_t row = n - 1; row < lines.size() && !lines[row].empty(); ++row) {
        if (report::columns_of(lines[row]) > report::text_columns) found.push_back(lines[row]);
      }
    }
    return found;
  }
  void expect_fits(const std::string& arguments) const {
    const answer made = millpond(arguments);
    EXPECT_TRUE(made.status == 0 || made.status == 1)
        << arguments << ": " << made.status << " " << made.err;
    EXPECT_FALSE(made.out.empty()) << arguments;
    EXPECT_THAT(too_long(made.out), ::testing::IsEmpty()) << arguments;
  }
  std::string page() const { return (folder_ / "page.html").string(); }
};

TEST_F(width, what_is_too_long_is_noticed) {
  const std::string over(85, 'x');
  EXPECT_THAT(too_long("ab " + over + "\n"), ::testing::SizeIs(1));
  EXPECT_THAT(too_long("       code " + over + "\n" + over + "\n"), ::testing::IsEmpty());
  EXPECT_THAT(too_long("head\n" + std::string(30, '-') + "\n         " + over + "\n"),
              ::testing::SizeIs(1));
}

TEST_F(width, of_each_workload_compared_and_replayed) {
  for (const char* name : {"inference", "churn", "training", "llm", "recompute", "detection",
                           "diffusion", "experts", "streams"}) {
    expect_fits(std::string("compare --gpu sim --rounds 2 --length 5 --workload ") + name);
    expect_fits(std::string("replay --gpu sim --length 5 --strategy driver-pool-kept --workload ") +
                name);
  }
}

TEST_F(width, of_each_recording_under_every_subcommand) {
  for (const char* name :
       {"bert_varlen", "gpt2_generate", "llama_train", "multistream_serving", "resnet_serving"}) {
    const std::string file = trace(name);
    for (const std::string& before :
         {std::string("explain "), std::string("plan --no-compare --time-limit 0.2 "),
          "report -o " + page() + " "}) {
      expect_fits(before + file);
    }
  }
  expect_fits("compare --gpu sim --no-touch " + trace("resnet_serving"));
  expect_fits("plan --gpu sim --time-limit 0.2 " + trace("multistream_serving"));
  expect_fits("report --replay --gpu sim -o " + page() + " " + trace("multistream_serving") + " " +
              trace("resnet_serving"));
}

TEST_F(width, of_each_faulty_program) {
  std::size_t files = 0;
  for (const auto& each : std::filesystem::directory_iterator(
           std::filesystem::path(MILLPOND_SOURCE_DIR) / "data/traces/faulty")) {
    if (each.path().extension() != ".mpt") continue;
    ++files;
    for (const std::string& before :
         {std::string("explain "), std::string("top --once "), "report -o " + page() + " "}) {
      expect_fits(before + each.path().string());
    }
  }
  EXPECT_GE(files, 20u);
}

TEST_F(width, of_plans_and_of_the_machine) {
  const std::string plan = (folder_ / "plan.csv").string();
  expect_fits("plan --time-limit 1 -o " + plan + " " + MILLPOND_SOURCE_DIR +
              "/data/planning/A.1048576.csv");
  expect_fits("plan --check " + plan);
  expect_fits("doctor");
  expect_fits("doctor --gpu sim");
}

}  // namespace
}  // namespace millpond::cli
