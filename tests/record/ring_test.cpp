// The ring between the program's threads and the one that writes.
#include "record/ring.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace millpond::record {
namespace {

TEST(ring_test, gives_back_in_order_and_refuses_when_full) {
  ring<int> cells(8);
  const int three[] = {1, 2, 3};
  EXPECT_EQ(cells.push(three), 0u);
  EXPECT_EQ(cells.push(three), 3u);
  EXPECT_FALSE(cells.push(three)) << "two cells are left, and three must lie side by side";
  int value = 0;
  std::uint64_t position = 9;
  ASSERT_TRUE(cells.pop(value, position));
  EXPECT_EQ(value, 1);
  EXPECT_EQ(position, 0u);
  EXPECT_EQ(cells.push(three), 6u);
  for (const int expected : {2, 3, 1, 2, 3, 1, 2, 3}) {
    ASSERT_TRUE(cells.pop(value, position));
    EXPECT_EQ(value, expected);
  }
  EXPECT_FALSE(cells.pop(value, position));
}

TEST(ring_test, loses_nothing_that_it_took_from_many_threads) {
  ring<std::uint64_t> cells(1024);
  constexpr std::uint64_t writers = 4, each = 50'000;
  std::atomic<std::uint64_t> refused{0};
  std::vector<std::thread> threads;
  for (std::uint64_t writer = 0; writer < writers; ++writer) {
    threads.emplace_back([&, writer] {
      for (std::uint64_t n = 0; n < each; ++n) {
        const std::uint64_t pair[] = {writer << 32 | n, writer << 32 | n};
        if (!cells.push(pair)) ++refused;
      }
    });
  }
  std::uint64_t seen = 0, next[writers] = {}, expected = 0;
  std::atomic<bool> over{false};
  std::thread joiner([&] {
    for (auto& thread : threads) thread.join();
    over = true;
  });
  for (;;) {
    const bool last = over;
    std::uint64_t first = 0, second = 0, position = 0;
    while (cells.pop(first, position)) {
      ASSERT_EQ(position, expected++);
      while (!cells.pop(second, position)) std::this_thread::yield();
      ++expected;
      ASSERT_EQ(first, second) << "cells that were pushed together lie side by side";
      ASSERT_GE(first & 0xffffffff, next[first >> 32]) << "one thread's cells come in its order";
      next[first >> 32] = (first & 0xffffffff) + 1;
      ++seen;
    }
    if (last) break;
  }
  joiner.join();
  EXPECT_EQ(seen + refused, writers * each);
}

}  // namespace
}  // namespace millpond::record
