// `millpond plan` as a user runs it: the published instances, traces, what it says of bad input,
// exit statuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class plan_command : public command_run {
 protected:
  answer run(const std::string& arguments) const { return millpond("plan " + arguments); }
  std::string file(const char* name) const { return (folder_ / name).string(); }
  static std::string instance(const char* name) {
    return std::string(MILLPOND_SOURCE_DIR) + "/data/planning/" + name;
  }

  // Status 3, one line on stderr with the words, nothing on stdout.
  void expect_bad(const std::string& arguments, const std::vector<std::string>& words) const {
    const answer got = run(arguments);
    EXPECT_EQ(got.status, 3) << arguments << "\n" << got.out << got.err;
    EXPECT_THAT(got.err, StartsWith("millpond: "));
    EXPECT_EQ(got.out, "") << arguments;
    for (const std::string& each : words) EXPECT_THAT(got.err, HasSubstr(each)) << arguments;
  }
};

const std::string header = "id,lower,upper,size\n";

TEST_F(plan_command, every_published_capacity_instance_is_planned_and_checked) {
  for (const char* name : {"A", "B", "D", "E", "G", "I", "J"}) {
    const std::string in = instance((std::string(name) + ".1048576.csv").c_str());
    const std::string out = file("plan.csv");
    const answer planned = run(in + " --capacity 1048576 --time-limit 60 -o " + out);
    EXPECT_EQ(planned.status, 0) << name << planned.err;
    EXPECT_THAT(planned.out, HasSubstr("lower bound"));
    const answer checked = run("--check " + out + " --capacity 1048576");
    EXPECT_EQ(checked.status, 0) << name << checked.out << checked.err;
    EXPECT_THAT(checked.out, StartsWith("valid: "));
  }
}

TEST_F(plan_command, the_committed_plans_are_plans_of_their_instances) {
  for (const auto& [plan, of, capacity] :
       {std::tuple{"D.986112.plan.csv", "D.1048576.csv", "986112"},
        std::tuple{"J.1005568.plan.csv", "J.1048576.csv", "1005568"}}) {
    EXPECT_EQ(run("--check " + instance(plan) + " --capacity " + capacity).status, 0) << plan;
    EXPECT_EQ(run("--check " + instance(plan) + " --capacity " +
                  std::to_string(std::stoull(capacity) - 1))
                  .status,
              1)
        << plan;
    // The same buffers: the plan's lines are the instance's with an offset.
    std::istringstream planned(read_all(instance(plan))), given(read_all(instance(of)));
    for (std::string line, start; std::getline(given, start);) {
      ASSERT_TRUE(std::getline(planned, line));
      EXPECT_THAT(line, StartsWith(start + ","));
    }
  }
}

TEST_F(plan_command, the_large_instances_reach_the_best_known_and_the_seed_decides_the_plan) {
  const answer g = run(instance("G_1.csv") + " --json");
  EXPECT_EQ(g.status, 0) << g.err;
  EXPECT_EQ(nlohmann::json::parse(g.out)["proved_optimal"], true);
  const std::string line = instance("J.1048576.csv") + " --node-limit 20000 --seed 7 -o ";
  EXPECT_EQ(run(line + file("one.csv")).status, 0);
  EXPECT_EQ(run(line + file("two.csv")).status, 0);
  EXPECT_EQ(read_all(file("one.csv")), read_all(file("two.csv")));
}

TEST_F(plan_command, check_finds_every_sort_of_broken_plan) {
  const std::string planned = "id,lower,upper,size,alignment,gaps,fixed,offset\n";
  EXPECT_EQ(run("--check " + write("good.csv", planned + "a,0,4,8,8,,,8\nb,2,6,8,1,,,0\n")).status,
            0);
  for (const auto& [rows, words] :
       {std::pair{"a,0,4,8,1,,,0\nb,3,6,8,1,,,7\n", "share bytes at time 3"},
        std::pair{"a,0,4,8,8,,,4\nb,5,6,8,1,,,0\n", "not aligned to 8"},
        std::pair{"a,0,4,8,1,,16,0\nb,5,6,8,1,,,0\n", "fixed offset 16"},
        std::pair{"a,0,9,8,1,2-4,,0\nb,3,5,8,1,,,0\n", "share bytes at time 4"}}) {
    const answer got = run("--check " + write("broken.csv", planned + rows));
    EXPECT_EQ(got.status, 1) << rows << got.err;
    EXPECT_THAT(got.out, HasSubstr("not a plan"));
    EXPECT_THAT(got.out, HasSubstr(words));
  }
  const answer over = run("--check " + file("good.csv") + " --capacity 15 --json");
  EXPECT_EQ(over.status, 1);
  EXPECT_EQ(nlohmann::json::parse(over.out)["valid"], false);
  expect_bad("--check " + write("none.csv", header + "a,0,4,8\n"),
             {"none.csv", "no column offset"});
  expect_bad("--check " + write("some.csv", "id,lower,upper,size,offset\na,0,4,8,0\nb,0,4,8,\n"),
             {"some.csv", "1 of 2 buffers have no offset"});
}

