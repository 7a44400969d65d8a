// Random programs against the reference and the checker; a planted bug must be found by them and
// shrunk.
#include "support/pool_model.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "support/lying_driver.hpp"

namespace millpond::model {
namespace {

void expect_holds(std::uint64_t seed, std::size_t length) {
  const program of = generate(seed, length);
  const settings how = settings_of(seed);
  const outcome result = run(of, how);
  if (result.failure.empty()) return;
  const program small = shrink(of, how, 300);
  const std::string path =
      std::string(MILLPOND_BINARY_DIR) + "/failing_pool_program_" + std::to_string(seed) + ".txt";
  std::ofstream file(path);
  write(file, seed, small);
  ADD_FAILURE() << "seed " << seed << ", operation " << result.failed_at << ": " << result.failure
                << "\nshrunk to " << small.size()
                << " operations, of which: " << run(small, how).failure
                << "\nagain: build/soak --replay " << path;
}

TEST(pool_model, short_programs_hold) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) expect_holds(seed, 200);
}
TEST(pool_model, long_programs_hold) {
  for (std::uint64_t seed = 1000; seed < 1010; ++seed) expect_holds(seed, 3000);
}

TEST(pool_model, planted_bugs_are_found_and_shrunk) {
  for (const lie which :
       {lie::event_passed_early, lie::event_not_recorded, lie::identity_is_the_handle,
        lie::context_event_empty, lie::context_event_on_stream, lie::wait_not_put,
        lie::nothing_captures, lie::no_capture_mode}) {
    bool found = false;
    for (std::uint64_t seed = 2; seed < 60 && !found; ++seed) {
      settings how = settings_of(seed);
      how.wrap = [which](std::shared_ptr<simulated_gpu> g) {
        return std::make_shared<lying_driver>(std::move(g), which);
      };
      const program of = generate(seed, 400);
      if (run(of, how).failure.empty()) continue;
      found = true;
      const program small = shrink(of, how, 300);
      EXPECT_LT(small.size(), of.size() / 4);
      EXPECT_FALSE(run(small, how).failure.empty());
      how.wrap = {};
      EXPECT_TRUE(run(small, how).failure.empty()) << "the honest driver breaks nothing";
    }
    EXPECT_TRUE(found) << "lie " << static_cast<int>(which);
  }
}

// A rule that no program tries would be kept by chance.
TEST(pool_model, every_rule_is_tried) {
  coverage sum{};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const outcome result = run(generate(seed, 600), settings_of(seed));
    EXPECT_EQ(result.failure, "") << "seed " << seed;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += result.covered[i];
  }
  for (std::size_t i = 0; i < sum.size(); ++i)
    EXPECT_GT(sum[i], 0u) << to_string(static_cast<rule>(i));
}

TEST(pool_model, a_program_reads_back_as_written) {
  const program of = generate(7, 50);
  std::stringstream text;
  write(text, 7, of);
  std::uint64_t seed = 0;
  program back;
  ASSERT_TRUE(read(text, &seed, &back));
  EXPECT_EQ(seed, 7u);
  ASSERT_EQ(back.size(), of.size());
  EXPECT_EQ(back[49].amount, of[49].amount);
  std::stringstream wrong("millpond pool program 1\nseed 3\n99 0 0 0 0\n");
  EXPECT_FALSE(read(wrong, &seed, &back));
}

}  // namespace
}  // namespace millpond::model
