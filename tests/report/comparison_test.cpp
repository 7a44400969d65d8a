#include "report/comparison.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "millpond/base/units.hpp"
#include "report/table.hpp"

namespace millpond::report {
namespace {

using testing::HasSubstr;

comparison example() {
  comparison made;
  made.from.gpu_name = "simulated h200";
  made.from.simulated = true;
  made.from.why_simulated =
      "libcuda.so.1 was not found on this machine, so no driver could be opened";
  made.trace.name = "a_recording_with_a_name_that_is_rather_long_for_one_line.csv.gz";
  made.trace.events = 26'638;
  made.trace.peak_live_bytes = 835'412'040;
  for (const auto& [name, copies] : {std::pair{"driver-pool-kept", replay::staging::pageable},
                                     std::pair{"millpond-pool", replay::staging::pinned}}) {
    replay::outcome one;
    one.strategy = name;
    one.copies = copies;
    for (int i = 1; i <= 100; ++i) {
      one.allocate.add(i * 24'139'000.0);
      one.free.add(i * 10.0);
      one.step.add(i * 1000.0);
    }
    one.allocator_ns = one.allocate.sum_ns();
    one.peak_reserved_bytes = 2 * GiB;
    one.peak_live_bytes = GiB;
    one.device_waits = 1'234'567;
    one.device_wait_ns = 1e10;
    made.outcomes.push_back(one);
  }
  made.choice = {"millpond-pool/pinned",
                 "because it says so in a sentence that is long enough to be broken",
                 {}};
  return made;
}

TEST(comparison_text, fits_eighty_columns_and_says_simulated) {
  const std::string text = comparison_text(example());
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(text, HasSubstr("SIMULATED"));
  EXPECT_THAT(text, HasSubstr("driver-pool-kept/pageable"));
  EXPECT_THAT(text, HasSubstr("Use millpond-pool/pinned: "));
}

TEST(comparison_text, a_card_is_not_called_simulated) {
  comparison made = example();
  made.from.simulated = false;
  made.from.gpu_name = "NVIDIA H200";
  EXPECT_EQ(comparison_text(made).find("SIMULATED"), std::string::npos);
}

TEST(comparison_json, has_the_keys_that_programs_read) {
  const auto made = nlohmann::json::parse(comparison_json(example()));
  EXPECT_EQ(made["gpu"]["name"], "simulated h200");
  EXPECT_EQ(made["gpu"]["simulated"], true);
  EXPECT_EQ(made["trace"]["events"], 26'638);
  EXPECT_EQ(made["trace"]["peak_live_bytes"], 835'412'040);
  ASSERT_EQ(made["strategies"].size(), 2u);
  for (const auto& each : made["strategies"]) {
    for (const char* which : {"allocate_us", "free_us"}) {
      for (const char* key : {"p50", "p99", "max"})
        EXPECT_TRUE(each[which][key].is_number()) << which << key;
    }
    for (const char* key : {"allocator_total_us", "device_waits", "peak_reserved_bytes",
                            "reserved_ratio", "failures"}) {
      EXPECT_TRUE(each[key].is_number()) << key;
    }
    EXPECT_TRUE(each["name"].is_string());
  }
  EXPECT_EQ(made["recommendation"]["strategy"], "millpond-pool/pinned");
  EXPECT_TRUE(made["recommendation"]["why"].is_string());
}

TEST(comparison_json, a_name_that_is_not_utf8_still_gives_a_document) {
  comparison made = example();
  made.trace.name = "broken\xff\xfename";
  EXPECT_TRUE(nlohmann::json::accept(comparison_json(made)));
}

TEST(table, numbers_are_grouped_and_short) {
  EXPECT_EQ(grouped(7), "7");
  EXPECT_EQ(grouped(26'638), "26,638");
  EXPECT_EQ(grouped(1'234'567), "1,234,567");
  EXPECT_EQ(microseconds(320), "0.32");
  EXPECT_EQ(microseconds(45'120), "45.1");
  EXPECT_EQ(microseconds(24'139'000), "24139");
  EXPECT_EQ(microseconds(2.414e9), "2414k");
  EXPECT_EQ(microseconds(1.5e10), "15M");
}

TEST(table, fits_80_columns_by_its_gaps_and_then_by_its_names) {
  const auto widest = [](const std::string& text) {
    std::size_t most = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) most = std::max(most, columns_of(line));
    return most;
  };
  const std::string number(10, '7');
  table gaps({"name", "a", "b", "c", "d", "e"});
  gaps.add({"a-name-of-twenty-two-c", number, number, number, number, number});
  EXPECT_THAT(gaps.text(), HasSubstr("\na-name-of-twenty-two-c 7777777777 "));
  EXPECT_EQ(widest(gaps.text()), 77u);
  EXPECT_EQ(widest(gaps.text(120)), 82u);

  table names({"name", "a", "b", "c", "d"});
  const std::string long_name = "the/beginning/of/a/name/that/is/far/too/long/and/the/end";
  names.add({long_name, number, number, number, number});
  names.add({"µs-is-one-column-less-than-bytes", number, number, number, number});
  const std::string made = names.text();
  EXPECT_EQ(widest(made), 80u);
  EXPECT_THAT(made, AllOf(HasSubstr("\nthe/beginning/of"), HasSubstr(".."),
                          HasSubstr("/and/the/end 7777777777")));
  EXPECT_THAT(names.text(200), HasSubstr(long_name + "  "));
}

TEST(table, sentences_are_broken_at_spaces) {
  EXPECT_EQ(wrapped("of 972 MiB live", 9, 1), "of\n 972 MiB\n live");
  EXPECT_EQ(wrapped("of 972 blocks", 9, 1), "of 972\n blocks");
  EXPECT_EQ(wrapped("µµµ µµµ", 7, 2), "µµµ µµµ");
  EXPECT_THAT(paragraph("note  ", std::string(60, 'x') + " " + std::string(30, 'y')),
              HasSubstr("x\n      yyy"));
  EXPECT_EQ(counted(1, "copy", "copies") + counted(1200, "copy", "copies"), "1 copy1,200 copies");
  EXPECT_EQ(wrapped("one two three", 8, 2), "one two\n  three");
  EXPECT_EQ(wrapped("unbreakablelongword", 5, 2), "unbreakablelongword");
}

}  // namespace
}  // namespace millpond::report
