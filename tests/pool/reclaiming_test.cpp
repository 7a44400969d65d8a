// Reclaiming for a request is on a budget: a program that settles is never granted more, one that
// does not ends up being served.
#include "pool/miss_budget.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "support/pool_fixture.hpp"

namespace millpond {
namespace {

TEST(miss_budget, a_program_that_settles_is_granted_nothing) {
  miss_budget account;
  for (std::uint64_t n = 0; n < miss_budget::free_at_first; ++n) account.reclaimed(100, 10);
  for (int round = 0; round < 1000; ++round) {
    for (std::uint64_t n = 0; n < miss_budget::carvings_a_reclaim; ++n) account.carved();
    account.reclaimed(100, 10);
  }
  EXPECT_EQ(account.granted_bytes(), 0u);
}

TEST(miss_budget, one_that_does_not_is_granted_a_slack_from_where_it_is_and_sooner_the_next_time) {
  miss_budget account;
  for (std::uint64_t n = 0; n < miss_budget::free_at_first; ++n) account.reclaimed(100, 10);
  EXPECT_EQ(account.granted_bytes(), 0u);
  account.reclaimed(120, 10);
  EXPECT_EQ(account.granted_bytes(), 130u);
  for (std::uint64_t n = 0; n < miss_budget::free_again; ++n) account.reclaimed(130, 10);
  EXPECT_EQ(account.granted_bytes(), 130u);
  account.reclaimed(130, 10);
  EXPECT_EQ(account.granted_bytes(), 140u);
  account.forget_reclaims();
  EXPECT_EQ(account.granted_bytes(), 0u);
}

class reclaiming_pool : public pool_test {
 protected:
  // So many operations on log-uniform sizes up to 64 MiB, never the same again; what the pool did
  // in them.
  void churn(random& pick, stream_handle s, std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations; ++i) {
      const std::uint64_t bytes = pick.log_uniform(64 * KiB, 64 * MiB);
      if (live_.empty() || (live_bytes_ + bytes < most_live && pick.chance(0.55))) {
        live_.emplace_back(take(bytes, s), bytes);
        live_bytes_ += bytes;
        ASSERT_NE(live_.back().first, nullptr);
      } else {
        std::swap(live_[pick.below(live_.size())], live_.back());
        give(live_.back().first, s);
        live_bytes_ -= live_.back().second;
        live_.pop_back();
      }
    }
  }
  static constexpr std::uint64_t most_live = 1 * GiB;
  std::vector<std::pair<void*, std::uint64_t>> live_;
  std::uint64_t live_bytes_ = 0;
};

TEST_F(reclaiming_pool,
       sizes_that_never_come_again_are_soon_served_within_the_bound_with_few_calls_of_the_driver) {
  start();
  const stream_handle s = stream();
  random pick(7);
  churn(pick, s, 20'000);  // without the account four times as much is still done after these, and
                           // more reserved in the end
  const pool_statistics before = now();
  churn(pick, s, 10'000);
  const pool_statistics after = now();
  const std::uint64_t driver_work = after.stitches - before.stitches + after.stitch_reuses -
                                    before.stitch_reuses + after.growths - before.growths;
  const std::uint64_t allocations = after.allocations - before.allocations;
  EXPECT_GT(allocations, 4'000u);
  EXPECT_LT(20 * driver_work, allocations) << driver_work;
  const double most = 1 + miss_budget::most_slack_times * pool_options{}.slack;
  EXPECT_LE(static_cast<double>(after.peak_reserved_bytes),
            most * static_cast<double>(after.peak_out_bytes) + 64.0 * MiB);
  for (const auto& [ptr, bytes] : live_) give(ptr, s);
}

}  // namespace
}  // namespace millpond
