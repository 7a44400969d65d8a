// The remote_free_queue alone: what is put comes out once and in order, never more than it may
// hold, seen by the receiver at the end of a line of words, of an eighth of the bytes, or when it
// is asked to.
#include "pool/cache/remote_free_queue.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "pool/cache/thread_cache.hpp"

namespace millpond {
namespace {

constexpr std::uint64_t no_limit = ~std::uint64_t{0};
constexpr std::uint64_t base = std::uint64_t{1} << 40;
constexpr std::size_t count = 64;  // of different blocks, and as many again

class remote_free_queues : public ::testing::Test {
 protected:
  // Blocks of 512 bytes, one behind the other.
  [[nodiscard]] static std::uint64_t at(std::size_t i) { return base + i * heap::granule; }
  heap::extent* accept(std::uint64_t address, std::uint64_t bytes) {
    heap::extent& of = records_[(address - base) / heap::granule];
    of.bytes = 512;
    of.requested = bytes;
    return &of;
  }
  [[nodiscard]] heap::extent* record(std::size_t i) { return &records_[i]; }
  [[nodiscard]] bool put(std::size_t i, std::uint64_t limit = no_limit) {
    return box.put(at(i), 512, limit);
  }
  bool open() {
    return box.open(
        [this](std::uint64_t address, std::uint64_t bytes) { return accept(address, bytes); });
  }
  void open_all() {
    box.open_all(
        [this](std::uint64_t address, std::uint64_t bytes) { return accept(address, bytes); });
  }
  heap::extent* take() {
    heap::extent* const out = box.front();
    if (out != nullptr) box.take_front();
    return out;
  }

  thread_cache sender, receiver;
  remote_free_queue box{sender, receiver};

