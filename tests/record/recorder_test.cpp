#include "record/recorder.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "support/no_threads.hpp"

namespace millpond::record {
namespace {

TEST(recorder, without_a_thread_it_answers_an_error_and_leaves_signals_as_they_were) {
  settings how;
  how.path = (std::filesystem::temp_directory_path() /
              ("millpond_recorder_" + std::to_string(getpid()) + ".mpt"))
                 .string();
  how.ring_cells = 1024;
  {
    const no_threads now;
    const auto made = recorder::start(how, {});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, error_code::not_permitted);
    EXPECT_NE(made.error().message.find("no thread"), std::string::npos) << made.error().message;
  }
  sigset_t blocked;
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &blocked), 0);
  EXPECT_EQ(sigismember(&blocked, SIGUSR1), 0);
  std::filesystem::remove(how.path);
}

}  // namespace
}  // namespace millpond::record
