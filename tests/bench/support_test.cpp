#include <gtest/gtest.h>

#include "bench/support/result_file.hpp"
#include "bench/support/value.hpp"

namespace millpond::bench {
namespace {

TEST(result_file, a_dirty_tree_keeps_no_result_and_says_why) {
  const std::string why = why_not_kept("0123456789ab-dirty", {.out = "pairs.json"});
  EXPECT_NE(why.find("pairs.json: not written"), std::string::npos) << why;
  EXPECT_NE(why.find("0123456789ab-dirty"), std::string::npos) << why;
  EXPECT_NE(why.find("--scratch"), std::string::npos) << why;
}

TEST(result_file, a_commit_a_scratch_run_and_no_file_are_fine) {
  EXPECT_EQ(why_not_kept("0123456789ab", {.out = "pairs.json"}), "");
  EXPECT_EQ(why_not_kept("0123456789ab-dirty", {.out = "pairs.json", .scratch = true}), "");
  EXPECT_EQ(why_not_kept("0123456789ab-dirty", {}), "");
}

TEST(result_file, a_scratch_result_says_so_and_another_does_not) {
  EXPECT_EQ(result_of("pairs", {.out = "a", .scratch = true}).find("scratch")->json(), "true");
  EXPECT_EQ(result_of("pairs", {.out = "a"}).find("scratch"), nullptr);
  EXPECT_EQ(result_of("pairs", {}).find("commit")->text(), own_commit());
}

TEST(value, is_json_in_the_order_that_it_was_made) {
  value row{{"name", "b"}, {"count", 3u}, {"less", -2}, {"half", 0.5}, {"good", true}};
  row["inner"] = {{"p50", 1.25}, {"p99", std::uint64_t{1} << 63}};
  row["list"] = value::list({1, "two", value()});
  row["count"] = 4;
  EXPECT_EQ(row.json(), R"({"name":"b","count":4,"less":-2,"half":0.5,"good":true,)"
                        R"("inner":{"p50":1.25,"p99":9223372036854775808},"list":[1,"two",null]})");
  EXPECT_EQ(value::from_json(row.json()).json(), row.json());
}

TEST(value, numbers_are_found_by_name) {
  const value row{{"seconds", 2}, {"less", -3}, {"share", 0.25}, {"name", "a"}};
  EXPECT_EQ(row.find("seconds")->number(), 2);
  EXPECT_EQ(row.find("less")->number(), -3);
  EXPECT_EQ(row.find("share")->number(), 0.25);
  EXPECT_EQ(row.find("name")->number(), 0);
  EXPECT_EQ(row.find("none"), nullptr);
}

TEST(value, an_empty_object_and_an_empty_list_stay_what_they_are) {
  EXPECT_EQ(value::list().json(), "[]");
  EXPECT_EQ(value::from_json("{}").json(), "{}");
  EXPECT_EQ(value::from_json("[]").json(), "[]");
  EXPECT_EQ(value().json(), "null");
}

}  // namespace
}  // namespace millpond::bench
