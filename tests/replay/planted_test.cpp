// Strategies that are wrong on purpose: each must be found, by what it did to memory and by the
// checker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "made_workloads.hpp"
#include "millpond/sim/simulated_gpu.hpp"
#include "replay/run.hpp"
#include "replay/strategies/arena_book.hpp"

namespace millpond::replay {
namespace {

using testing::Contains;
using testing::Field;
using testing::HasSubstr;

enum class bug { none, overlap, no_order_between_streams, no_order_after_users };

// A fixed arena with a bug.
class planted final : public strategy {
 public:
  explicit planted(bug which) : bug_(which) {}
  result<void> prepare(const strategy_setting& setting) override {
    gpu_ = setting.gpu;
    book_ = arena_book(capacity);
    if (auto done = order_.prepare(gpu_, setting.streams); !done) return done;
    if (const auto got = gpu_->memory_allocate(&base_, capacity); !got)
      return to_error(got, "planted");
    return {};
  }
  result<device_address> allocate(std::uint64_t bytes, std::uint16_t stream) override {
    if (bug_ == bug::overlap && ++allocations_ % 10 == 0 && last_bytes_ >= bytes) return last_;
    const std::uint64_t at = book_.allocate(bytes, after_);
    if (at == arena_book::none) return error{error_code::out_of_memory, "planted: full"};
    if (bug_ != bug::no_order_between_streams) {
      for (const arena_book::mark& freed : after_) {
        if (auto done = order_.order(freed.stream, stream); !done) return done.error();
      }
    }
    last_ = base_ + at;
    last_bytes_ = bytes;
    return last_;
  }
  result<void> use(device_address, std::uint16_t) override { return {}; }
  result<void> free(device_address at, std::uint64_t bytes, std::uint16_t stream,
                    std::span<const std::uint16_t> users) override {
    if (bug_ == bug::overlap) return {};  // what it handed out twice cannot be freed twice
    if (bug_ != bug::no_order_after_users) {
      for (const std::uint16_t user : users) {
        if (auto done = order_.order(user, stream); !done) return done;
      }
    }
    book_.free(at - base_, bytes, {stream, 1});
    return {};
  }
  result<void> finish() override {
    auto done = order_.finish();
    if (const auto freed = gpu_->memory_free(base_); !freed) return to_error(freed, "planted");
    return done;
  }

 private:
  static constexpr std::uint64_t capacity = std::uint64_t{32} << 30;
  bug bug_;
  std::shared_ptr<driver> gpu_;
  arena_book book_{0};
  stream_order order_;
  std::vector<arena_book::mark> after_;
  device_address base_ = 0, last_ = 0;
  std::uint64_t last_bytes_ = 0;
  int allocations_ = 0;
};

std::shared_ptr<simulated_gpu> make_gpu(simulated_gpu_options::checker check) {
  simulated_gpu_options options;
  options.check = check;
  auto made = simulated_gpu::create(options);
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

outcome run_planted(const workload& work, bug which, simulated_gpu_options::checker check) {
  run_options options;
  options.make = [which]() -> std::unique_ptr<strategy> {
    return std::make_unique<planted>(which);
  };
  const strategy_facts facts{"planted", "wrong on purpose", strategy_facts::knowledge::none,
                             nullptr};
  auto made = run(work, facts, make_gpu(check), options);
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

constexpr auto checked = simulated_gpu_options::checker::on;
constexpr auto unchecked = simulated_gpu_options::checker::off;

TEST(planted, without_a_bug_nothing_is_found) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const outcome made = run_planted(random_workload(seed, 3, 400), bug::none, checked);
    EXPECT_EQ(made.violation_count, 0u)
        << "seed " << seed << ": " << (made.violations.empty() ? "" : made.violations[0].text);
    EXPECT_EQ(made.failures, 0u);
    EXPECT_GT(made.checked_blocks, 100u);
  }
}

TEST(planted, overlapping_blocks_are_found_by_their_contents_and_both_are_named) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const outcome made = run_planted(random_workload(seed, 1, 400), bug::overlap, unchecked);
    EXPECT_GT(made.wrong_words, 0u) << "seed " << seed;
    ASSERT_EQ(made.violation_count, 1u) << "seed " << seed;
    EXPECT_EQ(made.violations[0].rule, "contents");
    EXPECT_THAT(made.violations[0].text, HasSubstr("was overwritten at"));
    EXPECT_THAT(made.violations[0].text, testing::ContainsRegex("block [0-9]+ .*by block [0-9]+"));
  }
}

TEST(planted, overlapping_blocks_are_found_by_the_checker) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const outcome made = run_planted(random_workload(seed, 1, 400), bug::overlap, checked);
    EXPECT_THAT(made.violations, Contains(Field(&violation::rule, "overlap"))) << "seed " << seed;
  }
}

TEST(planted, reuse_by_a_stream_in_no_order_is_found_by_the_checker) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const outcome made =
        run_planted(random_workload(seed, 3, 400), bug::no_order_between_streams, checked);
    EXPECT_THAT(made.violations, Contains(Field(&violation::rule, "reuse_before_order")))
        << "seed " << seed;
  }
}

TEST(planted, reuse_before_a_user_is_done_is_found_by_the_checker) {
  for (std::uint64_t bytes = 512; bytes < (std::uint64_t{1} << 30); bytes *= 7) {
    workload_writer to(2);
    const std::uint32_t shared = to.allocate(bytes, 0);
    to.use(shared, 1);
    to.free(shared);
    to.free(to.allocate(bytes, 0));
    const workload work = to.finish();
    const outcome made = run_planted(work, bug::no_order_after_users, checked);
    EXPECT_THAT(made.violations, Contains(Field(&violation::rule, "reuse_before_order"))) << bytes;
    EXPECT_EQ(run_planted(work, bug::none, checked).violation_count, 0u) << bytes;
  }
}

// Timing alone decides here, as on a card: stream 0 is busy for long when it frees, stream 1 is
// idle.
TEST(planted, reuse_too_early_is_found_by_contents_when_the_streams_overlap) {
  workload_writer to(2);
  const std::uint32_t early = to.allocate(1 << 20, 0);
  to.kernel(early);
  std::vector<std::uint32_t> busy;
  for (int i = 0; i < 20; ++i) busy.push_back(to.allocate(std::uint64_t{1} << 30, 0));
  for (const std::uint32_t each : busy) to.kernel(each);
  to.free(early);
  const std::uint32_t late = to.allocate(1 << 20, 1);
  to.free(late);
  for (const std::uint32_t each : busy) to.free(each);
  const workload work = to.finish();
  const outcome wrong = run_planted(work, bug::no_order_between_streams, unchecked);
  ASSERT_EQ(wrong.violation_count, 1u);
  EXPECT_THAT(wrong.violations[0].text, testing::ContainsRegex("block 0 .*by block 21"));
  EXPECT_EQ(run_planted(work, bug::none, unchecked).violation_count, 0u);
}

}  // namespace
}  // namespace millpond::replay