 private:
  std::vector<heap::extent> records_{2 * count};
};

TEST_F(remote_free_queues, blocks_come_out_once_and_in_order_over_many_rounds) {
  EXPECT_EQ(take(), nullptr);
  for (std::size_t i = 0; i < 1000; ++i) {
    for (std::size_t k = 0; k <= i % 7; ++k) ASSERT_TRUE(put(k));
    box.send();
    open_all();
    EXPECT_EQ(box.bytes(), (i % 7 + 1) * 512);
    for (std::size_t k = 0; k <= i % 7; ++k) ASSERT_EQ(take(), record(k));
    ASSERT_EQ(take(), nullptr);
    EXPECT_EQ(box.bytes(), 0u);
    box.tell();
  }
}

TEST_F(remote_free_queues, words_are_sent_by_the_line_by_an_eighth_of_the_bytes_or_when_reported) {
  for (std::size_t i = 0; i < remote_free_queue::words_a_line - 1; ++i) ASSERT_TRUE(put(i));
  EXPECT_FALSE(open());
  EXPECT_EQ(take(), nullptr);
  for (std::size_t i = remote_free_queue::words_a_line - 1; i < 2 * remote_free_queue::words_a_line;
       ++i)
    ASSERT_TRUE(put(i));
  EXPECT_TRUE(open());
  for (std::size_t i = 0; i < remote_free_queue::words_a_line; ++i) EXPECT_EQ(take(), record(i));
  EXPECT_EQ(take(), nullptr) << "a line at a time";
  EXPECT_TRUE(open());
  for (std::size_t i = remote_free_queue::words_a_line; i < 2 * remote_free_queue::words_a_line;
       ++i)
    EXPECT_EQ(take(), record(i));
  box.tell();
  ASSERT_TRUE(put(8, 16 * 512));
  EXPECT_FALSE(open());
  ASSERT_TRUE(put(9, 16 * 512));
  EXPECT_TRUE(open());
  EXPECT_EQ(take(), record(8));
  EXPECT_EQ(take(), record(9));
  ASSERT_TRUE(put(10));
  box.send();
  EXPECT_TRUE(open());
  EXPECT_EQ(take(), record(10));
  EXPECT_FALSE(open());
}

// Lines that are open make room for others, up to a number of blocks that are open; all that was
// sent can always be opened.
TEST_F(remote_free_queues, a_full_box_refuses_until_its_receiver_tells) {
  constexpr std::size_t in_lines = remote_free_queue::lines * remote_free_queue::words_a_line;
  for (std::size_t i = 0; i < in_lines; ++i) ASSERT_TRUE(put(i));
  EXPECT_FALSE(put(0));
  ASSERT_TRUE(open());
  EXPECT_FALSE(put(0)) << "open, and not reported";
  box.tell();
  EXPECT_TRUE(put(0));
  box.send();
  EXPECT_FALSE(put(0));
  std::size_t sent = in_lines + 1;
  while (open()) {
  }
  box.tell();
  for (; put(sent % in_lines); ++sent) {
  }
  box.send();
  EXPECT_TRUE(open());
  EXPECT_FALSE(open()) << "enough is open";
  EXPECT_LE(sent, remote_free_queue::most_blocks);
  open_all();
  std::size_t taken = 0;
  for (; take() != nullptr; ++taken) {
  }
  EXPECT_EQ(taken, sent);
  box.tell();
  EXPECT_TRUE(put(0));
}

// As who counts does.
TEST_F(remote_free_queues, opening_all_again_and_again_without_taking_holds_the_sender_up) {
  std::size_t sent = 0;
  for (int round = 0; round < 10; ++round) {
    while (put(sent % count)) ++sent;
    box.send();
    open_all();
    box.tell();
  }
  EXPECT_LE(sent, remote_free_queue::most_blocks);
  EXPECT_EQ(box.bytes(), sent * 512);
  for (std::size_t i = 0; i < sent; ++i) ASSERT_EQ(take(), record(i % count));
  EXPECT_EQ(take(), nullptr);
  box.tell();
  EXPECT_TRUE(put(0));
}

TEST_F(remote_free_queues, a_limit_of_bytes_holds) {
  EXPECT_FALSE(put(0, 511));
  ASSERT_TRUE(put(0, 1024));
  ASSERT_TRUE(put(1, 1024));
  EXPECT_FALSE(put(2, 1024));
  open_all();
  ASSERT_EQ(take(), record(0));
  box.tell();
  EXPECT_TRUE(put(2, 1024));
}

TEST_F(remote_free_queues, what_is_refused_when_it_is_opened_gives_its_place_and_bytes_back) {
  for (int round = 0; round < 100; ++round) {
    for (std::size_t i = 0; i < 4; ++i) ASSERT_TRUE(put(i, 4 * 512));
    box.send();
    box.open_all([this](std::uint64_t address, std::uint64_t bytes) {
      return address == at(1) || address == at(3) ? nullptr : accept(address, bytes);
    });
    EXPECT_EQ(box.bytes(), 1024u);
    ASSERT_EQ(take(), record(0));
    ASSERT_EQ(take(), record(2));
    ASSERT_EQ(take(), nullptr);
    box.tell();
  }
}

TEST_F(remote_free_queues,
       the_largest_block_and_the_highest_address_travel_as_they_are_and_none_beyond) {
  const std::uint64_t high = remote_free_queue::address_end - heap::granule;
  ASSERT_TRUE(box.put(high, remote_free_queue::most_bytes, no_limit));
  ASSERT_TRUE(box.put(heap::granule, 1, no_limit));
  EXPECT_FALSE(box.put(high, remote_free_queue::most_bytes + 1, no_limit));
  EXPECT_FALSE(box.put(high + heap::granule, 512, no_limit));
  box.send();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;
  box.open_all([&](std::uint64_t address, std::uint64_t bytes) {
    seen.emplace_back(address, bytes);
    return nullptr;
  });
  EXPECT_EQ(seen, (std::vector<std::pair<std::uint64_t, std::uint64_t>>{
                      {high, remote_free_queue::most_bytes}, {heap::granule, 1}}));
}

TEST_F(remote_free_queues, two_threads_pass_words) {
  constexpr std::uint64_t passed = 100'000;
  std::thread other([&] {
    for (std::uint64_t i = 0; i < passed; ++i) {
      while (!box.put(at(i % (2 * count)), 1 + i % 512, 40 * 512)) std::this_thread::yield();
    }
    box.send();
  });
  std::uint64_t wrong = 0;
  std::uint64_t seen = 0;
  for (std::uint64_t i = 0; i < passed;) {
    box.open([&](std::uint64_t address, std::uint64_t bytes) {
      wrong += address == at(seen % (2 * count)) && bytes == 1 + seen % 512 ? 0 : 1;
      ++seen;
      return accept(address, bytes);
    });
    if (take() == nullptr) {
      box.tell();
      std::this_thread::yield();
      continue;
    }
    if (i % 3 == 0) box.tell();
    ++i;
  }
  other.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace millpond
