// millpond doctor on whatever machine the tests run on: the form of its answers, not their
// contents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.hpp"

namespace millpond::cli {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

struct answer {
  int status = 0;
  std::string out, err;
};

template <class... Words>
answer doctor(Words... words) {
  const std::array arguments{"millpond", "doctor", words...};
  std::ostringstream out, err;
  const int status = run_command(static_cast<int>(arguments.size()), arguments.data(), out, err);
  return {status, out.str(), err.str()};
}

TEST(doctor, answers_on_any_machine_within_eighty_columns) {
  const answer got = doctor();
  EXPECT_THAT(got.status, AnyOf(0, 1)) << got.err;
  for (const char* part : {"Driver\n", "Host\n", "memory", "huge pages"})
    EXPECT_THAT(got.out, HasSubstr(part));
  std::istringstream lines(got.out);
  for (std::string line; std::getline(lines, line);) {
    // A path or a command longer than a line is not broken.
    const bool one_word = line.find(' ', line.find_first_not_of(" ->")) == std::string::npos;
    EXPECT_TRUE(line.size() <= 80 || one_word) << line;
  }
}

TEST(doctor, gives_one_json_document_with_a_gpu_in_it) {
  const answer got = doctor("--json");
  const auto document = nlohmann::json::parse(got.out);
  EXPECT_TRUE(document["gpu"]["simulated"].is_boolean());
  EXPECT_FALSE(document["gpus"].empty());
  EXPECT_TRUE(document["host"]["kernel"].is_string());
  EXPECT_TRUE(document["driver"]["device_files"].is_array());
  bool faulty = false;
  for (const auto& finding : document["findings"]) {
    EXPECT_FALSE(finding["id"].get<std::string>().empty());
    faulty |= finding["severity"] != "note";
  }
  EXPECT_EQ(got.status, faulty ? 1 : 0);
}

TEST(doctor, shows_the_simulated_gpu_when_asked_and_says_that_it_is_one) {
  const answer got = doctor("--gpu", "sim");
  EXPECT_THAT(got.out, HasSubstr("As asked: simulated h200"));
  const auto document = nlohmann::json::parse(doctor("--gpu", "sim", "--json").out);
  EXPECT_EQ(document["gpu"]["simulated"], true);
}

TEST(doctor, refuses_what_it_cannot_read) {
  EXPECT_EQ(doctor("--pinned-budget", "lots").status, 2);
  EXPECT_EQ(doctor("--gpu", "4096").status, 4);
  EXPECT_EQ(doctor("--gpu", "sim:/nowhere.toml").status, 3);
}

}  // namespace
}  // namespace millpond::cli
