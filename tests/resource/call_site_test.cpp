// Places: what is said, and whose words a thread speaks.
#include "millpond/memory/call_site.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace millpond {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(places, say_what_they_know) {
  EXPECT_EQ(to_string(place()), "a place not told");
  EXPECT_FALSE(place().known());
  EXPECT_EQ(to_string(place("weights", {})), "weights");
  const auto here = std::source_location::current();
  const std::string text = to_string(place(here));
  EXPECT_THAT(text, StartsWith("place_test.cpp:" + std::to_string(here.line())));
  EXPECT_THAT(text, Not(HasSubstr("/")));  // the file's folders say little and are long
  EXPECT_THAT(to_string(place("weights", here)), StartsWith("weights (place_test.cpp:"));
}

TEST(places, are_the_threads_own_and_end_with_their_scope) {
  EXPECT_FALSE(current_place().known());
  {
    const scoped_place outer("outer");
    std::thread([] { EXPECT_FALSE(current_place().known()); }).join();
    {
      const scoped_place inner("inner");
      EXPECT_STREQ(current_place().text, "inner");
    }
    EXPECT_STREQ(current_place().text, "outer");
  }
  EXPECT_FALSE(current_place().known());
}

TEST(places, an_inner_location_keeps_the_outer_words) {
  const scoped_place outer("the encoder");
  const auto here = std::source_location::current();
  const scoped_place inner{place(here)};
  EXPECT_STREQ(current_place().text, "the encoder");
  EXPECT_EQ(current_place().where.line(), here.line());
}

TEST(places, one_that_knows_nothing_changes_nothing) {
  const scoped_place outer("the encoder");
  const scoped_place inner{place()};
  EXPECT_STREQ(current_place().text, "the encoder");
  EXPECT_NE(current_place().where.line(), 0u);
}

}  // namespace
}  // namespace millpond
