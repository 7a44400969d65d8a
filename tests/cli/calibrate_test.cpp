// millpond calibrate where there is nothing to measure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <sstream>

#include "cli/command.hpp"

namespace millpond::cli {
namespace {

template <class... Words>
std::pair<int, std::string> calibrate(Words... words) {
  const std::array arguments{"millpond", "calibrate", words...};
  std::ostringstream out, err;
  const int status = run_command(static_cast<int>(arguments.size()), arguments.data(), out, err);
  return {status, err.str()};
}

TEST(calibrate, measures_cards_only) {
  const auto [status, said] = calibrate("-o", "/nowhere/p.toml", "--gpu", "sim");
  EXPECT_EQ(status, 4);
  EXPECT_THAT(said, testing::HasSubstr("measures a card"));
}

TEST(calibrate, without_the_card_that_was_asked_for_says_what_is_missing) {
  const auto [status, said] = calibrate("-o", "/nowhere/p.toml", "--gpu", "4096");
  EXPECT_EQ(status, 4);
  EXPECT_THAT(said, testing::HasSubstr("calibrate needs a card"));
}

TEST(calibrate, needs_a_file_to_write) {
  EXPECT_EQ(calibrate().first, 2);
}

}  // namespace
}  // namespace millpond::cli
