// A command that is ended in the middle leaves nothing of its own, and takes its program with it.
#include <gmock/gmock.h>

#include <string>

#include "support/command_run.hpp"

namespace millpond::cli {
namespace {

using testing::HasSubstr;

class signals : public command_run {
 protected:
  static bool has_recorder() {
    return std::filesystem::exists(std::string(MILLPOND_BINARY_DIR) + "/libmillpond_record.so");
  }
  // A snapshot that takes seconds to convert.
  static std::string slow_snapshot() {
    return "python3 - <<'PY'\n"
           "import pickle\n"
           "frames = [{'name': 'n%d' % i, 'filename': 'f', 'line': i} for i in range(400)]\n"
           "events = [{'action': 'alloc', 'addr': i * 512 + 512, 'size': 512, 'stream': 0,\n"
           "           'time_us': i, 'frames': frames} for i in range(30000)]\n"
           "pickle.dump({'segments': [], 'device_traces': [events]}, open('slow.pickle', 'wb'), "
           "4)\n"
           "PY\n";
  }
};

TEST_F(signals, end_a_writing_subcommand_with_the_old_file_in_its_place_and_nothing_beside_it) {
  // A shell's background commands ignore SIGINT: Python gives it back.
  const answer got = script(
      slow_snapshot() +
      "mkdir place\n"
      "run() {\n"
      "  echo before >place/c\n"
      "  python3 -c 'import os, signal, sys; [signal.signal(s, signal.SIG_DFL) for s in (2, 3)]; "
      "os.execv(sys.argv[1], sys.argv[1:])' $M report slow.pickle --format $2 -o place/c "
      ">/dev/null "
      "2>&1 & p=$!\n"
      "  sleep 0.5; kill -$1 $p; wait $p 2>/dev/null; c=$?\n"
      "  [ $c -gt 128 ] || return 0\n"  // it was done before the signal came
      "  ended=1; [ \"$(ls -A place)\" = c ] || exit 1; [ \"$(cat place/c)\" = before ] || exit 2\n"
      "}\n"
      "for s in INT TERM HUP QUIT KILL; do run $s perfetto; done; run TERM csv; run TERM pytorch\n"
      "[ \"$ended\" = 1 ]\n");
  EXPECT_EQ(got.status, 0) << got.err;
}

TEST_F(signals, leave_nothing_where_a_file_cannot_be_without_a_name) {
  if (script("strace -o /dev/null true\n").status != 0) GTEST_SKIP() << "no strace here";
  // As a file system that has no nameless files answers.
  const answer got = script(
      slow_snapshot() +
      "mkdir place; echo before >place/c; chmod 600 place/c; p=$PWD/place\n"
      "cat >run.py <<'PY'\n"
      "import os, signal, sys\n"
      "for each in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):\n"
      "    signal.signal(each, signal.SIG_DFL)\n"
      "os.execvp('strace', ['strace', '-f', '-o', 'calls', '-P', sys.argv[2], '-e', "
      "'trace=openat', '-e', 'inject=openat:error=EOPNOTSUPP', sys.argv[1], 'report', "
      "'slow.pickle', '--format', 'perfetto', '-o', sys.argv[2] + '/c'])\n"
      "PY\n"
      "for s in TERM INT HUP QUIT; do\n"
      "  python3 run.py $M $p >/dev/null 2>&1 & j=$!\n"
      "  for n in $(seq 500); do ls -A place | grep -q millpond- && break; sleep 0.02; done\n"
      "  ls -A place | grep -q millpond- || exit 1\n"
      "  kill -$s $(pgrep -P $j); wait $j 2>/dev/null\n"
      "  [ \"$(ls -A place)\" = c ] && [ \"$(cat place/c)\" = before ] || exit 2\n"
      "done\n"
      "python3 run.py $M $p >/dev/null 2>&1 || exit 3\n"
      "[ \"$(ls -A place)\" = c ] && [ \"$(stat -c %a place/c)\" = 600 ] && ! grep -q before "
      "place/c\n");
  EXPECT_EQ(got.status, 0) << got.err;
}

TEST_F(signals, to_record_go_to_the_program) {
  if (!has_recorder()) GTEST_SKIP() << "built without the recorder";
  const answer got = script(
      "$M record -o a.mpt -- bash -c 'echo $$ >pid; exec sleep 60' & p=$!\n"
      "for n in $(seq 100); do [ -s pid ] && break; sleep 0.05; done; sleep 0.3\n"
      "kill -TERM $p; wait $p; c=$?\n"
      "sleep 0.2; kill -0 $(cat pid) 2>/dev/null && exit 1\n"
      "exit $c\n");
  EXPECT_EQ(got.status, 3) << "nothing was recorded, as `sleep` uses no CUDA: " << got.err;
  EXPECT_THAT(got.out, HasSubstr("was ended by signal 15"));
}

TEST_F(signals, to_top_end_a_program_that_ignores_interrupts) {
  if (!has_recorder()) GTEST_SKIP() << "built without the recorder";
  for (const char* how : {"kill -TERM $p", "kill -INT $p; sleep 0.5; kill -INT $p",
                          "kill -HUP $p; sleep 0.5; kill -INT $p"}) {
    const answer got = script(
        std::string("rm -f pid; export TMPDIR=$PWD/tmp; mkdir -p tmp\n") +
        "python3 -c 'import os, signal, sys; signal.signal(2, signal.SIG_DFL); "
        "os.execv(sys.argv[1], sys.argv[1:])' $M top -- bash -c 'trap \"\" INT HUP; echo $$ >pid; "
        "exec sleep 60' & p=$!\n"
        "for n in $(seq 100); do [ -s pid ] && break; sleep 0.05; done; sleep 0.3\n" +
        how +
        "\nfor n in $(seq 100); do kill -0 $p 2>/dev/null || break; sleep 0.1; done\n"
        "kill -0 $p 2>/dev/null && { kill -KILL $p; exit 1; }\n"
        "kill -0 $(cat pid) 2>/dev/null && exit 2\n"
        "[ -z \"$(ls -A tmp)\" ] || exit 3\n"
        "exit 0\n");
    EXPECT_EQ(got.status, 0) << how << got.err;
  }
}

TEST_F(signals, leave_the_terminal_as_it_was) {
  if (!has_recorder()) GTEST_SKIP() << "built without the recorder";
  // A terminal of its own, in which ^\ (SIGQUIT) is typed while the view is shown.
  const answer got = script(
      "cat >run.py <<'PY'\n"
      "import os, pty, select, sys, termios, time\n"
      "process, terminal = pty.fork()\n"
      "if process == 0:\n"
      "    os.execv(sys.argv[1], [sys.argv[1], 'top', '--', 'sleep', '60'])\n"
      "before = termios.tcgetattr(terminal)\n"
      "said, end, typed = b'', time.time() + 30, False\n"
      "while time.time() < end:\n"
      "    if select.select([terminal], [], [], 0.1)[0]:\n"
      "        try:\n"
      "            got = os.read(terminal, 4096)\n"
      "        except OSError:\n"
      "            break\n"
      "        if not got:\n"
      "            break\n"
      "        said += got\n"
      "    if b'\\x1b[?1049h' in said and not typed:\n"
      "        typed = True\n"
      "        time.sleep(0.3)\n"
      "        os.write(terminal, b'\\x1c')\n"
      "_, status = os.waitpid(process, 0)\n"
      "print(os.WIFEXITED(status), said.count(b'\\x1b[?1049l'))\n"
      "PY\n"
      "timeout 60 python3 run.py $M\n");
  EXPECT_EQ(got.out, "True 1\n") << got.err;
}

TEST_F(signals, top_keeps_what_it_needs_in_a_folder_of_its_own_that_goes_with_it) {
  if (!has_recorder()) GTEST_SKIP() << "built without the recorder";
  const answer got = script(
      "export TMPDIR=$PWD/tmp; mkdir tmp; umask 022\n"
      "$M top --once -- bash -c 'ls -la $TMPDIR >seen; exit 4' >/dev/null 2>&1\n"
      "cat seen; ls -A tmp\n");
  EXPECT_THAT(got.out, testing::ContainsRegex("drwx------ .* millpond_top_......"));
  EXPECT_EQ(got.out.substr(got.out.rfind("millpond_top_")).size(), 20u)
      << "nothing of it is left behind: " << got.out;
}

}  // namespace
}  // namespace millpond::cli
