// Another process of the same test program, which runs one disabled test with one end of a socket.
// The tests of what processes share need one that can be killed, and on a card one that was not
// forked from a process that uses CUDA.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

extern char** environ;

namespace millpond {

class other_process {
 public:
  // The socket becomes descriptor 3 there.
  other_process(const std::string& test, int socket) {
    std::string words[] = {"other_process", "--gtest_filter=" + test,
                           "--gtest_also_run_disabled_tests", "--gtest_brief=1"};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(),
                         nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    // Through a high number, so that the end is without close-on-exec even where it is 3 already.
    ::posix_spawn_file_actions_adddup2(&actions, socket, 200);
    ::posix_spawn_file_actions_adddup2(&actions, 200, 3);
    ::posix_spawn_file_actions_addclose(&actions, 200);
    ::setenv("MILLPOND_TEST_SOCKET", "3", 1);
    ::posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, arguments, environ);
    ::unsetenv("MILLPOND_TEST_SOCKET");
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~other_process() { kill(); }
  other_process(const other_process&) = delete;
  other_process& operator=(const other_process&) = delete;

  [[nodiscard]] bool runs() const {
    return process_ > 0 && !ended_ && ::waitpid(process_, nullptr, WNOHANG) == 0;
  }
  void kill() const {
    if (process_ <= 0 || ended_) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    ended_ = true;
  }
  // In the other process: its end of the socket; -1 in the first one.
  [[nodiscard]] static int socket_of_this_one() {
    const char* const reported = std::getenv("MILLPOND_TEST_SOCKET");
    return reported == nullptr ? -1 : std::atoi(reported);
  }

 private:
  pid_t process_ = 0;
  mutable bool ended_ = false;
};

}  // namespace millpond
