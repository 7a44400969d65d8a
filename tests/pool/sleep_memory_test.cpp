// Sleep and wake without host memory: from each allocation that they make on there is none, and the
// pool is awake, or asleep and wakes later, with an error and nothing thrown. Over the null driver,
// which allocates nothing.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "driver/null/null_driver.hpp"
#include "millpond/base/units.hpp"
#include "millpond/pool/pool.hpp"
#include "support/failing_new.hpp"

namespace millpond {
namespace {

class pool_sleep_memory : public ::testing::Test {
 protected:
  void fill() {
    for (std::uint64_t i = 0; i < 60; ++i)
      blocks_.emplace_back(p_->allocate((i % 7 + 1) * 150 * KiB, nullptr), (i % 7 + 1) * 150 * KiB);
    ASSERT_TRUE(p_->set_tag(blocks_[3].first, "a tag that is longer than what a string holds"));
    // The heap's own books are what they will be.
    p_->deallocate(p_->allocate(MiB, nullptr), MiB, nullptr);
    ASSERT_TRUE(p_->sleep());
    ASSERT_TRUE(p_->wake());
  }
  template <class Call>
  auto with_allocations(std::uint64_t count, Call&& call) {
    const failing_new from_there(count, failing_new::which::all_from_there);
    return call();
  }
  void TearDown() override {
    for (const auto& [at, bytes] : blocks_) p_->deallocate(at, bytes, nullptr);
    EXPECT_EQ(p_->statistics().live_blocks, 0u);
    p_.reset();
  }

  std::shared_ptr<null_driver> gpu_ = std::make_shared<null_driver>();
  std::shared_ptr<pool> p_ = pool::create(gpu_).value();
  std::vector<std::pair<void*, std::uint64_t>> blocks_;
};

TEST_F(pool_sleep_memory, sleep_answers_an_error_and_the_pool_serves_on) {
  fill();
  const sleep_options options{.drop = {"another tag that no string holds in itself"},
                              .host = pinned_store::create(gpu_, 64 * MiB, 1).value()};
  std::uint64_t refusals = 0;
  for (std::uint64_t count = 0; count < 500; ++count) {
    const auto slept = with_allocations(count, [&] { return p_->sleep(options); });
    if (slept) {
      EXPECT_TRUE(p_->asleep());
      EXPECT_TRUE(p_->wake());
      EXPECT_GT(refusals, 3u);
      return;
    }
    ++refusals;
    ASSERT_EQ(slept.error().code, error_code::out_of_memory) << slept.error().message;
    ASSERT_FALSE(p_->asleep()) << "with " << count << " allocations";
    const auto served = p_->try_allocate(MiB, default_alignment, nullptr);
    ASSERT_TRUE(served) << served.error().message;
    p_->deallocate(*served, MiB, nullptr);
    p_->check();
  }
  FAIL() << "it never slept";
}

TEST_F(pool_sleep_memory, frees_asleep_need_none_and_wake_answers) {
  fill();
  for (int half = 0; half < 2; ++half) {
    ASSERT_TRUE(p_->sleep({.host = pinned_store::create(gpu_, 64 * MiB, 1).value()}));
    // Of blocks that lie side by side, those in the middle.
    for (std::size_t i = 1; i < blocks_.size(); i += 3) {
      const auto freed = with_allocations(
          0, [&] { return p_->try_deallocate(blocks_[i].first, blocks_[i].second, nullptr); });
      EXPECT_TRUE(freed);
    }
    for (std::size_t i = 1; i < blocks_.size(); i += 2)
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
    for (std::uint64_t count = 0; p_->asleep() && count < 100; ++count) {
      const auto woke = with_allocations(count, [&] { return p_->wake(); });
      if (!woke) {
        EXPECT_EQ(woke.error().code, error_code::out_of_memory);
      }
    }
    ASSERT_FALSE(p_->asleep());
    p_->check();
  }
}

TEST_F(pool_sleep_memory, a_tag_is_refused_and_the_block_has_none) {
  fill();
  const char* const tag = "yet another tag that is longer than what a string holds";
  std::uint64_t refusals = 0;
  for (std::uint64_t count = 0; count < 20; ++count) {
    const auto tagged = with_allocations(count, [&] { return p_->set_tag(blocks_[5].first, tag); });
    if (tagged) break;
    EXPECT_EQ(tagged.error().code, error_code::out_of_memory);
    ++refusals;
  }
  EXPECT_GE(refusals, 1u);
  ASSERT_TRUE(p_->sleep({.drop = {tag}}));
  ASSERT_TRUE(p_->wake());
}

}  // namespace
}  // namespace millpond