TEST_F(plan_command, bad_instances_are_reported_with_file_line_and_reason) {
  expect_bad(write("up.csv", header + "a,5,4,1\n"), {"up.csv:2", "upper >= lower (5)", "upper 4"});
  expect_bad(write("twice.csv", header + "a,0,4,1\na,1,4,1\n"),
             {"twice.csv:3", "each id once", "line 2"});
  expect_bad(write("zero.csv", header + "a,0,4,0\n"),
             {"zero.csv:2", "size of 1 to 2^63 - 1", "'0'"});
  expect_bad(write("huge.csv", header + "a,0,4,9223372036854775808\n"),
             {"huge.csv:2", "9223372036854775808"});
  expect_bad(write("sum.csv", header + "a,0,4,9223372036854775807\nb,0,4,9223372036854775807\n"),
             {"2^63 bytes or more"});
  expect_bad(write("cut.csv", header + "a,0,4,10\nb,0,4,1"), {"cut.csv:3", "it is cut"});
  expect_bad(write("mid.csv", header + "a,0,4,10\nb,0,"), {"mid.csv:3", "it is cut"});
  expect_bad(write("empty.csv", ""), {"empty.csv:1", "an empty file"});
  expect_bad(write("other.csv", "name,bytes\nx,1\n"), {"other.csv:1", "a header with a column"});
  expect_bad(write("noise.bin", std::string(300, '\xee')), {"noise.bin:1"});
  expect_bad(file("missing.csv"), {"missing.csv", "No such file"});
  const answer unwritable =
      run(instance("A.1048576.csv") + " --capacity 1048576 -o /no/such/folder/p.csv");
  EXPECT_EQ(unwritable.status, 2) << "the command line asks for it";
  EXPECT_THAT(unwritable.err, HasSubstr("/no/such/folder/p.csv"));
}

TEST_F(plan_command, an_impossible_capacity_says_by_how_much_and_why) {
  expect_bad(instance("A.1048576.csv") + " --capacity 1000000",
             {"48576 more than the capacity", "are live at time", "proves that none exists"});
  // Load 4 at every time, and no plan of 4: only the search proves it.
  const std::string tight =
      header + "a,0,2,1\nb,0,3,2\nc,0,1,1\nd,1,4,1\ne,2,5,1\nf,3,5,2\ng,4,5,1\n";
  const answer free = run(write("tight.csv", tight) + " --json");
  ASSERT_EQ(free.status, 0) << free.err;
  const auto made = nlohmann::json::parse(free.out);
  EXPECT_EQ(made["proved_optimal"], true);
  const auto peak = made["peak_bytes"].get<std::uint64_t>();
  EXPECT_EQ(run(file("tight.csv") + " --capacity " + std::to_string(peak)).status, 0);
  const answer json = run(file("tight.csv") + " --json --capacity " + std::to_string(peak - 1));
  EXPECT_EQ(json.status, 3);
  EXPECT_EQ(nlohmann::json::parse(json.out)["outcome"], "impossible");
  const answer early = run(instance("J.1048576.csv") + " --capacity 990000 --node-limit 5000");
  EXPECT_EQ(early.status, 3);
  EXPECT_THAT(early.err, HasSubstr("not proved that none exists"));
}

TEST_F(plan_command, files_of_other_tools_are_read) {
  const answer got = run(write("mini.csv",
                               "start,end,size,buffer_id,hint,alignment,gaps\r\n0,4,7,x,3,4,\r\n2,"
                               "9,5,y,,,4-6\r\n5,9,7,z,,,\r\n") +
                         " -o " + file("out.csv"));
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("left out: 'hint'"));
  EXPECT_EQ(run("--check " + file("out.csv")).status, 0);
}

