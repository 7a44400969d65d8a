// Every program of this folder, recorded on the simulated GPU and explained: each planted fault is
// found, with nothing else, and the near misses give nothing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "advise/explain.hpp"
#include "programs/shim/shim.hpp"
#include "report/explanation.hpp"
#include "trace/source.hpp"

namespace millpond {
namespace {

struct expectation {
  std::string program;
  std::vector<std::string> findings;
};

std::vector<expectation> expectations() {
  std::vector<expectation> made;
  std::ifstream file(std::string(MILLPOND_SOURCE_DIR) + "/tests/programs/expectations.txt");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (line.empty() || line[0] == '#' || colon == std::string::npos) continue;
    std::istringstream rest(line.substr(colon + 1));
    expectation faulty{line.substr(0, colon), {}};
    for (std::string finding; rest >> finding;) faulty.findings.push_back(finding);
    made.push_back({faulty.program + "_clean", {}});
    made.push_back(std::move(faulty));
  }
  return made;
}

class programs_test : public ::testing::TestWithParam<expectation> {};

TEST_P(programs_test, gives_what_is_expected_and_nothing_else) {
  const expectation& of = GetParam();
  ASSERT_TRUE(shim_programs().contains(of.program));
  const auto path = std::filesystem::temp_directory_path() /
                    ("millpond_" + of.program + std::to_string(getpid()) + ".mpt");
  EXPECT_EQ(shim_run(of.program, path.string()), 0);
  auto source = trace::open_trace(path.string());
  ASSERT_TRUE(source) << source.error().message;
  const auto made = advise::explain(*source);
  ASSERT_TRUE(made) << made.error().message;
  std::vector<std::string> found;
  for (const advise::finding& each : made->findings) {
    const std::string name = advise::facts_of(each.which).name;
    if (std::ranges::find(found, name) == found.end()) found.push_back(name);
    EXPECT_FALSE(each.remedy.empty()) << name;
    EXPECT_FALSE(each.events.empty()) << name;
  }
  EXPECT_EQ(found, of.findings) << report::explanation_text(*made, source->info());
  EXPECT_EQ(source->info().meta.dropped_events, 0u);
  std::filesystem::remove(path);
}

TEST(programs, are_at_least_forty_and_half_of_them_clean) {
  const auto all = expectations();
  EXPECT_GE(all.size(), 40u);
  EXPECT_EQ(
      std::ranges::count_if(all, [](const expectation& each) { return each.findings.empty(); }) * 2,
      static_cast<std::ptrdiff_t>(all.size()));
  EXPECT_EQ(shim_programs().size(), all.size())
      << "a program without an expectation, or the other way round";
}

INSTANTIATE_TEST_SUITE_P(corpus, programs_test, ::testing::ValuesIn(expectations()),
                         [](const ::testing::TestParamInfo<expectation>& each) {
                           return each.param.program;
                         });

}  // namespace
}  // namespace millpond
