#include "base/threads.hpp"

#include <gtest/gtest.h>

#include <atomic>

#include "support/no_threads.hpp"

namespace millpond {
namespace {

TEST(threads, one_runs_and_is_joined) {
  std::atomic<int> ran{0};
  std::thread made = thread_or_none([&] { ++ran; });
  ASSERT_TRUE(made.joinable());
  made.join();
  {
    joined_threads crew;
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(crew.start([&] { ++ran; }));
  }
  EXPECT_EQ(ran.load(), 4);
}

TEST(threads, where_there_are_none_nothing_is_thrown_and_nothing_runs) {
  std::atomic<int> ran{0};
  joined_threads crew;
  EXPECT_TRUE(crew.start([&] { ++ran; }));
  {
    const no_threads now;
    EXPECT_FALSE(crew.start([&] { ++ran; }));
    EXPECT_FALSE(thread_or_none([&] { ++ran; }).joinable());
  }
  crew.join();
  EXPECT_EQ(ran.load(), 1);
  EXPECT_TRUE(crew.start([&] { ++ran; })) << "there are some again";
}

}  // namespace
}  // namespace millpond