TEST_F(plan_command, several_streams_share_bytes_only_where_waits_order_them) {
  const std::string streams = write(
      "s.csv", "id,lower,upper,size,stream\na,0,2,100,0\nb,5,7,100,1\nc,5,7,50,1\nc,3,4,50,0\n");
  const answer apart = run(streams + " --json -o " + file("apart.csv"));
  ASSERT_EQ(apart.status, 0) << apart.err;
  EXPECT_EQ(nlohmann::json::parse(apart.out)["peak_bytes"], 250);
  EXPECT_EQ(nlohmann::json::parse(apart.out)["proved_optimal"], true);
  const std::string waits =
      " --waits " + write("w.csv", "stream,step,for_stream,for_step\n1,5,0,1\n");
  const answer ordered = run(streams + waits + " --json -o " + file("ordered.csv"));
  ASSERT_EQ(ordered.status, 0) << ordered.err;
  EXPECT_EQ(nlohmann::json::parse(ordered.out)["peak_bytes"], 150);
  EXPECT_EQ(run("--check " + file("apart.csv")).status, 0);
  EXPECT_EQ(run("--check " + file("ordered.csv") + waits).status, 0);
  const answer without = run("--check " + file("ordered.csv"));
  EXPECT_EQ(without.status, 1) << "without the wait it is no plan";
  EXPECT_THAT(without.out, HasSubstr("share bytes"));
  expect_bad(streams + waits + " --capacity 149", {"1 more than the capacity"});
  expect_bad(streams + " --waits " +
                 write("circle.csv", "stream,step,for_stream,for_step\n0,1,1,1\n1,1,0,1\n"),
             {"circle"});
  expect_bad(streams + " --waits " + write("wx.csv", "stream,step,for_stream,for_step\n0,x,1,1\n"),
             {"wx.csv:2", "step as a number", "'x'"});
  expect_bad(write("use.csv", "id,lower,upper,size,stream\na,2,2,100,0\n"),
             {"use.csv:2", "at least one step"});
  expect_bad(write("size.csv", "id,lower,upper,size,stream\na,0,2,100,0\na,0,2,101,1\n"),
             {"size.csv:3", "as in line 2"});
  expect_bad(write("scut.csv", "id,lower,upper,size,stream\na,0,2,100,0\nb,0,2,1"),
             {"scut.csv:3", "it is cut"});
  EXPECT_EQ(run(instance("A.1048576.csv") + waits).status, 2);
}

TEST_F(plan_command, options_that_are_not_understood_are_usage) {
  for (const char* line :
       {"", "x --wrong", "x --capacity many", "x --time-limit -1", "x --seed one"}) {
    const answer got = run(line);
    EXPECT_EQ(got.status, 2) << line << "\n" << got.err;
    EXPECT_EQ(got.out, "") << line;
  }
}

TEST_F(plan_command, a_trace_is_planned_and_compared_with_the_dynamic_allocators) {
  const answer got = run(trace("resnet_serving") + " --gpu sim --json -o " + file("p.csv"));
  ASSERT_EQ(got.status, 0) << got.err;
  const auto made = nlohmann::json::parse(got.out);
  EXPECT_GE(made["iterations"].get<int>(), 10);
  EXPECT_LE(made["over_bound"].get<double>(), 0.01);
  EXPECT_EQ(made["planned"]["blocks"].get<int>() + made["persistent"]["blocks"].get<int>() +
                made["dynamic"]["blocks"].get<int>(),
            9085);
  const auto& peers = made["dynamic_allocators"];
  EXPECT_EQ(peers["simulated"], true);
  ASSERT_EQ(peers["strategies"].size(), 2u);
  for (const auto& each : peers["strategies"]) {
    EXPECT_EQ(each["failures"], 0);
    EXPECT_GE(each["peak_reserved_bytes"], made["planned"]["peak_live_bytes"]);
    EXPECT_GT(each["plan_below"], 0) << "one stream: the plan is below every dynamic allocator";
  }
  const answer checked = run("--check --json " + file("p.csv"));
  EXPECT_EQ(checked.status, 0) << checked.err;
  EXPECT_EQ(nlohmann::json::parse(checked.out)["peak_bytes"], made["planned_bytes"]);
  const answer text = run(trace("resnet_serving") + " --gpu sim");
  EXPECT_THAT(text.out, HasSubstr("SIMULATED"));
  EXPECT_THAT(text.out, HasSubstr("% less"));
  EXPECT_THAT(run(trace("resnet_serving") + " --no-compare").out,
              testing::Not(HasSubstr("SIMULATED")));
}

TEST_F(plan_command, a_trace_that_does_not_fit_or_does_not_repeat_is_reported) {
  expect_bad(trace("resnet_serving") + " --no-compare --capacity 100MiB",
             {"more than the capacity of 104857600", "which proves that none fit"});
  const answer got = run(write(
      "once.csv", "action,time_us,addr,size,stream\nalloc,0,1000,512,0\nalloc,1,2000,512,0\n"));
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("no iteration repeats"));
  const std::string whole = read_all(trace("resnet_serving"));
  expect_bad(write("cut.csv.gz", whole.substr(0, whole.size() / 2)), {"cut.csv.gz"});
}

}  // namespace
}  // namespace millpond::cli
