// The built command, run as a user runs it: exit statuses, the JSON's keys, what it says of bad
// input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.hpp"
#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class command : public command_run {
 protected:
  answer run(const std::string& arguments) const { return millpond(arguments); }
};

TEST_F(command, without_arguments_is_usage) {
  const answer got = run("");
  EXPECT_EQ(got.status, 2);
  EXPECT_THAT(got.err, HasSubstr("--help"));
  for (const command_entry& each : all_commands())
    EXPECT_THAT(got.err, HasSubstr(each.name)) << "what there is is shown";
}

TEST_F(command, completion_offers_files_where_a_file_is_wanted_and_not_for_numbers_and_names) {
  const std::string bash = run("completion bash").out;
  for (const char* each : {"plan --time-limit", "compare --workload", "compare --strategy",
                           "diff --bytes", "report --from"})
    EXPECT_THAT(bash, HasSubstr("'" + std::string(each) + "') return ;;"));
  EXPECT_THAT(bash, HasSubstr("'plan --waits') COMPREPLY=($(compgen -f"));
  const std::string fish = run("completion fish").out;
  EXPECT_THAT(fish, HasSubstr("-l time-limit -x -d"));
  EXPECT_THAT(fish, HasSubstr("-l waits -r -d"));
}

TEST_F(command, a_prediction_is_not_taken_for_a_measurement) {
  const answer got = run("pages --size 1MiB --gpu 0");
  EXPECT_EQ(got.status, 2);
  EXPECT_THAT(got.err, HasSubstr("measures nothing on a card"));
}

TEST_F(command, help_shows_examples_for_each_subcommand) {
  const answer all = run("--help");
  EXPECT_EQ(all.status, 0);
  for (const command_entry& each : all_commands()) {
    EXPECT_THAT(all.out, HasSubstr(each.name));
    const answer one = run(std::string(each.name) + " --help");
    EXPECT_EQ(one.status, 0) << each.name;
    EXPECT_THAT(one.out, HasSubstr("Examples:"));
    EXPECT_THAT(one.out, HasSubstr("--json"));
    EXPECT_THAT(one.out, HasSubstr("--gpu"));
  }
}

TEST_F(command, version_names_the_commit_and_the_compiler) {
  const answer got = run("--version");
  EXPECT_EQ(got.status, 0);
  EXPECT_THAT(got.out, testing::MatchesRegex("millpond [0-9.]+ \\(.+, .+, .+\\)\n"));
}

TEST_F(command, a_mistyped_subcommand_gets_a_suggestion) {
  const answer got = run("comprae x");
  EXPECT_EQ(got.status, 2);
  EXPECT_THAT(got.err, HasSubstr("did you mean `compare`?"));
  EXPECT_THAT(run("zzzzzzzzzz").err, Not(HasSubstr("did you mean")));
}

TEST_F(command, options_that_are_not_understood_are_usage) {
  for (const char* line :
       {"compare --wrong", "compare", "compare x --workload churn", "compare --workload tetris",
        "compare --workload churn --gpu fast", "compare --workload churn --strategy magic",
        "compare --workload churn --rounds 0", "replay --workload churn --strategy magic",
        "replay --workload churn --check-contents --no-touch",
        "compare --workload training --streams 2", "compare --workload churn --gpu -1"}) {
    const answer got = run(line);
    EXPECT_EQ(got.status, 2) << line << "\n" << got.err;
    EXPECT_THAT(got.err, testing::StartsWith("millpond: ")) << line;
    EXPECT_EQ(got.out, "") << line;
  }
}

TEST_F(command, numbers_below_0_and_beyond_64_bits_are_usage) {
  const std::string leak = std::string(MILLPOND_SOURCE_DIR) + "/data/traces/faulty/leak.mpt";
  const std::string instance = std::string(MILLPOND_SOURCE_DIR) + "/data/planning/A.1048576.csv";
  for (const std::string& line :
       {std::string("compare --workload churn --seed"),
        std::string("compare --workload churn --length"),
        std::string("compare --workload churn --rounds"), std::string("pages --seed"),
        "advise " + leak + " --seed", "report " + leak + " -o x --seed",
        "plan " + instance + " --seed", "plan " + instance + " --node-limit",
        "top " + leak + " --places", std::string("record --last")}) {
    for (const char* number : {" -1", " 18446744073709551616", " 1e3", " ''"}) {
      const answer got = run(line + number);
      EXPECT_EQ(got.status, 2) << line << number << "\n" << got.err;
      EXPECT_EQ(got.out, "");
    }
  }
  EXPECT_EQ(run("compare --gpu sim --workload churn --length 10 --seed 0x10").status, 0);
}

