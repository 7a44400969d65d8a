// Files and values that somebody made to hurt, or that a mistake made: one line and a status, in
// bounded time and memory.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

class hostile : public command_run {
 protected:
  static std::string file(const char* name) {
    return std::string(MILLPOND_SOURCE_DIR) + "/tests/data/hostile/" + name;
  }
  static std::string leak() {
    return std::string(MILLPOND_SOURCE_DIR) + "/data/traces/faulty/leak.mpt";
  }
};

TEST_F(hostile, escape_sequences_of_a_trace_do_not_reach_the_terminal) {
  for (const char* each : {"explain", "top --once", "advise --gpu sim", "compare --gpu sim",
                           "replay --gpu sim", "report --format csv -o a.csv"}) {
    const answer got = millpond_here(std::string(each) + " " + file("escapes.mpt"));
    EXPECT_THAT(got.out + got.err, Not(HasSubstr("\x1b"))) << each;
    EXPECT_NE(got.status, -1) << each;
  }
  EXPECT_THAT(millpond("explain " + file("escapes.mpt")).out, HasSubstr("\\x1b["));
}

TEST_F(hostile, escape_sequences_of_names_do_not_reach_the_terminal) {
  const answer got = script(
      "n=$(printf 'a\\033[2J.mpt'); $M explain \"$n\"; $M plan \"$n\"\n"
      "$M report \"$n\" --format csv -o x; $M \"$n\"; $M top \"--$n\"; exit 0\n");
  EXPECT_THAT(got.err, HasSubstr("a\\x1b[2J.mpt"));
  EXPECT_THAT(got.out + got.err, Not(HasSubstr("\x1b")));
}

TEST_F(hostile, names_that_are_not_utf8_make_a_pickle_that_python_reads) {
  const answer got =
      script("$M report " + file("badutf.mpt") +
             " --format pytorch -o a.pickle >/dev/null || exit 1\n"
             "python3 -c 'import pickle; pickle.load(open(\"a.pickle\", \"rb\"))'\n");
  EXPECT_EQ(got.status, 0) << got.err;
}

TEST_F(hostile, numbers_that_are_none_are_refused) {
  write("p.csv", "id,lower,upper,size\na,0,2,5\n");
  for (const char* number : {"nan", "inf", "-nan", "1e999", "5x"}) {
    for (const std::string& each :
         {"diff " + leak() + " " + leak() + " --bytes ",
          "diff " + leak() + " " + leak() + " --time ",
          "diff " + leak() + " " + leak() + " --count ", std::string("plan p.csv --time-limit "),
          "top --once " + leak() + " --interval ", std::string("record --time-limit ")}) {
      const answer got =
          millpond_here(each + number + (each.starts_with("record") ? " -- true" : ""));
      EXPECT_EQ(got.status, 2) << each << number;
    }
  }
}

TEST_F(hostile, an_empty_value_is_not_as_if_nothing_had_been_said) {
  write("p.csv", "id,lower,upper,size\na,0,2,5\n");
  for (const std::string& each :
       {std::string("run --pool --limit '' -- true"), std::string("plan p.csv --capacity ''"),
        std::string("plan p.csv --waits ''"), "report " + leak() + " --from '' -o a.html",
        "report " + leak() + " -o ''", "diff " + leak() + " " + leak() + " --least ''",
        "compare " + leak() + " --gpu ''", std::string("record --size-limit '' -- true"),
        std::string("record -o '' -- true"), std::string("compare --workload ''"),
        std::string("explain ''"), std::string("top ''"), std::string("pages --size ''")}) {
    const answer got = millpond_here(each);
    EXPECT_EQ(got.status, 2) << each << got.out;
    EXPECT_THAT(got.err, Not(HasSubstr("stoi"))) << each;
  }
}

