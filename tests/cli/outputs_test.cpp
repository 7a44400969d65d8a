// What subcommands write: nothing else is touched, nothing is left behind, and inputs that can be
// read once are read once.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <string>

#include "report/page.hpp"
#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class outputs : public command_run {
 protected:
  static std::string leak() {
    return std::string(MILLPOND_SOURCE_DIR) + "/data/traces/faulty/leak.mpt";
  }
  void copy_leak(const char* name) const { std::filesystem::copy_file(leak(), folder_ / name); }
  static bool makes_pages() { return !report::embedded_page_files().d3.empty(); }
};

TEST_F(outputs, an_input_whose_name_looks_like_a_temporary_file_is_not_lost) {
  copy_leak("z.part");
  EXPECT_EQ(millpond_here("report z.part -o z --format csv").status, 0);
  EXPECT_EQ(read_all(folder_ / "z.part"), read_all(leak()));
  write("o.csv.part", "mine");
  EXPECT_EQ(millpond_here("report z.part -o o.csv --format csv").status, 0);
  EXPECT_EQ(read_all(folder_ / "o.csv.part"), "mine");
}

TEST_F(outputs, every_writing_subcommand_keeps_the_mode_of_the_file_that_it_replaces) {
  write("plan_in.csv", "id,lower,upper,size\na,0,2,5\n");
  copy_leak("leak.mpt");
  for (const char* each : {"report leak.mpt --format csv", "report leak.mpt --format perfetto",
                           "report leak.mpt --format pytorch", "plan plan_in.csv"}) {
    write("out_file", "");
    ASSERT_EQ(chmod((folder_ / "out_file").c_str(), 0600), 0);
    const answer got = millpond_here(std::string(each) + " -o out_file");
    EXPECT_EQ(got.status, 0) << each << got.err;
    struct stat found{};
    ASSERT_EQ(stat((folder_ / "out_file").c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600u) << each;
    EXPECT_GT(found.st_size, 0) << each;
  }
}

TEST_F(outputs, a_default_name_is_not_written_over_what_is_no_page) {
  if (!makes_pages()) GTEST_SKIP() << "built without D3";
  copy_leak("leak.mpt");
  write("leak.html", "<!DOCTYPE html>\nmy own page\n");
  answer got = millpond_here("report leak.mpt");
  EXPECT_EQ(got.status, 2);
  EXPECT_THAT(got.err, HasSubstr("leak.html: is there already and is no page of millpond"));
  EXPECT_THAT(read_all(folder_ / "leak.html"), HasSubstr("my own page"));
  std::filesystem::remove(folder_ / "leak.html");
  EXPECT_EQ(millpond_here("report leak.mpt").status, 0);
  got = millpond_here("report leak.mpt");
  EXPECT_EQ(got.status, 0) << "an earlier page is replaced: " << got.err;
}

TEST_F(outputs, links_lead_to_the_file_that_is_written) {
  copy_leak("leak.mpt");
  const answer got = script(
      "ln -s new.csv dangling; ln -s loop loop\n"
      "$M report leak.mpt --format csv -o dangling || exit 1\n"
      "[ -L dangling ] && [ -s new.csv ] || exit 2\n"
      "$M report leak.mpt --format csv -o loop && exit 3\n"
      "exit 0\n");
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_THAT(got.err, HasSubstr("loop: its links lead in a circle"));
}

TEST_F(outputs, two_at_once_into_one_file_leave_a_whole_document) {
  const answer got = script(
      "for n in 1 2 3 4; do $M report $SOURCE/data/traces/gpt2_generate.csv.gz --format perfetto "
      "-o all.json >/dev/null & done; wait\n"
      "ls -A | grep -c millpond-; exit 0\n");
  EXPECT_EQ(got.out, "0\n") << got.err;
  EXPECT_TRUE(nlohmann::json::accept(read_all(folder_ / "all.json")));
}

TEST_F(outputs, a_pipe_is_read_once_by_every_subcommand) {
  for (const char* each : {"advise --gpu sim", "explain", "plan --no-compare", "compare --gpu sim",
                           "replay --gpu sim", "report --format csv -o a.csv"}) {
    const std::string file = trace("multistream_serving");
    const answer piped = script("cat " + file + " | timeout 100 $M " + each + " /dev/stdin\n");
    const answer direct = script("$M " + std::string(each) + " " + file + "\n");
    EXPECT_EQ(piped.status, direct.status) << each << piped.err;
    EXPECT_THAT(piped.err, Not(HasSubstr("/proc/"))) << each;
  }
  write("in.csv", "id,lower,upper,size\na,0,2,5\n");
  EXPECT_EQ(script("cat in.csv | $M plan /dev/stdin\n").status, 0);
  if (!makes_pages()) return;
  const answer page =
      script("mkfifo f; cat " + leak() + " >f & timeout 60 $M report f -o f.html\n");
  EXPECT_EQ(page.status, 0) << page.err;
  EXPECT_THAT(page.out, HasSubstr("12 events"));
}

TEST_F(outputs, what_never_ends_is_refused) {
  for (const char* each : {"plan", "explain", "compare --gpu sim", "advise"}) {
    const answer got = millpond(std::string(each) + " /dev/zero");
    EXPECT_EQ(got.status, 3) << each;
    EXPECT_THAT(got.err, HasSubstr("/dev/zero: cannot be opened: it is a device")) << each;
  }
  EXPECT_THAT(millpond("explain /tmp").err, HasSubstr("it is a folder"));
}

TEST_F(outputs, names_that_are_not_utf8_are_answered_in_json) {
  const answer got = script(
      "f=$(printf 'p\\377.csv'); t=$(printf 't\\377.mpt'); cp " + leak() +
      " \"$t\"\n"
      "printf 'id,lower,upper,size,offset\\na,0,2,5,0\\n' >\"$f\"\n"
      "$M plan \"$f\" --json && $M plan --check \"$f\" --json && $M top --once --json \"$t\" &&\n"
      "$M compare --gpu sim --json \"$t\" && { $M explain --json \"$t\"; [ $? = 1 ]; }\n");
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_EQ(got.err, "");
  EXPECT_THAT(got.out, HasSubstr("p\xef\xbf\xbd.csv"));
}

}  // namespace
}  // namespace millpond::cli