TEST_F(command,
       a_dash_is_standard_output_where_one_file_is_written_and_refused_where_it_cannot_be) {
  const std::string leak = std::string(MILLPOND_SOURCE_DIR) + "/data/traces/faulty/leak.mpt";
  const answer page = millpond_here("report " + leak + " -o -");
  EXPECT_EQ(page.status, 0) << page.err;
  EXPECT_THAT(page.out, testing::StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(page.err, HasSubstr("12 events"));
  const answer csv = millpond_here("report " + leak + " --format csv -o -");
  EXPECT_THAT(csv.out, testing::StartsWith("action,"));
  EXPECT_THAT(csv.err, HasSubstr("left out"));
  const answer plan = millpond_here("plan -o - " + std::string(MILLPOND_SOURCE_DIR) +
                                    "/data/planning/A.1048576.csv");
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr(",offset"));
  EXPECT_THAT(plan.out, Not(HasSubstr("lower bound")));
  for (const std::string& line :
       {"report " + leak + " --json -o -", std::string("record -o - -- true"),
        std::string("calibrate -o - --gpu sim"), std::string("top -o - -- true")}) {
    EXPECT_EQ(millpond_here(line).status, 2) << line;
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "-"));
}

TEST_F(command, a_report_without_a_name_is_a_page_of_the_traces_name_here) {
  EXPECT_EQ(millpond_here("report " + trace("resnet_serving")).status, 0);
  EXPECT_EQ(
      millpond_here("report " + std::string(MILLPOND_SOURCE_DIR) + "/data/traces/faulty/leak.mpt")
          .status,
      0);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "resnet_serving.html"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "leak.html"));
  EXPECT_EQ(millpond_here("report --format csv " + trace("resnet_serving")).status, 2);
}