TEST_F(hostile, buffers_that_must_share_bytes_are_named) {
  write("fixed.csv", "id,lower,upper,size,fixed\na,0,2,5,0\nb,1,2,5,3\n");
  write("offsets.csv", "id,lower,upper,size,offset\na,0,2,5,0\nb,0,2,5,0\nc,0,2,5,\n");
  for (const char* each : {"fixed.csv", "offsets.csv"}) {
    const answer got = millpond_here(std::string("plan ") + each);
    EXPECT_EQ(got.status, 3) << each;
    EXPECT_THAT(got.err, HasSubstr("buffer a at [0, 5) and buffer b at"));
  }
  write("huge.csv",
        "id,lower,upper,size,alignment\na,0,9,3,4611686018427387904\n"
        "b,0,9,3,4611686018427387904\nc,0,9,3,4611686018427387904\n");
  const answer got = millpond_here("plan huge.csv");
  EXPECT_EQ(got.status, 3);
  EXPECT_THAT(got.err, HasSubstr("sum to 2^63"));
}

TEST_F(hostile, a_time_limit_holds_for_two_hundred_thousand_buffers) {
  const answer got = script(
      "awk 'BEGIN { print \"id,lower,upper,size\"; for (i = 0; i < 200000; ++i) "
      "printf \"a%d,%d,%d,%d\\n\", i, i % 1000, i % 1000 + 500, i + 1 }' >big.csv\n"
      "timeout 60 $M plan big.csv --time-limit 1 -o out.csv && $M plan --check out.csv\n");
  EXPECT_EQ(got.status, 0) << got.err;
}

TEST_F(hostile, thousands_of_streams_take_seconds) {
  // The pool itself asks all of its streams where it meets a new one, so that 20,000 are for the
  // others.
  const std::string others =
      " --strategy cuda-malloc managed driver-pool driver-pool-kept fixed-arena";
  for (const std::string& each : {file("streams6000.mpt"), file("streams20000.mpt") + others}) {
    const auto before = std::chrono::steady_clock::now();
    const answer got = script("timeout 250 $M compare --gpu sim --json " + each + "\n");
    EXPECT_EQ(got.status, 0) << each << got.err;
    const auto taken = std::chrono::steady_clock::now() - before;
    // A tenth of that without a sanitizer on an idle machine; it was minutes.
    EXPECT_LT(std::chrono::duration<double>(taken).count(), 120) << each;
  }
}

TEST_F(hostile, a_small_file_of_millions_of_blocks_ends_in_one_line_where_memory_is_short) {
  const answer got =
      script("ulimit -d 1500000\ntimeout 250 $M compare --gpu sim " + file("allocbomb.mpt") + "\n");
  EXPECT_THAT(got.status, AnyOf(3, 4)) << got.err;
  EXPECT_THAT(got.err, HasSubstr("memory"));
  EXPECT_THAT(got.err, Not(HasSubstr("terminate")));
  EXPECT_EQ(std::count(got.err.begin(), got.err.end(), '\n'), 1) << got.err;
}

TEST_F(hostile, a_preloaded_library_that_could_not_serve_is_an_error_before_the_program_runs) {
  const answer got = script(
      "mkdir 'a b' c:d; echo x >nothing\n"
      "for l in \"$PWD/a b/p.so\" $PWD/c:d/p.so; do echo >\"$l\"\n"
      "  MILLPOND_PRELOAD=$l $M run --pool --gpu sim -- touch ran; [ $? = 2 ] || exit 1; done\n"
      "MILLPOND_PRELOAD=$PWD/nothing $M run --pool --gpu sim -- touch ran; [ $? = 2 ] || exit 2\n"
      "MILLPOND_PRELOAD=/bin/true $M run --pool --gpu sim -- touch ran; [ $? = 2 ] || exit 3\n"
      "[ ! -e ran ]\n");
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_THAT(got.err, HasSubstr("has a space or a colon"));
  EXPECT_THAT(got.err, HasSubstr("expected libmillpond_preload.so"));
}

}  // namespace
}  // namespace millpond::cli
