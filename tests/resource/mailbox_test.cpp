// The mailbox alone: what is put comes out once and in order, never more than it may hold, and with what the sender wrote.
#include "resource/mailbox.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "resource/lane.hpp"

namespace millpond {
namespace {

constexpr std::uint64_t no_limit = ~std::uint64_t{0};

class mailboxes : public ::testing::Test {
 protected:
  heap::segment& record(std::size_t i) {
    records_[i].bytes = 512;
    return records_[i];
  }
  heap::segment* take() {
    heap::segment* const out = box.front();
    if (out != nullptr) box.take_front(*out);
    return out;
  }

  stream_lane sender, receiver;
  mailbox box{sender, receiver};

 private:
  std::vector<heap::segment> records_{2 * mailbox::slots};
};

TEST_F(mailboxes, blocks_come_out_once_and_in_order_over_many_rounds) {
  EXPECT_EQ(box.front(), nullptr);
  for (std::size_t i = 0; i < 1000; ++i) {
    for (std::size_t k = 0; k <= i % 7; ++k) ASSERT_TRUE(box.put(&record(k), no_limit));
    EXPECT_EQ(box.bytes(), (i % 7 + 1) * 512);
    for (std::size_t k = 0; k <= i % 7; ++k) ASSERT_EQ(take(), &record(k));
    ASSERT_EQ(take(), nullptr);
    EXPECT_EQ(box.bytes(), 0u);
    box.tell();
  }
}

TEST_F(mailboxes, a_full_box_refuses_until_its_receiver_tells) {
  for (std::size_t i = 0; i < mailbox::slots; ++i) ASSERT_TRUE(box.put(&record(i), no_limit));
  EXPECT_FALSE(box.put(&record(0), no_limit));
  ASSERT_EQ(take(), &record(0));
  EXPECT_FALSE(box.put(&record(0), no_limit)) << "taken, and not told";
  box.tell();
  EXPECT_TRUE(box.put(&record(0), no_limit));
  EXPECT_FALSE(box.put(&record(1), no_limit));
  for (std::size_t i = 1; i < mailbox::slots; ++i) ASSERT_EQ(take(), &record(i));
  ASSERT_EQ(take(), &record(0));
  EXPECT_EQ(take(), nullptr);
}

TEST_F(mailboxes, a_limit_of_bytes_holds) {
  EXPECT_FALSE(box.put(&record(0), 511));
  ASSERT_TRUE(box.put(&record(0), 1024));
  ASSERT_TRUE(box.put(&record(1), 1024));
  EXPECT_FALSE(box.put(&record(2), 1024));
  ASSERT_EQ(take(), &record(0));
  box.tell();
  EXPECT_TRUE(box.put(&record(2), 1024));
}

TEST_F(mailboxes, two_threads_pass_records_with_what_the_sender_wrote) {
  constexpr std::uint64_t count = 100'000;
  std::thread other([&] {
    for (std::uint64_t i = 0; i < count; ++i) {
      heap::segment& next = record(i % (2 * mailbox::slots));
      // The receiver is done with it: it is at most a box's length behind.
      next.requested = i;
      while (!box.put(&next, 40 * 512)) std::this_thread::yield();
    }
  });
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < count;) {
    heap::segment* const got = box.front();
    if (got == nullptr) {
      box.tell();
      std::this_thread::yield();
      continue;
    }
    wrong += got->requested == i ? 0 : 1;
    box.take_front(*got);
    if (i % 3 == 0) box.tell();
    ++i;
  }
  other.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace millpond