TEST_F(command, what_is_written_replaces_a_file_only_when_it_is_whole_and_a_device_never) {
  const std::string page = write("page.html", "an earlier page");
  std::filesystem::create_symlink(page, folder_ / "link.html");
  EXPECT_EQ(
      millpond_here("report " +
                    write("bad.csv", "action,time_us,addr,size,stream\nalloc,0,1000,many,0\n") +
                    " --format csv -o page.html")
          .status,
      3);
  EXPECT_EQ(read_all(page), "an earlier page");
  EXPECT_EQ(millpond_here("report " + trace("resnet_serving") + " -o link.html").status, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link.html"));
  EXPECT_GT(std::filesystem::file_size(page), 100'000u);
  EXPECT_EQ(millpond_here("report " + trace("resnet_serving") + " -o /dev/null").status, 0);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  for (const auto& each : std::filesystem::directory_iterator(folder_))
    EXPECT_NE(each.path().extension(), ".part") << each.path();
}

TEST_F(command, report_with_json_writes_the_page_too) {
  const answer got =
      run("report " + trace("resnet_serving") + " --json -o " + (folder_ / "page.html").string());
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_TRUE(nlohmann::json::accept(got.out));
  EXPECT_GT(std::filesystem::file_size(folder_ / "page.html"), 100'000u);
}

TEST_F(command, top_refuses_what_is_for_a_program_where_it_starts_none) {
  const std::string leak = std::string(MILLPOND_SOURCE_DIR) + "/data/traces/faulty/leak.mpt";
  for (const char* option : {" -o kept.mpt", " --library x.so", " --cupti y.so"}) {
    const answer got = millpond_here("top --once " + leak + option);
    EXPECT_EQ(got.status, 2) << option;
    EXPECT_THAT(got.err, HasSubstr("only looked at"));
  }
}

TEST_F(command, an_instance_of_a_header_alone_is_bad_input) {
  for (const char* header : {"id,lower,upper,size\n", "id,lower,upper,size,stream\n"}) {
    const answer got = run("plan " + write("header.csv", header));
    EXPECT_EQ(got.status, 3) << header;
    EXPECT_THAT(got.err, HasSubstr("expected buffers"));
  }
}

TEST_F(command, compare_prints_a_table_that_says_simulated_and_recommends_one) {
  const answer got = run("compare " + trace("resnet_serving") + " --gpu sim");
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_EQ(got.err, "");  // no progress where stderr is no terminal
  EXPECT_THAT(got.out, HasSubstr("SIMULATED"));
  for (const char* name : {"cuda-malloc", "managed", "driver-pool", "driver-pool-kept",
                           "fixed-arena", "millpond-pool"}) {
    EXPECT_THAT(got.out, HasSubstr(std::string("\n") + name)) << name;
  }
  EXPECT_THAT(got.out, HasSubstr("\nUse "));
  EXPECT_THAT(got.out, HasSubstr("pauses"));
}

TEST_F(command, compare_json_is_one_document_with_the_promised_keys) {
  const answer got = run("compare " + trace("multistream_serving") + " --json --gpu sim");
  EXPECT_EQ(got.status, 0) << got.err;
  const auto made = nlohmann::json::parse(got.out);
  EXPECT_EQ(made["gpu"]["simulated"], true);
  EXPECT_TRUE(made["gpu"]["name"].is_string());
  EXPECT_EQ(made["trace"]["events"], 23'324);
  EXPECT_EQ(made["trace"]["peak_live_bytes"], 429'302'352);
  ASSERT_EQ(made["strategies"].size(), 6u);
  for (const auto& each : made["strategies"]) {
    EXPECT_TRUE(each["name"].is_string());
    for (const char* which : {"allocate_us", "free_us"}) {
      for (const char* key : {"p50", "p99", "max"}) EXPECT_TRUE(each[which][key].is_number());
      EXPECT_LE(each[which]["p50"], each[which]["p99"]);
      EXPECT_LE(each[which]["p99"], each[which]["max"]);
    }
    for (const char* key : {"allocator_total_us", "device_waits", "peak_reserved_bytes",
                            "reserved_ratio", "failures"}) {
      EXPECT_TRUE(each[key].is_number()) << key;
    }
    EXPECT_EQ(each["failures"], 0) << each["name"] << each["first_failure"];
    EXPECT_EQ(each["violation_count"], 0) << each["name"] << each["violations"].dump();
    EXPECT_GE(each["reserved_ratio"], 1.0) << each["name"];
  }
  EXPECT_TRUE(made["recommendation"]["strategy"].is_string());
  EXPECT_FALSE(made["recommendation"]["why"].get<std::string>().empty());
}

TEST_F(command, a_workload_that_copies_is_compared_with_both_stagings) {
  const answer got = run("compare --workload inference --length 40 --json --gpu sim");
  EXPECT_EQ(got.status, 0) << got.err;
  const auto made = nlohmann::json::parse(got.out);
  EXPECT_EQ(made["strategies"].size(), 12u);
  for (const auto& each : made["strategies"]) EXPECT_TRUE(each["step_us"]["p99"].is_number());
}

TEST_F(command, the_same_seed_gives_the_same_document) {
  const std::string line =
      "compare --workload churn --length 2000 --streams 3 --seed 7 --json --gpu sim";
  EXPECT_EQ(run(line).out, run(line).out);
}

// Where a process has few addresses, as under ThreadSanitizer, those that ran at the same time once
// got what the others had left, and the document was a matter of which thread was first.
TEST_F(command, strategies_that_run_at_once_get_the_same_where_addresses_are_few) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own addresses are past every limit";
#endif
  std::string line = "compare --workload churn --length 2000 --streams 3 --seed 7 --json --gpu sim";
  for (int i = 0; i < 4; ++i) line += " --strategy millpond-pool";
  constexpr std::uint64_t kib_of_600_gib = std::uint64_t{600} << 20;
  const answer got = millpond_with_addresses(kib_of_600_gib, line);
  ASSERT_EQ(got.status, 0) << got.err;
  const auto made = nlohmann::json::parse(got.out);
  ASSERT_EQ(made["strategies"].size(), 4u);
  for (const auto& each : made["strategies"]) EXPECT_EQ(each, made["strategies"][0]);
}

TEST_F(command, replay_runs_one_strategy_and_says_that_contents_were_right) {
  const answer got =
      run("replay --workload churn --length 2000 --strategy driver-pool-kept --check-contents "
          "--rounds 2 --gpu sim");
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("all right"));
  EXPECT_THAT(got.out, HasSubstr("round 2"));
}

TEST_F(command, bad_files_are_bad_input_with_the_file_named) {
  const std::string whole = read_all(trace("resnet_serving"));
  const std::string header = "action,time_us,addr,size,stream\n";
  struct bad {
    const char* name;
    std::string text;
  };
  for (const auto& [name, text] :
       {bad{"empty.csv", ""}, bad{"truncated.csv.gz", whole.substr(0, whole.size() / 2)},
        bad{"corrupt.csv.gz", whole.substr(0, 1000) + std::string(200, 'x') + whole.substr(1200)},
        bad{"no_allocations.csv", header}, bad{"noise.bin", std::string(1000, '\xee')},
        bad{"twice.csv",
            header +
                "alloc,0,1000,512,0\nfree_requested,1,1000,512,0\nfree_requested,2,1000,512,0\n"},
        bad{"overlap.csv", header + "alloc,0,1000,8192,0\nalloc,1,2000,512,0\n"},
        bad{"word.csv", header + "alloc,0,1000,many,0\n"}}) {
    const answer got = run("compare --gpu sim " + write(name, text));
    EXPECT_EQ(got.status, 3) << name << "\n" << got.out << got.err;
    EXPECT_THAT(got.err, testing::StartsWith("millpond: ")) << name;
    EXPECT_THAT(got.err, HasSubstr(name));
    EXPECT_EQ(got.out, "") << name;
  }
  EXPECT_EQ(run("compare --gpu sim /no/such/file").status, 3);
}

TEST_F(command, a_profile_that_is_not_there_is_bad_input) {
  const answer got = run("compare --workload churn --length 10 --gpu sim:/no/such/profile.toml");
  EXPECT_EQ(got.status, 3) << got.err;
  EXPECT_THAT(run("compare --workload churn --length 10 --gpu sim:h100").err,
              HasSubstr("h200 is the one that is built in"));
}

TEST_F(command, a_request_larger_than_the_device_is_counted_and_reported) {
  const std::string file = write("huge.csv",
                                 "action,time_us,addr,size,stream\nalloc,0,1000,512,0\n"
                                 "alloc,5,10000000,1099511627776,0\n");
  const answer got = run("compare --gpu sim --json " + file);
  EXPECT_EQ(got.status, 0) << got.err;
  const auto made = nlohmann::json::parse(got.out);
  for (const auto& each : made["strategies"]) {
    if (each["name"] == "managed") continue;
    EXPECT_GE(each["failures"], 1) << each["name"];
    EXPECT_FALSE(each["first_failure"].get<std::string>().empty());
  }
}

TEST(gpu_choice, numbers_sim_and_profiles_are_read_and_nothing_else) {
  EXPECT_EQ(parse_gpu_choice("3")->ordinal, 3);
  EXPECT_EQ(parse_gpu_choice("sim")->what, gpu_choice::kind::simulated);
  EXPECT_EQ(parse_gpu_choice("sim:mine.toml")->profile, "mine.toml");
  for (const char* wrong : {"", "x", "-1", "1x", "sim:", "simulated", "99999999999999999999"}) {
    EXPECT_FALSE(parse_gpu_choice(wrong)) << wrong;
  }
}

TEST(nearest_name, finds_what_was_meant_or_nothing) {
  const std::vector<std::string> names{"compare", "replay", "doctor"};
  EXPECT_EQ(nearest_name("comapre", names), "compare");
  EXPECT_EQ(nearest_name("replya", names), "replay");
  EXPECT_EQ(nearest_name("entirely", names), "");
}

}  // namespace
}  // namespace millpond::cli
